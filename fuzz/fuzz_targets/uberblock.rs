//! libFuzzer program of the target `uberblock`.
//!
//! Not here: the target itself (`weir_fuzz::uberblock`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::uberblock::run(data));
