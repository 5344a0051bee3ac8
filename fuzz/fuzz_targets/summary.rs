//! libFuzzer program of the fuzz target `summary`.
//!
//! The fuzz target itself is in `weir_fuzz::summary`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::summary::run(data));
