//! libFuzzer program of the fuzz target `scsi_command`.
//!
//! The fuzz target itself is in `weir_fuzz::scsi_command`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::scsi_command::run(data));
