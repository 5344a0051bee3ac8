//! Job files of fio: import as a run, export of one.
//!
//! Not here: running fio (calibrate).
//!
//! Invariants:
//! - what is not understood is an error that names the line: a job is never silently another one;
//! - where fio and we differ on purpose (fill, rates, repeated addresses), `assume` or a trap
//!   says it.

mod export;
mod import;
mod parse;
#[cfg(test)]
mod tests;

pub use export::{FIO_TARGET, export_fio};
pub use import::{Imported, import_fio};
