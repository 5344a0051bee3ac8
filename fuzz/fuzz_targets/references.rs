//! libFuzzer program of the fuzz target `references`.
//!
//! The fuzz target itself is in `weir_fuzz::references`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::references::run(data));
