//! Backends: what computes a plan. Above this folder nothing names a device.

#[macro_use]
mod cpu;
mod reference;

pub use cpu::{Linker, Operand, Unsupported};
pub use reference::evaluate;

use crate::shape::Layout;

/// An operation's kernels: one method a backend.
pub trait Kernels {
    /// Whether the kernels read this operand in this layout; if not, the planner puts a dense copy in.
    fn takes(&self, input: usize, layout: &Layout) -> bool;

    /// Builds the jobs that compute it on the CPU, and asks for their scratch.
    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported>;
}
