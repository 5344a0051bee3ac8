//! libFuzzer program of the fuzz target `inode`.
//!
//! The fuzz target itself is in `weir_fuzz::inode`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::inode::run(data));
