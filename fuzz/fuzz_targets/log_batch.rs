//! libFuzzer program of the target `log_batch`.
//!
//! The target itself is in `weir_fuzz::log_batch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::log_batch::run(data));
