//! The device that a process computes on: the one place that chooses it.

use crate::Result;
use crate::config::DeviceChoice;
use gradus_engine::backend::{Backend, Cpu, Cuda};
use std::sync::Arc;

/// The device of this choice; a CPU is worked by so many threads.
pub fn backend(device: DeviceChoice, threads: usize) -> Result<Arc<dyn Backend>> {
    match device {
        DeviceChoice::Cuda(ordinal) => Ok(Arc::new(Cuda::new(ordinal)?)),
        DeviceChoice::Cpu => Ok(Arc::new(Cpu::new(threads)?)),
        DeviceChoice::Auto => match Cuda::new(0) {
            Ok(cuda) => Ok(Arc::new(cuda)),
            Err(_) => backend(DeviceChoice::Cpu, threads),
        },
    }
}
