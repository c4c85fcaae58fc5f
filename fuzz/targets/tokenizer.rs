//! Fuzzes the target `tokenizer`.

#![no_main]

libfuzzer_sys::fuzz_target!(init: gradus_fuzz::write_seeds("tokenizer"), |input: &[u8]| gradus_fuzz::tokenizer::run(input));
