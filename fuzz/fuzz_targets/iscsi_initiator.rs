//! libFuzzer program of the fuzz target `iscsi_initiator`.
//!
//! The fuzz target itself is in `weir_fuzz::iscsi_initiator`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_initiator::run(data));
