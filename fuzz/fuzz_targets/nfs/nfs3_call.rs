//! libFuzzer program of the fuzz target `nfs3_call`.
//!
//! The fuzz target itself is in `weir_fuzz::nfs3_call`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nfs3_call::run(data));
