//! libFuzzer program of the fuzz target `directory`.
//!
//! The fuzz target itself is in `weir_fuzz::directory`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::directory::run(data));
