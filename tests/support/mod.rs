//! What the test files share.

#![allow(dead_code, unused_imports)]

pub use gradus::testing::{comparison, numbers, rounding};

use gradus::backend::{Backend, Cpu, Cuda};

pub mod counting;
pub mod fixture;
pub mod training;

/// What is compared with stored numbers: the CPU, or the CUDA device if `GRADUS_TEST_DEVICE` is `cuda`.
pub fn device(threads: usize) -> Box<dyn Backend> {
    match std::env::var("GRADUS_TEST_DEVICE").as_deref() {
        Ok("cuda") => Box::new(Cuda::new(0).unwrap()),
        Ok(other) => panic!("GRADUS_TEST_DEVICE is {other:?}; give cuda, or nothing for the CPU"),
        Err(_) => Box::new(Cpu::new(threads).unwrap()),
    }
}
