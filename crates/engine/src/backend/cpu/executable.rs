//! A plan linked on the CPU.

use super::slices::Panicked;
use super::{Cpu, Linked};
use crate::arena::Arena;
use crate::backend::{Executable, Timing};
use crate::error::Location;
use crate::graph::{Initial, State};
use crate::ops::Check;
use crate::plan::{BufferId, BufferKind, Machine, Operand, Plan, Reading, Scratch, Step};
use crate::{DType, Error, Result};
use gradus_kernels::{Fault, FaultCell, Job};
use std::ops::Range;
use std::time::Duration;

/// Jobs over an arena.
pub(super) struct CpuExecutable {
    /// By routine; the jobs hold addresses in the arena and of the fault cell, so they go first. None, if relinking
    /// failed halfway or a kernel panicked.
    routines: Vec<Vec<LinkedStep>>,
    arena: Arena,
    fault: Box<FaultCell>,
    cpu: Cpu,
    /// Where the workers' scratch begins in the arena, and how many bytes each has.
    worker_scratch: (usize, usize),
    /// Where each buffer lies: offset and bytes.
    offsets: Vec<(usize, usize)>,
    /// A kernel panicked: states may be half written, and no other plan goes on from them.
    half_written: bool,
}

struct LinkedStep {
    jobs: Vec<Box<dyn Job>>,
    /// What its kernels look for in the data, and the element type of the operand that they look at.
    check: Option<(Check, DType)>,
    /// What its kernel said when it panicked, if that is a function from outside.
    panicked: Option<Panicked>,
    op: &'static str,
    location: Location,
}

impl CpuExecutable {
    pub fn link(cpu: &Cpu, plan: &Plan) -> Result<CpuExecutable> {
        check_regions(cpu, plan)?;
        let mut arena = Arena::new(plan.regions.total())?;
        for buffer in &plan.buffers {
            if let BufferKind::State(State { initial: Initial::Numbers(array), .. }) = &buffer.kind {
                arena.bytes_mut(buffer.offset, buffer.bytes()).copy_from_slice(array.bytes());
            }
        }
        let (fault, cpu) = (Box::default(), cpu.clone());
        let (worker_scratch, offsets) = ((0, 0), vec![]);
        let mut executable =
            CpuExecutable { routines: vec![], arena, fault, cpu, worker_scratch, offsets, half_written: false };
        executable.link_routines(plan)?;
        Ok(executable)
    }

    /// Links a plan over the arena, which is of its size and holds its states.
    fn link_routines(&mut self, plan: &Plan) -> Result<()> {
        for buffer in &plan.buffers {
            if let BufferKind::Constant(array) = &buffer.kind {
                self.arena.bytes_mut(buffer.offset, buffer.bytes()).copy_from_slice(array.bytes());
            }
        }
        let mut routines = vec![];
        for routine in &plan.routines {
            let steps = routine.steps.iter().enumerate().map(|(index, step)| self.link_step(plan, index, step));
            routines.push(steps.collect::<Result<Vec<_>>>()?);
        }
        self.worker_scratch = (plan.regions.total() - plan.regions.workers, plan.worker_scratch);
        self.offsets = plan.buffers.iter().map(|buffer| (buffer.offset, buffer.bytes())).collect();
        self.routines = routines;
        Ok(())
    }

    fn link_step(&mut self, plan: &Plan, index: usize, step: &Step) -> Result<LinkedStep> {
        check_layouts(&self.cpu, step)?;
        let looked_at = |check: &Check| (check.clone(), step.inputs[check.input()].dtype);
        let check = step.effect().check().map(looked_at);
        let fault = check.as_ref().map(|_| Fault::new(&*self.fault, index as u32));
        let base = self.arena.at(0);
        let address = |id: BufferId| base.wrapping_add(plan.buffers[id].offset);
        let linked = self.cpu.link_step(step, address, fault)?;
        check_scratch(plan, step, linked.needs())?;
        let Linked { jobs, panicked, .. } = linked;
        Ok(LinkedStep { jobs, check, panicked, op: step.op.name(), location: step.location })
    }
}

/// The workers of this machine, and its alignment, must be those of the plan, or less.
fn check_regions(cpu: &Cpu, plan: &Plan) -> Result<()> {
    let (alignment, workers) = (cpu.alignment(), cpu.workers());
    let first = plan.regions.total() - plan.regions.workers;
    if [plan.alignment, plan.worker_scratch, first].iter().any(|bytes| !bytes.is_multiple_of(alignment)) {
        let problem = format!("its buffers are aligned to {} bytes and must be to {alignment}", plan.alignment);
        return Err(Error::OtherMachine { problem });
    }
    if workers.checked_mul(plan.worker_scratch).is_none_or(|bytes| bytes > plan.regions.workers) {
        let (bytes, each) = (plan.regions.workers, plan.worker_scratch);
        let problem = format!("it has {bytes} bytes of scratch for workers, and {workers} of them take {each} each");
        return Err(Error::OtherMachine { problem });
    }
    Ok(())
}

/// The operands of a step must lie as kernels read them.
fn check_layouts(cpu: &Cpu, step: &Step) -> Result<()> {
    for (position, input) in step.inputs.iter().enumerate() {
        if cpu.reads(step.op.as_ref(), position, input.dtype, &input.layout) != Reading::AsItLies {
            let problem = format!("operand {position} of {} lies as kernels here do not read it", step.op.name());
            return Err(Error::OtherMachine { problem });
        }
    }
    Ok(())
}

/// The scratch that a step takes on this machine must be there.
fn check_scratch(plan: &Plan, step: &Step, needs: Scratch) -> Result<()> {
    let shared = step.scratch.map_or(0, |scratch| plan.buffers[scratch].bytes());
    if needs.shared <= shared && needs.per_worker <= plan.worker_scratch {
        return Ok(());
    }
    let problem = format!("{} takes more scratch here than it has", step.op.name());
    Err(Error::OtherMachine { problem })
}

impl CpuExecutable {
    /// Replays steps of a routine; after each, `done` is told its number.
    fn replay(&mut self, routine: usize, range: Range<usize>, done: &mut dyn FnMut(usize)) -> Result<()> {
        let (scratch, scratch_bytes) = (self.arena.at(self.worker_scratch.0), self.worker_scratch.1);
        let steps = self.routines.get(routine).ok_or(Error::Unlinked)?;
        for (index, step) in steps.iter().enumerate().take(range.end).skip(range.start) {
            for job in &step.jobs {
                // SAFETY: a plan is verified: every operand has its own live bytes in the arena, to which the jobs
                // were linked where it lies now. There is scratch for every worker of the pool. One job runs at a
                // time, and `&mut self` keeps others out of the arena meanwhile.
                unsafe { self.cpu.pool.run(job.as_ref(), scratch, scratch_bytes) };
            }
            if let Some((check, operand)) = &step.check
                && let Some((_, detail)) = self.fault.take()
            {
                return Err(check.error(step.op, *operand, detail, step.location));
            }
            if let Some(message) = step.panicked.as_ref().and_then(|panicked| panicked.get()) {
                let (op, message, at) = (step.op.to_string(), message.clone(), step.location);
                self.half_written = true;
                self.routines.clear();
                return Err(Error::Panicked { op, message, at });
            }
            done(index);
        }
        Ok(())
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, routine: usize) -> Result<()> {
        self.replay(routine, 0..usize::MAX, &mut |_| {})
    }

    fn run_steps(&mut self, routine: usize, steps: Range<usize>) -> Result<()> {
        self.replay(routine, steps, &mut |_| {})
    }

    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()> {
        let cpu = self.cpu.clone();
        let workers = cpu.workers();
        // Allocated by the first replay that is timed, and never again.
        timing.busy.resize(timing.steps.len() * workers, Duration::ZERO);
        cpu.pool.time(true);
        let replayed = self.replay(routine, 0..usize::MAX, &mut timing.stopwatch(|busy| cpu.pool.add_busy(busy)));
        cpu.pool.time(false);
        replayed
    }

    fn relink(&mut self, plan: &Plan) -> Result<()> {
        if self.half_written {
            return Err(Error::Unlinked);
        }
        // All that can be refused is, before anything changes.
        check_regions(&self.cpu, plan)?;
        for step in plan.routines.iter().flat_map(|routine| &routine.steps) {
            check_layouts(&self.cpu, step)?;
            check_scratch(plan, step, self.cpu.scratch(step)?)?;
        }
        let bytes = self.arena.addresses().len();
        self.arena.resize(plan.regions.total())?;
        // The jobs point to where the arena was; whatever happens now, none of them is left.
        self.routines.clear();
        let linked = self.link_routines(plan);
        if linked.is_err() {
            // An operation changed its mind. What the old plan has outside of the replays can still be read.
            self.arena.resize(bytes)?;
        }
        linked
    }

    fn addresses(&self) -> Option<Range<usize>> {
        Some(self.arena.addresses())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let (offset, length) = self.offsets[buffer];
        self.arena.bytes_mut(offset, length).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        // A look at nothing may start past the end.
        if bytes.is_empty() {
            return Ok(());
        }
        let start = self.offsets[operand.buffer].0 + operand.layout.offset * operand.dtype.size();
        bytes.copy_from_slice(self.arena.bytes(start, bytes.len()));
        Ok(())
    }

    fn look(&self, buffer: BufferId) -> Option<&[u8]> {
        let (offset, length) = self.offsets[buffer];
        Some(self.arena.bytes(offset, length))
    }

    fn look_mut(&mut self, buffer: BufferId) -> Option<&mut [u8]> {
        let (offset, length) = self.offsets[buffer];
        Some(self.arena.bytes_mut(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Options;
    use crate::{Routine, Trace};

    #[test]
    fn what_was_left_without_jobs_does_not_run() {
        let trace = Trace::new();
        let w = trace.zero_state("w", DType::F32, [3]);
        let cpu = Cpu::new(1).unwrap();
        let plan = trace.plan(&cpu, &[Routine::new("r").assign(&w, &(&w + 1.0))], Options::default()).unwrap();
        let mut executable = CpuExecutable::link(&cpu, &plan).unwrap();
        executable.routines.clear();
        assert!(matches!(executable.run(0), Err(Error::Unlinked)));
        executable.relink(&plan).unwrap();
        executable.run(0).unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(executable.look(0).unwrap()), [1.0; 3]);
    }
}
