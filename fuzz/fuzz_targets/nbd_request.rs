//! libFuzzer program of the target `nbd_request`.
//!
//! Not here: the target itself (`weir_fuzz::nbd_request`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_request::run(data));
