//! libFuzzer program of the target `iscsi_pdu`.
//!
//! The target itself is in `weir_fuzz::iscsi_pdu`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_pdu::run(data));
