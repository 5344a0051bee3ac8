//! libFuzzer program of the target `node`.
//!
//! The target itself is in `weir_fuzz::node`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::node::run(data));
