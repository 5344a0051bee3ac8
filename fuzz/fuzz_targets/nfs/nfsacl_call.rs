//! libFuzzer program of the fuzz target `nfsacl_call`.
//!
//! The fuzz target itself is in `weir_fuzz::nfsacl_call`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nfsacl_call::run(data));
