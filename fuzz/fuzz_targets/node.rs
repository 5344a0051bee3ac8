//! libFuzzer program of the fuzz target `node`.
//!
//! The fuzz target itself is in `weir_fuzz::node`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::node::run(data));
