//! libFuzzer program of the target `forged`.
//!
//! The target itself is in `weir_fuzz::forged`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::forged::run(data));
