//! libFuzzer program of the fuzz target `nbd_negotiate`.
//!
//! The fuzz target itself is in `weir_fuzz::nbd_negotiate`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_negotiate::run(data));
