//! libFuzzer program of the target `forged`.
//!
//! Not here: the target itself (`weir_fuzz::forged`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::forged::run(data));
