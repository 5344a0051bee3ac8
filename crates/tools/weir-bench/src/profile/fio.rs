//! Job files of fio: import as a run, and export of a run.
//!
//! `calibrate` runs fio.
//!
//! Invariants:
//! - the import reads each option of a job as fio does, reports it as skipped, or refuses it with
//!   its line number; it never changes the load silently;
//! - `assume` or a trap reports each deliberate difference from fio: fill, rates, repeated
//!   addresses.

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
