//! libFuzzer program of the target `iscsi_initiator`.
//!
//! Not here: the target itself (`weir_fuzz::iscsi_initiator`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_initiator::run(data));
