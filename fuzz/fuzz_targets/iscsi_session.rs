//! libFuzzer program of the target `iscsi_session`.
//!
//! Not here: the target itself (`weir_fuzz::iscsi_session`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::iscsi_session::run(data));
