//! Planning: from a graph to steps with an address for every byte. Pure functions, one file a stage:
//!
//! | stage | what it decides |
//! |---|---|
//! | `simplify` | which nodes there are: equal ones merged, dead ones dropped, element-wise chains joined |
//! | `lower` | views become layouts; dense copies where a kernel needs them; every value a buffer |
//! | `schedule` | the order of the steps |
//! | `recompute` | which steps occur a second time instead of keeping their results |
//! | `memory` | which buffers share bytes, and an offset for every one |
//!
//! A plan names no device. What it needs to know of the machine it asks through [`Machine`]. Each stage is checked
//! by [`verify`] in debug builds; the plan itself always, for what is a [`Plan`] is carried out as it says.

mod checks;
mod lifetimes;
mod lower;
mod machine;
mod memory;
mod recompute;
mod schedule;
mod simplify;
mod text;
pub mod verify;

use crate::error::Place;
use crate::graph::{Graph, Part, State, Value};
use crate::ops::{Cost, Effect, Operation};
use crate::{Array, DType, Handles, Layout, Result, Shape, TensorType};
pub use lifetimes::Lifetime;
pub use machine::{FusionLimits, Machine, Reading, Scratch};
pub use recompute::Recompute;
use recompute::{Flow, Ladder};
use std::cell::OnceCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use text::RoutineText;

/// One thing a program can do: what it gives, and which states it assigns.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub name: String,
    pub times_per_step: usize,
    pub outputs: Vec<(String, Value)>,
    /// State, and the value it has afterwards.
    pub assigns: Vec<(Value, Value)>,
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
            && self.layout.shape.elements() * self.dtype.size() == buffers[self.buffer].bytes()
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
    pub place: Place,
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
pub struct Routine {
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
}

impl Routine {
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
    /// The size of the arena.
    pub fn total(&self) -> usize {
        self.states + self.inputs + self.constants + self.transients + self.workers
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
    pub routines: Vec<Routine>,
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
    pub fn first_write(&self, routine: &Routine) -> usize {
        let writes =
            |step: &Step| step.outputs.iter().any(|output| self.buffers[output.buffer].offset < self.regions.states);
        routine.steps.iter().position(writes).unwrap_or(routine.steps.len())
    }
}

/// Routines that are ordered and weighed, and wait for a limit: the fastest plan that keeps it is found quickly.
pub struct Planner<'a> {
    machine: &'a dyn Machine,
    options: Options,
    /// What persists has its place already.
    buffers: Vec<Buffer>,
    /// All but the transients, which depend on the limit.
    regions: Regions,
    drafts: Vec<Draft>,
    worker_scratch: usize,
    handles: Handles,
}

/// A routine without addresses, and the ways to carry it out.
struct Draft {
    routine: Routine,
    flow: Flow,
    ladder: Ladder,
    /// By rung of the ladder, once known.
    sizes: Vec<OnceCell<memory::Size>>,
}

/// What a plan comes to, without the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The size of the arena.
    pub arena: usize,
    /// How long a training step takes, about: every routine as often as it occurs in one.
    pub seconds: f64,
}

impl<'a> Planner<'a> {
    /// Takes routines over one graph as far as it goes without a limit. What each stage made is shown to `report`,
    /// with the stage's name.
    pub(crate) fn new(
        graph: &Graph,
        requests: &[Request],
        machine: &'a dyn Machine,
        options: Options,
        report: &mut Report<'_>,
    ) -> Result<Planner<'a>> {
        let mut buffers = lower::Buffers::of_leaves(graph);
        let mut routines = vec![];
        let mut worker_scratch = 0;
        for request in requests {
            let mut routine = ordered(graph, request, &mut buffers, (machine, options), report);
            for step in &mut routine.steps {
                let needs = machine.scratch(step)?;
                worker_scratch = worker_scratch.max(needs.per_worker);
                if needs.shared > 0 {
                    step.scratch = Some(buffers.add(BufferKind::Scratch, bytes_type(needs.shared)));
                }
                step.seconds = machine.seconds(step);
            }
            routines.push(routine);
        }
        let worker_scratch = worker_scratch.next_multiple_of(machine.alignment());
        let mut buffers = buffers.all;
        let workers = machine.workers() * worker_scratch;
        let regions = Regions { workers, ..memory::place_what_persists(&mut buffers, machine.alignment()) };
        let draft = |routine| Draft::new(routine, &buffers, machine, options.recompute);
        let drafts = routines.into_iter().map(draft).collect::<Result<_>>()?;
        Ok(Planner { machine, options, buffers, regions, drafts, worker_scratch, handles: Handles::default() })
    }

    /// The same planner, whose plans know these handles.
    pub(crate) fn with_handles(self, handles: Handles) -> Planner<'a> {
        Planner { handles, ..self }
    }

    /// The fastest plan whose arena has at most this many bytes; if there is none, the smallest there is.
    pub fn plan(&self, limit: usize) -> Plan {
        Plan::new(memory::place(self, limit)).unwrap_or_else(|problem| wrong_plan(&problem))
    }

    /// What [`Planner::plan`] would give for this limit: much sooner, if it was asked for similar limits before.
    pub fn estimate(&self, limit: usize) -> Estimate {
        memory::estimate(self, limit)
    }
}

impl Draft {
    fn new(routine: Routine, buffers: &[Buffer], machine: &dyn Machine, policy: Recompute) -> Result<Draft> {
        let flow = Flow::of(&routine, buffers, machine)?;
        let ladder = match policy {
            Recompute::Auto => Ladder::climb(&flow),
            _ => Ladder::fixed(&flow, recompute::evicted_by(policy, &flow, &routine.steps)),
        };
        let sizes = ladder.rungs().iter().map(|_| OnceCell::new()).collect();
        Ok(Draft { routine, flow, ladder, sizes })
    }

    /// The routine's steps in the way of a rung, over buffers that grow by what is made twice.
    fn at(&self, rung: &recompute::Rung, buffers: &mut Vec<Buffer>) -> Routine {
        let routine = self.flow.apply(&self.routine, &self.ladder.evicted(&self.flow, rung), buffers);
        debug_check(|| verify::verify_draft(&routine, buffers));
        routine
    }
}

/// A request's steps in order.
fn ordered(
    graph: &Graph,
    request: &Request,
    buffers: &mut lower::Buffers,
    (machine, options): (&dyn Machine, Options),
    report: &mut Report<'_>,
) -> Routine {
    let (graph, request) = simplify::simplify(graph, request, machine, options.simplify);
    debug_check(|| graph.verify());
    report("simplify", &graph);
    let lowered = lower::lower(&graph, &request, buffers, machine);
    debug_check(|| verify::verify_draft(&lowered, &buffers.all));
    report("lower", &RoutineText { routine: &lowered, buffers: &buffers.all });
    let routine = schedule::schedule(lowered, &buffers.all, options.reorder);
    debug_check(|| verify::verify_draft(&routine, &buffers.all));
    report("schedule", &RoutineText { routine: &routine, buffers: &buffers.all });
    routine
}

/// Is shown a stage's name and what the stage made.
pub type Report<'a> = dyn FnMut(&str, &dyn fmt::Display) + 'a;

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
