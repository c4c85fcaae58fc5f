//! Backends: what computes a plan. Above this folder nothing names a device.
//!
//! A backend links a plan to an [`Executable`]: it makes the arena, turns every step into whatever the device
//! runs (jobs on a CPU; on a GPU, kernels compiled here and captured as one graph a routine), and replays it.

#[macro_use]
mod cpu;
mod cuda;
mod reference;
mod timing;

pub use cpu::{Cpu, LinkedOperand, Linker, Unsupported};
pub use cuda::{Cuda, CudaLinker, GpuKind};
pub use gradus_cuda::{Meeting, Message, TreeSum};
pub use gradus_kernels::{In, Isa, Job, Out};
pub(crate) use reference::results;
pub use reference::{Reference, evaluate};
pub use timing::Timing;

use crate::ops::Trusted;
use crate::plan::{self, BufferId, Machine, Plan};
use crate::{Error, Layout, Result};
use std::any::Any;
use std::ops::Range;
use std::time::Duration;

/// Something that can compute plans.
pub trait Backend: Machine {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// The memory that arenas are in, if that is not the host's.
    fn memory(&self) -> Result<Option<DeviceMemory>>;

    /// Makes everything a replay needs. The last place that allocates.
    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>>;

    /// Where devices of several ranks find each other, to be told to all of them by one: if what lies in their memory is exchanged
    /// without a host that sees it.
    fn meeting_point(&self) -> Result<Vec<u8>> {
        Ok(vec![])
    }

    /// This device among those of other ranks, all of which meet there.
    fn connect(&self, _rank: usize, _ranks: usize, _meeting_point: &[u8]) -> Result<Box<dyn Peers>> {
        let reason = "what lies in its memory is not exchanged between ranks".to_string();
        Err(Error::Machine { what: self.name().to_string(), reason })
    }
}

/// A device among those of other ranks. What they exchange comes after all that the device was given to do before, and before all
/// that it is given afterwards.
pub trait Peers: Send {
    /// Room on the device for so many numbers that come from others, instead of what there was: where it lies.
    fn room(&mut self, numbers: usize) -> Result<u64>;

    /// Makes meetings ready, to be called by a number. The last place that allocates.
    ///
    /// # Safety
    /// Addresses must be of live memory of the device for as long as this number is called, with as many numbers as are said.
    unsafe fn prepare(&mut self, number: usize, meetings: Vec<Meeting>) -> Result<()>;

    /// Begins what was made ready. All ranks must do the same.
    fn meet(&mut self, number: usize) -> Result<()>;

    /// Waits, asleep, until all is done; an error if that takes longer than this.
    fn wait(&mut self, patience: Duration) -> Result<()>;
}

/// Memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What can be had now, with what this process has already.
    pub available: u64,
    /// What is taken besides arenas: the driver's context, libraries, kernels.
    pub besides: u64,
}

/// A linked plan.
pub trait Executable: Send {
    /// Replays a routine: no allocation, no lock, no decision. If the data was bad, it says so, and no state has changed:
    /// what may fault comes before [`plan::Parts::first_write`], and whether the replay stops at the fault or only there
    /// is its own affair.
    fn run(&mut self, routine: usize) -> Result<()>;

    /// Replays some of a routine's steps, as a part of it, if the device can.
    fn run_steps(&mut self, _routine: usize, _steps: Range<usize>) -> Result<()> {
        Err(Error::OtherMachine {
            problem: "routines are replayed in parts, and this device does them whole".to_string(),
        })
    }

    /// As [`Executable::run`]; adds what each step took to what stands at its place.
    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()>;

    /// From now on another plan, which must place the same states alike: they stay, everything else begins anew.
    fn relink(&mut self, plan: &Plan) -> Result<()>;

    /// Where the arena lies, if the host can see it.
    fn addresses(&self) -> Option<Range<usize>>;

    /// Where a buffer lies in a device's memory, if the host cannot see it.
    fn address(&self, _buffer: BufferId) -> Option<u64> {
        None
    }

    /// Writes a buffer, whole.
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()>;

    /// Reads a dense look into a buffer.
    fn read(&self, operand: &plan::Operand, bytes: &mut [u8]) -> Result<()>;

    /// A whole buffer's bytes where they lie, if the host can see them there.
    fn look(&self, buffer: BufferId) -> Option<&[u8]>;

    /// As [`Executable::look`], to be written there.
    fn look_mut(&mut self, buffer: BufferId) -> Option<&mut [u8]>;
}

/// An operation's kernels: one method a backend. They are the operation itself, of whose operands they know what its
/// rule lets pass.
pub trait Kernels: Trusted + Any {
    /// Whether the kernels read this operand in this layout; if not, the planner puts a dense copy in.
    fn takes(&self, input: usize, layout: &Layout) -> bool;

    /// Builds the jobs that compute it on the CPU, and asks for their scratch.
    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported>;

    /// Builds the commands that compute it on a CUDA device, and asks for their scratch.
    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported>;
}
