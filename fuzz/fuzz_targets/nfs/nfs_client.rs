//! libFuzzer program of the fuzz target `nfs_client`.
//!
//! The fuzz target itself is in `weir_fuzz::nfs_client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nfs_client::run(data));
