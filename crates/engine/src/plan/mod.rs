//! Planning: from a graph to steps with an address for every byte. Pure functions, one file or folder a stage:
//!
//! | stage | from → to | what it decides |
//! |---|---|---|
//! | `simplify` | `Graph` → `Graph` | which nodes there are: equal ones merged, dead ones dropped, element-wise chains joined, products given epilogues and computed together where they share columns |
//! | `lower` | `Graph` → `Lowered` | views become layouts; copies where a kernel needs them; every value a buffer |
//! | `schedule` | `Lowered` → `Scheduled` | the order of the steps; where new values of states are written; then each step's scratch and time |
//! | `recompute` | `Scheduled` → `Ways` → `Recomputed` | which steps occur a second time instead of keeping their results |
//! | `memory` | `Recomputed` → [`Plan`] | which buffers share bytes, and an offset for every one |
//!
//! `planner` takes them one after another. A plan names no device. What it needs to know of the machine it asks through
//! [`Machine`]. Each stage can be printed, and is checked by [`verify`] in debug builds; the plan itself always, for what is
//! a [`Plan`] is carried out as it says.

mod checks;
mod liveness;
mod lower;
mod machine;
mod marks;
mod memory;
mod planner;
mod recompute;
mod schedule;
mod simplify;
mod speeds;
mod text;
pub mod verify;

use crate::error::Location;
use crate::graph::{Part, State, Value};
use crate::ops::{Cost, Effect, Operation};
use crate::{Array, DType, Handles, Layout, Shape, TensorType};
pub use liveness::Lifetime;
pub use machine::{Absorption, FusionLimits, Machine, Reading, Scratch};
pub use marks::{Mark, Moment};
pub use planner::{Estimate, Planner};
pub use recompute::Recompute;
pub(crate) use simplify::identity;
pub use speeds::Speeds;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One thing a program can do: what it gives, and which states it assigns.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub name: String,
    pub times_per_step: usize,
    pub outputs: Vec<(String, Value)>,
    /// State, and the value it has afterwards.
    pub assigns: Vec<(Value, Value)>,
    pub marks: Vec<MarkRequest>,
    pub apart: bool,
}

/// When states are exchanged with others, by their names, and values given away.
#[derive(Clone, Debug)]
pub(crate) struct MarkRequest {
    pub moment: Moment,
    pub group: usize,
    pub states: Vec<Arc<str>>,
    pub given: Vec<Value>,
}

/// What the planner may do. All of it is on unless a test, or a search for a fault, turns it off: the results are
/// the same bits either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Merge equal nodes and join element-wise chains.
    pub simplify: bool,
    /// Write results over operands that are not needed again.
    pub in_place: bool,
    /// Choose the order of steps by memory, rather than keep the order of the trace.
    pub reorder: bool,
    /// Let buffers that are not alive together share bytes.
    pub share: bool,
    /// What to compute again rather than keep.
    pub recompute: Recompute,
}

impl Default for Options {
    fn default() -> Self {
        Options { simplify: true, in_place: true, reorder: true, share: true, recompute: Recompute::None }
    }
}

/// A buffer's place in [`Parts::buffers`].
pub type BufferId = usize;

/// What a buffer is for.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Written by the caller.
    Input(Arc<str>),
    /// Kept from replay to replay.
    State(State),
    /// Fixed.
    Constant(Arc<Array>),
    /// A result inside a replay.
    Transient,
    /// A step's shared scratch.
    Scratch,
}

impl BufferKind {
    /// Whether the bytes outlive a replay.
    pub fn is_persistent(&self) -> bool {
        matches!(self, BufferKind::Input(_) | BufferKind::State(..) | BufferKind::Constant(_))
    }
}

/// Bytes that hold one value.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What it is for.
    pub kind: BufferKind,
    /// What it holds, densely.
    pub ty: TensorType,
    /// Where it lies in the arena.
    pub offset: usize,
}

impl Buffer {
    pub(crate) fn new(kind: BufferKind, ty: TensorType) -> Buffer {
        Buffer { kind, ty, offset: usize::MAX }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.ty.bytes()
    }
}

/// A look into a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Which buffer.
    pub buffer: BufferId,
    /// The element type.
    pub dtype: DType,
    /// Where the elements lie in it.
    pub layout: Layout,
}

impl Operand {
    pub(crate) fn dense(buffer: BufferId, ty: &TensorType) -> Operand {
        Operand { buffer, dtype: ty.dtype, layout: Layout::dense(&ty.shape) }
    }

    /// The type it is seen as.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, &self.layout.shape)
    }

    /// Whether it is the whole buffer, densely.
    pub fn is_whole(&self, buffers: &[Buffer]) -> bool {
        self.layout.offset == 0
            && self.layout.is_dense()
            && self.layout.shape.elements().saturating_mul(self.dtype.size()) == buffers[self.buffer].bytes()
    }
}

/// One operation of a replay. The same step may occur more than once in a routine: that is recomputation.
#[derive(Clone, Debug)]
pub struct Step {
    /// What is done.
    pub op: Arc<dyn Operation>,
    /// From what.
    pub inputs: Vec<Operand>,
    /// To what; always dense.
    pub outputs: Vec<Operand>,
    /// The shared scratch, if it needs any.
    pub scratch: Option<BufferId>,
    /// How long it takes, about.
    pub seconds: f64,
    /// The user's line.
    pub location: Location,
    /// The part of the training step.
    pub part: Part,
    /// Whether it makes something a second time.
    pub again: bool,
}

impl Step {
    /// What it costs to compute.
    pub fn cost(&self) -> Cost {
        let types = |operands: &[Operand]| operands.iter().map(Operand::ty).collect::<Vec<_>>();
        self.op.cost(&types(&self.inputs), &types(&self.outputs))
    }

    /// What it does besides giving its results.
    pub fn effect(&self) -> Effect {
        self.op.effect(&self.inputs.iter().map(Operand::ty).collect::<Vec<_>>())
    }
}

/// The steps of one routine.
#[derive(Clone, Debug)]
pub struct PlannedRoutine {
    /// Its name.
    pub name: String,
    /// How often it is replayed in a training step.
    pub times_per_step: usize,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What the caller may read afterwards.
    pub outputs: Vec<(String, Operand)>,
    /// State buffers, and the buffers whose content they have afterwards, at the same address.
    pub assigns: Vec<(BufferId, BufferId)>,
    /// Between which steps states are given to others, and awaited from them; in the order of the steps.
    pub marks: Vec<Mark>,
    /// Whether nothing of other routines lies over its transients, so that they may be replayed between its steps.
    pub apart: bool,
}

impl PlannedRoutine {
    /// How long it takes, about.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }
}

/// Bytes of the arena, by what they hold. The regions lie in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Weights, moments, counters.
    pub states: usize,
    /// Batches.
    pub inputs: usize,
    /// Constants.
    pub constants: usize,
    /// Results and scratch inside a replay; routines use the same bytes one after another.
    pub transients: usize,
    /// Each worker's own scratch.
    pub workers: usize,
}

impl Regions {
    /// The size of the arena; the largest number if it would overflow, which no plan has.
    pub fn total(&self) -> usize {
        let Regions { states, inputs, constants, transients, workers } = *self;
        [states, inputs, constants, transients, workers].into_iter().fold(0, usize::saturating_add)
    }
}

/// Everything a replay will do, to the byte: parts that were verified, and that nothing can change.
///
/// ```compile_fail,E0594
/// # fn tampered(plan: &mut gradus_engine::plan::Plan) {
/// plan.worker_scratch = 0; // Other parts make another plan, which is verified in turn.
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Plan(Parts);

impl Plan {
    /// A plan of these parts, or why they make none.
    pub fn new(parts: Parts) -> std::result::Result<Plan, String> {
        verify::verify(&parts)?;
        Ok(Plan(parts))
    }

    /// How long a training step takes, about: every routine as often as it occurs in one.
    pub fn seconds(&self) -> f64 {
        self.routines.iter().map(|routine| routine.times_per_step as f64 * routine.seconds()).sum()
    }
}

impl Deref for Plan {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What a plan is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// All buffers of all routines.
    pub buffers: Vec<Buffer>,
    /// The routines.
    pub routines: Vec<PlannedRoutine>,
    /// The arena.
    pub regions: Regions,
    /// Scratch of each worker, in bytes.
    pub worker_scratch: usize,
    /// Buffers start at multiples of this.
    pub alignment: usize,
    /// What the handles of the trace stand for.
    pub handles: Handles,
}

impl Parts {
    /// The number of the first step of a routine that writes a state, or how many there are if none does. What may fault
    /// comes before.
    pub fn first_write(&self, routine: &PlannedRoutine) -> usize {
        let writes =
            |step: &Step| step.outputs.iter().any(|output| self.buffers[output.buffer].offset < self.regions.states);
        routine.steps.iter().position(writes).unwrap_or(routine.steps.len())
    }
}

/// Is shown a stage's name and what the stage made.
pub type Report<'a> = dyn FnMut(&str, &dyn fmt::Display) + 'a;

/// Whether the step's in-place rule lets `output` lie over `input`, for every operand that reads it.
fn covers_all_reads(step: &Step, input: BufferId, output: BufferId, buffers: &[Buffer]) -> bool {
    let pairs = step.op.in_place();
    let output = step.outputs.iter().position(|operand| operand.buffer == output).expect("the step's own output");
    let result = &step.outputs[output];
    step.inputs.iter().enumerate().filter(|(_, operand)| operand.buffer == input).all(|(position, operand)| {
        pairs.contains(&(output, position))
            && operand.is_whole(buffers)
            && operand.dtype.size() == result.dtype.size()
            && operand.layout.shape.elements() == result.layout.shape.elements()
    })
}

/// Scratch is counted in bytes, held here as 16-bit elements, the smallest there are.
fn bytes_type(bytes: usize) -> TensorType {
    TensorType::new(DType::Bf16, Shape::new(vec![bytes.div_ceil(2)]))
}

fn debug_check(check: impl FnOnce() -> std::result::Result<(), String>) {
    if cfg!(debug_assertions)
        && let Err(problem) = check()
    {
        wrong_plan(&problem);
    }
}

/// A plan that does not verify is a bug, not a user's error.
fn wrong_plan(problem: &str) -> ! {
    panic!("the planner made a wrong plan: {problem}");
}
