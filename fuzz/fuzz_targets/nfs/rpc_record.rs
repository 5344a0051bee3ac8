//! libFuzzer program of the fuzz target `rpc_record`.
//!
//! The fuzz target itself is in `weir_fuzz::rpc_record`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::rpc_record::run(data));
