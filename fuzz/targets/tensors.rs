//! Fuzzes the target `tensors`.

#![no_main]

libfuzzer_sys::fuzz_target!(init: gradus_fuzz::write_seeds("tensors"), |input: &[u8]| gradus_fuzz::tensors::run(input));
