//! libFuzzer program of the target `dataset_record`.
//!
//! The target itself is in `weir_fuzz::dataset_record`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::dataset_record::run(data));
