//! libFuzzer program of the fuzz target `slot`.
//!
//! The fuzz target itself is in `weir_fuzz::slot`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::slot::run(data));
