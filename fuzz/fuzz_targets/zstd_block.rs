//! libFuzzer program of the target `zstd_block`.
//!
//! The target itself is in `weir_fuzz::zstd_block`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::zstd_block::run(data));
