//! libFuzzer program of the target `scsi_command`.
//!
//! Not here: the target itself (`weir_fuzz::scsi_command`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::scsi_command::run(data));
