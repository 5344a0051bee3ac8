//! libFuzzer program of the fuzz target `share_rules`.
//!
//! The fuzz target itself is in `weir_fuzz::share_rules`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::share_rules::run(data));
