//! Fuzzes the target `corpus`.

#![no_main]

libfuzzer_sys::fuzz_target!(init: gradus_fuzz::write_seeds("corpus"), |input: &[u8]| gradus_fuzz::corpus::run(input));
