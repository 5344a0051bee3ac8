//! libFuzzer program of the target `summary`.
//!
//! Not here: the target itself (`weir_fuzz::summary`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::summary::run(data));
