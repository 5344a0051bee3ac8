//! libFuzzer program of the fuzz target `zstd_block`.
//!
//! The fuzz target itself is in `weir_fuzz::zstd_block`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::zstd_block::run(data));
