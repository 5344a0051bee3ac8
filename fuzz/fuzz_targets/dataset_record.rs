//! libFuzzer program of the fuzz target `dataset_record`.
//!
//! The fuzz target itself is in `weir_fuzz::dataset_record`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::dataset_record::run(data));
