//! The device that a process computes on: the one place that chooses it.

use crate::Result;
use gradus_engine::backend::{Backend, Cpu};
use std::sync::Arc;

/// The device, worked by so many threads.
pub fn backend(threads: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Cpu::new(threads)?))
}
