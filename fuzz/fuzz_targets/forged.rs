//! libFuzzer program of the fuzz target `forged`.
//!
//! The fuzz target itself is in `weir_fuzz::forged`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::forged::run(data));
