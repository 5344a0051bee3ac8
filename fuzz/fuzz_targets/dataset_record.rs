//! libFuzzer program of the target `dataset_record`.
//!
//! Not here: the target itself (`weir_fuzz::dataset_record`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::dataset_record::run(data));
