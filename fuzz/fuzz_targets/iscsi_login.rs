//! libFuzzer program of the target `iscsi_login`.
//!
//! The target itself is in `weir_fuzz::iscsi_login`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_login::run(data));
