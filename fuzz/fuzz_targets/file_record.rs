//! libFuzzer program of the fuzz target `file_record`.
//!
//! The fuzz target itself is in `weir_fuzz::file_record`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::file_record::run(data));
