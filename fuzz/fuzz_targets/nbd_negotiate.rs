//! libFuzzer program of the target `nbd_negotiate`.
//!
//! The target itself is in `weir_fuzz::nbd_negotiate`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::nbd_negotiate::run(data));
