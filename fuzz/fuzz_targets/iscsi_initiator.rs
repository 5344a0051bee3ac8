//! libFuzzer program of the target `iscsi_initiator`.
//!
//! The target itself is in `weir_fuzz::iscsi_initiator`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_initiator::run(data));
