//! libFuzzer program of the fuzz target `xattr_list`.
//!
//! The fuzz target itself is in `weir_fuzz::xattr_list`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::xattr_list::run(data));
