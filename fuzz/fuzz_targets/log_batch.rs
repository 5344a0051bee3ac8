//! libFuzzer program of the target `log_batch`.
//!
//! Not here: the target itself (`weir_fuzz::log_batch`).

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::log_batch::run(data));
