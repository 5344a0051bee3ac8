//! libFuzzer program of the fuzz target `iscsi_pdu`.
//!
//! The fuzz target itself is in `weir_fuzz::iscsi_pdu`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_pdu::run(data));
