//! The device that a process computes on: the one place that chooses it.

use crate::Result;
use crate::config::DeviceChoice;
use crate::memory::heap;
use gradus_engine::backend::{Backend, Cpu, Cuda};
use std::sync::Arc;

/// The device of this choice; a CPU is worked by so many threads.
pub fn backend(device: DeviceChoice, threads: usize) -> Result<Arc<dyn Backend>> {
    match device {
        DeviceChoice::Cuda(ordinal) => {
            let cuda = Cuda::new(ordinal)?;
            heap::keep_code();
            Ok(Arc::new(cuda))
        }
        DeviceChoice::Cpu => Ok(Arc::new(Cpu::new(threads)?)),
        DeviceChoice::Auto => match backend(DeviceChoice::Cuda(0), threads) {
            Err(_) => backend(DeviceChoice::Cpu, threads),
            cuda => cuda,
        },
    }
}
