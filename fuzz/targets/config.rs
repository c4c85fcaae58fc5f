//! Fuzzes the target `config`.

#![no_main]

libfuzzer_sys::fuzz_target!(init: gradus_fuzz::write_seeds("config"), |input: &[u8]| gradus_fuzz::config::run(input));
