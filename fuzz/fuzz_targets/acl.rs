//! libFuzzer program of the fuzz target `acl`.
//!
//! The fuzz target itself is in `weir_fuzz::acl`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::acl::run(data));
