//! libFuzzer program of the fuzz target `nbd_request`.
//!
//! The fuzz target itself is in `weir_fuzz::nbd_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_request::run(data));
