//! libFuzzer program of the fuzz target `uberblock`.
//!
//! The fuzz target itself is in `weir_fuzz::uberblock`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::uberblock::run(data));
