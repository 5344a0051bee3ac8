//! Job files of fio: import as a run, export of one.
//!
//! Not here: running fio (calibrate).
//!
//! Invariants:
//! - the import reads each word of a job as fio does, names it as skipped, or refuses it with its
//!   line: a job never silently becomes another one;
//! - where fio and we differ on purpose (fill, rates, repeated addresses), `assume` or a trap
//!   says it.

mod export;
mod import;
mod load;
mod parse;
mod region;
mod streams;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub use export::{FIO_TARGET, export_fio, fio_path};
pub use import::import_fio;
