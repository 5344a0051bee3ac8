//! Job files of fio: imports a job file as a run, and exports a run as a job file.
//!
//! `calibrate` runs fio itself.
//!
//! Invariants:
//! - for each option of a job, the import reads the option as fio does, reports the option as
//!   skipped, or refuses the option with its line number; the import never changes the load
//!   silently;
//! - each deliberate difference from fio (fill, rates, repeated addresses) is reported in `assume`
//!   or as a trap.

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
