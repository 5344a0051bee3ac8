//! libFuzzer program of the fuzz target `remap`.
//!
//! The fuzz target itself is in `weir_fuzz::remap`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::remap::run(data));
