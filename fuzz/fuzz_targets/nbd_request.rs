//! libFuzzer program of the target `nbd_request`.
//!
//! The target itself is in `weir_fuzz::nbd_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_request::run(data));
