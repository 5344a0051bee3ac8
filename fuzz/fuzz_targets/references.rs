//! libFuzzer program of the target `references`.
//!
//! The target itself is in `weir_fuzz::references`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::references::run(data));
