//! The device that a process computes on: the one place that chooses it.

use crate::config::DeviceChoice;
use crate::memory::heap;
use crate::{Error, Result};
use gradus_engine::backend::{Backend, Cpu, Cuda, GpuKind};
use std::path::Path;
use std::sync::Arc;

/// The device of this choice; a CPU is worked by so many threads.
pub fn backend(device: DeviceChoice, threads: usize) -> Result<Arc<dyn Backend>> {
    match device.resolved() {
        DeviceChoice::Cuda(ordinal) => {
            let cuda = Cuda::new(ordinal).map_err(|error| match device {
                DeviceChoice::Auto => Error::Config(format!("{error}; or state `settings.device` cpu")),
                _ => error.into(),
            })?;
            heap::keep_code();
            Ok(Arc::new(cuda))
        }
        DeviceChoice::Cpu | DeviceChoice::Auto => Ok(Arc::new(Cpu::new(threads)?)),
    }
}

/// A GPU of this kind, which need not be here: plans are made for it, and cannot be run.
pub fn planned(kind: GpuKind) -> Arc<dyn Backend> {
    Arc::new(Cuda::of_kind(kind))
}

impl DeviceChoice {
    /// The choice made: where it is open, the first CUDA device if this machine has one. Nothing is loaded to find out.
    pub fn resolved(self) -> DeviceChoice {
        let nodes = ["/dev/nvidiactl", "/dev/dxg"];
        match self {
            DeviceChoice::Auto if nodes.iter().any(|node| Path::new(node).exists()) => DeviceChoice::Cuda(0),
            DeviceChoice::Auto => DeviceChoice::Cpu,
            stated => stated,
        }
    }
}
