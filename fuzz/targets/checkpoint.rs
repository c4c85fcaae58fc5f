//! Fuzzes the target `checkpoint`.

#![no_main]

libfuzzer_sys::fuzz_target!(init: gradus_fuzz::write_seeds("checkpoint"), |input: &[u8]| gradus_fuzz::checkpoint::run(input));
