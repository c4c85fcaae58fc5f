//! The device that a process computes on: the one place that chooses it.

use crate::config::{DeviceChoice, MeasuredSpeeds, TrainConfig};
use crate::memory::heap;
use crate::{Error, Result};
use gradus_engine::backend::{Backend, Cpu, Cuda, GpuKind};
use gradus_engine::plan::Speeds;
use std::path::Path;
use std::sync::Arc;

/// The device of this choice; a CPU is worked by so many threads.
pub fn backend(device: DeviceChoice, threads: usize) -> Result<Arc<dyn Backend>> {
    backend_with(device, threads, None)
}

/// The device of a run, planned for as the run states. Each rank of a host has a GPU of its own: from the one that is stated on, in
/// their order.
pub fn backend_of(config: &TrainConfig) -> Result<Arc<dyn Backend>> {
    let (rank, speeds) = (gradus_comm::rank_here(), config.speeds.as_ref());
    match config.device.resolved() {
        DeviceChoice::Cuda(first) if config.place.ranks > 1 => {
            let own = backend_with(DeviceChoice::Cuda(first + rank), config.threads, speeds);
            own.map_err(|error| {
                Error::Config(format!(
                    "{error}; ranks have a GPU each, and this is number {rank} of its host: start no more than there are \
                     GPUs from device {first} on, or choose `settings.device` cpu"
                ))
            })
        }
        _ => backend_with(config.device, config.threads, speeds),
    }
}

fn backend_with(device: DeviceChoice, threads: usize, speeds: Option<&MeasuredSpeeds>) -> Result<Arc<dyn Backend>> {
    let speeds = speeds.map_or_else(Speeds::default, |measured| measured.0.clone());
    match device.resolved() {
        DeviceChoice::Cuda(ordinal) => {
            let cuda = Cuda::new(ordinal).map_err(|error| match device {
                DeviceChoice::Auto => Error::Config(format!("{error}; or state `settings.device` cpu")),
                _ => error.into(),
            })?;
            heap::keep_code();
            Ok(Arc::new(cuda.with_speeds(speeds)))
        }
        DeviceChoice::Cpu | DeviceChoice::Auto => Ok(Arc::new(Cpu::new(threads)?.with_speeds(speeds))),
    }
}

/// A GPU of this kind, which need not be here: plans are made for it, and cannot be run.
pub fn planned(kind: GpuKind, speeds: Option<&MeasuredSpeeds>) -> Arc<dyn Backend> {
    let speeds = speeds.map_or_else(Speeds::default, |measured| measured.0.clone());
    Arc::new(Cuda::of_kind(kind).with_speeds(speeds))
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
