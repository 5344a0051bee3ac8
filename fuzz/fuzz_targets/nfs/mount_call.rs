//! libFuzzer program of the fuzz target `mount_call`.
//!
//! The fuzz target itself is in `weir_fuzz::mount_call`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::mount_call::run(data));
