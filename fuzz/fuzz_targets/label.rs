//! libFuzzer program of the target `label`.
//!
//! Not here: the target itself (`weir_fuzz::label`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::label::run(data));
