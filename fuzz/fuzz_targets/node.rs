//! libFuzzer program of the target `node`.
//!
//! Not here: the target itself (`weir_fuzz::node`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::node::run(data));
