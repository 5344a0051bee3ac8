//! libFuzzer program of the fuzz target `nfs_handle`.
//!
//! The fuzz target itself is in `weir_fuzz::nfs_handle`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nfs_handle::run(data));
