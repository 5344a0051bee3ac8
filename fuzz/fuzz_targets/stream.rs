//! libFuzzer program of the fuzz target `stream`.
//!
//! The fuzz target itself is in `weir_fuzz::stream`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::stream::run(data));
