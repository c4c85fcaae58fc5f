//! The CPU backend: jobs over one arena, shared out to a pool of threads.

#[macro_use]
mod linker;

pub use linker::{Linker, Operand, Unsupported};
