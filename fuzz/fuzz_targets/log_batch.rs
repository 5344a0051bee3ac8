//! libFuzzer program of the fuzz target `log_batch`.
//!
//! The fuzz target itself is in `weir_fuzz::log_batch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::log_batch::run(data));
