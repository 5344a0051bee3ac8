//! libFuzzer program of the target `remap`.
//!
//! Not here: the target itself (`weir_fuzz::remap`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::remap::run(data));
