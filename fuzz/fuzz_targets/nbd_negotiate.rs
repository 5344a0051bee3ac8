//! libFuzzer program of the target `nbd_negotiate`.
//!
//! Not here: the target itself (`weir_fuzz::nbd_negotiate`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_negotiate::run(data));
