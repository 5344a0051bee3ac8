//! libFuzzer program of the fuzz target `iscsi_session`.
//!
//! The fuzz target itself is in `weir_fuzz::iscsi_session`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_session::run(data));
