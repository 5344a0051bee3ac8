//! libFuzzer program of the target `iscsi_session`.
//!
//! The target itself is in `weir_fuzz::iscsi_session`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_session::run(data));
