//! libFuzzer program of the fuzz target `iscsi_login`.
//!
//! The fuzz target itself is in `weir_fuzz::iscsi_login`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_login::run(data));
