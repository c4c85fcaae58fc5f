//! A plan on a device: its arena, and a graph for every routine.

use super::{Cuda, groups};
use crate::backend::{Executable, Timing};
use crate::error::Location;
use crate::graph::{Initial, State};
use crate::ops::Check;
use crate::plan::{BufferId, BufferKind, Machine, Operand, Plan, PlannedRoutine, Reading};
use crate::{DType, Error, Result};
use gradus_cuda::{Command, Device, Memory, Replay, Staging, Steps};
use std::ops::Range;
use std::sync::Arc;

/// Bytes behind the arena: the cell of faults.
const FAULT_CELL: usize = 8;

pub(super) struct CudaExecutable {
    /// Dropped before the arena, whose addresses they hold.
    routines: Vec<LinkedRoutine>,
    arena: Memory,
    cuda: Cuda,
    device: Arc<Device>,
    /// Offset and size of every buffer.
    offsets: Vec<(usize, usize)>,
    /// What inputs go through, on their way to the arena.
    staging: Staging,
    /// The routine that ran last, if nothing was written since.
    last_run: Option<usize>,
}

/// The host's share of moving inputs: twice what they take, so that those of a step are written while others are copied. Those
/// that are larger take the slow way.
fn staging_bytes(plan: &Plan) -> usize {
    plan.regions.inputs.saturating_mul(2).min(64 << 20)
}

/// Results that are small, and few, are with the host as soon as a routine is through.
const RESULT_BYTES: usize = 16 << 10;
const RESULTS: usize = 8;

struct LinkedRoutine {
    replay: Replay,
    /// What each step looks for in the data.
    checks: Vec<Option<LinkedCheck>>,
}

struct LinkedCheck {
    check: Check,
    /// The type of the operand that it looks at.
    operand: DType,
    op: &'static str,
    location: Location,
}

impl CudaExecutable {
    pub fn link(cuda: &Cuda, device: &Arc<Device>, plan: &Plan) -> Result<CudaExecutable> {
        check_plan(cuda, plan)?;
        let arena = Memory::zeroed(device, plan.regions.total() + FAULT_CELL)?;
        let (cuda, device) = (cuda.clone(), device.clone());
        let staging = Staging::new(&device, staging_bytes(plan))?;
        let mut executable =
            CudaExecutable { routines: vec![], arena, cuda, device, offsets: vec![], staging, last_run: None };
        executable.choose_products(plan)?;
        for buffer in &plan.buffers {
            if let BufferKind::State(State { initial: Initial::Numbers(array), .. }) = &buffer.kind {
                executable.arena.write(buffer.offset, array.bytes())?;
            }
        }
        executable.link_routines(plan)?;
        Ok(executable)
    }

    /// Has products timed on the arena's own bytes, while nothing is in them.
    fn choose_products(&mut self, plan: &Plan) -> Result<()> {
        let commands = self.cuda.commands(plan, self.arena.address())?;
        let products = commands.iter().flatten().flatten().filter_map(Command::product);
        // SAFETY: the commands were linked to the arena, whose bytes nobody needs yet; the cell lies behind the plan's bytes.
        unsafe { self.device.choose_products(products, self.fault_cell(plan)) }?;
        Ok(self.arena.clear()?)
    }

    /// Where faults are raised.
    fn fault_cell(&self, plan: &Plan) -> u64 {
        self.arena.address() + plan.regions.total() as u64
    }

    /// Links a plan over the arena, which is of its size and holds its states.
    fn link_routines(&mut self, plan: &Plan) -> Result<()> {
        for buffer in &plan.buffers {
            if let BufferKind::Constant(array) = &buffer.kind {
                self.arena.write(buffer.offset, array.bytes())?;
            }
        }
        let commands = self.cuda.commands(plan, self.arena.address())?;
        let fault = self.fault_cell(plan);
        let mut routines = vec![];
        for (routine, commands) in plan.routines.iter().zip(commands) {
            let groups = groups::groups(plan, routine, &commands);
            let overlaps = groups::overlaps(plan, routine, &commands, self.arena.address());
            let steps = Steps { commands, first_write: plan.first_write(routine), groups, overlaps };
            // SAFETY: a plan is verified: every operand has its own live bytes in the arena, to which the commands were
            // linked where it lies now, and which outlives the replays; so do results. The cell lies behind the plan's bytes.
            // Kernels keep to their operands' sizes: operations with kernels are trusted.
            let replay = unsafe { Replay::new(&self.device, &steps, fault, &self.results(plan, routine)) }?;
            routines.push(LinkedRoutine { replay, checks: checks(routine) });
        }
        self.offsets = plan.buffers.iter().map(|buffer| (buffer.offset, buffer.bytes())).collect();
        self.routines = routines;
        Ok(())
    }

    /// The results of a routine that the host is to find after it.
    fn results(&self, plan: &Plan, routine: &PlannedRoutine) -> Vec<(u64, usize)> {
        let placed = routine.outputs.iter().map(|(_, operand)| {
            let start = plan.buffers[operand.buffer].offset + operand.layout.offset * operand.dtype.size();
            (self.arena.address() + start as u64, operand.ty().bytes())
        });
        placed.filter(|&(_, bytes)| (1..=RESULT_BYTES).contains(&bytes)).take(RESULTS).collect()
    }

    /// Takes an arena of another size, with the states of this one, of which there are so many bytes. There are never two
    /// arenas: states wait beside it. If there is no room, the program is left without a plan, its states as they were.
    fn resize(&mut self, bytes: usize, states: usize) -> Result<()> {
        let mut aside = Memory::zeroed(&self.device, states)?;
        aside.copy_from(&self.arena, states)?;
        let before = self.arena.bytes();
        self.arena = Memory::zeroed(&self.device, 0)?;
        let (arena, refused) = match Memory::zeroed(&self.device, bytes) {
            Ok(arena) => (arena, None),
            Err(refused) => (Memory::zeroed(&self.device, before)?, Some(refused)),
        };
        self.arena = arena;
        self.arena.copy_from(&aside, states)?;
        refused.map_or(Ok(()), |refused| Err(refused.into()))
    }

    fn routine(&mut self, routine: usize) -> Result<&mut LinkedRoutine> {
        self.routines.get_mut(routine).ok_or(Error::Unlinked)
    }
}

fn checks(routine: &PlannedRoutine) -> Vec<Option<LinkedCheck>> {
    let steps = routine.steps.iter().map(|step| {
        let check = step.effect().check()?.clone();
        let operand = step.inputs[check.input()].dtype;
        Some(LinkedCheck { check, operand, op: step.op.name(), location: step.location })
    });
    steps.collect()
}

/// What a plan must be to be run here: made for this machine.
fn check_plan(cuda: &Cuda, plan: &Plan) -> Result<()> {
    let first = plan.regions.total() - plan.regions.workers;
    if [plan.alignment, plan.worker_scratch, first].iter().any(|bytes| !bytes.is_multiple_of(cuda.alignment())) {
        let problem =
            format!("its buffers are aligned to {} bytes and must be to {}", plan.alignment, cuda.alignment());
        return Err(Error::OtherMachine { problem });
    }
    for step in plan.routines.iter().flat_map(|routine| &routine.steps) {
        for (position, input) in step.inputs.iter().enumerate() {
            if cuda.reads(step.op.as_ref(), position, input.dtype, &input.layout) != Reading::AsItLies {
                let problem = format!("operand {position} of {} lies as kernels here do not read it", step.op.name());
                return Err(Error::OtherMachine { problem });
            }
        }
        let (needs, shared) = (cuda.scratch(step)?, step.scratch.map_or(0, |scratch| plan.buffers[scratch].bytes()));
        if needs.shared > shared || needs.per_worker > plan.worker_scratch {
            let problem = format!("{} takes more scratch here than it has", step.op.name());
            return Err(Error::OtherMachine { problem });
        }
    }
    Ok(())
}

impl LinkedRoutine {
    fn fault(&self, raised: Option<(u32, u32)>) -> Result<()> {
        let Some((step, detail)) = raised else { return Ok(()) };
        let found = self.checks.get(step as usize).and_then(Option::as_ref);
        let LinkedCheck { check, operand, op, location } =
            found.expect("only steps that look for something raise faults");
        Err(check.error(op, *operand, detail, *location))
    }
}

impl Executable for CudaExecutable {
    fn run(&mut self, routine: usize) -> Result<()> {
        self.last_run = None;
        let linked = self.routine(routine)?;
        let raised = linked.replay.run()?;
        linked.fault(raised)?;
        self.last_run = Some(routine);
        Ok(())
    }

    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()> {
        self.last_run = None;
        let routine = self.routine(routine)?;
        let raised = routine.replay.run_timed(&mut timing.steps)?;
        routine.fault(raised)
    }

    fn relink(&mut self, plan: &Plan) -> Result<()> {
        // All that can be refused is, before anything changes.
        check_plan(&self.cuda, plan)?;
        let bytes = plan.regions.total() + FAULT_CELL;
        // The graphs point to where the arena was; whatever happens now, none of them is left.
        self.routines.clear();
        self.last_run = None;
        self.staging = Staging::new(&self.device, staging_bytes(plan))?;
        if bytes != self.arena.bytes() {
            self.resize(bytes, plan.regions.states)?;
        }
        self.link_routines(plan)
    }

    fn addresses(&self) -> Option<Range<usize>> {
        None
    }

    fn address(&self, buffer: BufferId) -> Option<u64> {
        Some(self.arena.address() + self.offsets[buffer].0 as u64)
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let (offset, length) = self.offsets[buffer];
        assert_eq!(bytes.len(), length, "the bytes of a buffer");
        self.last_run = None;
        Ok(self.staging.write(&mut self.arena, offset, bytes)?)
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        let start = self.offsets[operand.buffer].0 + operand.layout.offset * operand.dtype.size();
        // A look at nothing may start past the end.
        if bytes.is_empty() {
            return Ok(());
        }
        let last_run = self.last_run.and_then(|routine| self.routines.get(routine));
        if last_run.is_some_and(|routine| routine.replay.result(self.arena.address() + start as u64, bytes)) {
            return Ok(());
        }
        Ok(self.arena.read(start, bytes)?)
    }

    fn look(&self, _buffer: BufferId) -> Option<&[u8]> {
        None
    }

    fn look_mut(&mut self, _buffer: BufferId) -> Option<&mut [u8]> {
        None
    }
}
