//! libFuzzer program of the target `stream`.
//!
//! Not here: the target itself (`weir_fuzz::stream`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::stream::run(data));
