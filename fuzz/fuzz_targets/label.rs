//! libFuzzer program of the fuzz target `label`.
//!
//! The fuzz target itself is in `weir_fuzz::label`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::label::run(data));
