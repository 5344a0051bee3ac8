//! libFuzzer program of the target `zstd_block`.
//!
//! Not here: the target itself (`weir_fuzz::zstd_block`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::zstd_block::run(data));
