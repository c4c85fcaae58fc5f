//! CUDA for gradus: what a device does, as data, and what carries it out.
//!
//! The first half is pure: [`Source`] writes a kernel with its shapes as constants, [`Command`] says what to launch on
//! which addresses. It needs no device, no driver and no library, so plans are made and tested anywhere. The second half
//! loads NVIDIA's libraries when it is first asked for: [`Device`] compiles, allocates, captures and replays.

mod command;
mod compile;
mod elementwise;
mod error;
mod library;
mod operand;
mod program;
mod source;
pub mod sources;

pub use command::{Bias, Command, Launch, Matrix, Product};
pub use compile::{can_compile, compile};
pub use elementwise::elementwise;
pub use error::{Error, Result};
pub use operand::{Element, Operand};
pub use program::expression;
pub use source::{Source, threads_for};
