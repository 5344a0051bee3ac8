//! libFuzzer program of the target `label`.
//!
//! The target itself is in `weir_fuzz::label`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::label::run(data));
