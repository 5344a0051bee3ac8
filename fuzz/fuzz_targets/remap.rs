//! libFuzzer program of the target `remap`.
//!
//! The target itself is in `weir_fuzz::remap`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::remap::run(data));
