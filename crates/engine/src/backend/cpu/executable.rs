//! A plan linked on the CPU.

use super::linker::Blame;
use super::{Cpu, Fault};
use crate::arena::Arena;
use crate::backend::Executable;
use crate::error::Place;
use crate::graph::Initial;
use crate::plan::{BufferId, BufferKind, Operand, Plan};
use crate::{Error, Result};
use gradus_kernels::{FaultCell, Job};
use std::ops::Range;

/// Jobs over an arena.
pub(super) struct CpuExecutable {
    /// By routine; the jobs hold addresses in the arena and of the fault cell, so they go first.
    routines: Vec<Vec<LinkedStep>>,
    arena: Arena,
    fault: Box<FaultCell>,
    cpu: Cpu,
    worker_scratch: *mut u8,
    worker_scratch_bytes: usize,
    /// Where each buffer lies: offset and bytes.
    places: Vec<(usize, usize)>,
}

struct LinkedStep {
    jobs: Vec<Box<dyn Job>>,
    /// How to report what the step's kernels may find wrong with the data.
    blame: Option<Blame>,
    op: &'static str,
    place: Place,
}

// SAFETY: the raw pointer is into the arena, which moves along; nothing of it is bound to a thread.
unsafe impl Send for CpuExecutable {}

impl CpuExecutable {
    pub fn link(cpu: &Cpu, plan: &Plan) -> Result<CpuExecutable> {
        let mut arena = Arena::new(plan.regions.total())?;
        for buffer in &plan.buffers {
            if let BufferKind::State(_, Initial::Numbers(array)) = &buffer.kind {
                arena.bytes_mut(buffer.offset, buffer.bytes()).copy_from_slice(array.bytes());
            }
        }
        CpuExecutable::over(arena, cpu, plan)
    }

    /// Links a plan over an arena that holds its states.
    fn over(mut arena: Arena, cpu: &Cpu, plan: &Plan) -> Result<CpuExecutable> {
        for buffer in &plan.buffers {
            if let BufferKind::Constant(array) = &buffer.kind {
                arena.bytes_mut(buffer.offset, buffer.bytes()).copy_from_slice(array.bytes());
            }
        }
        let fault = Box::new(FaultCell::default());
        let base = arena.at(0);
        let mut routines = vec![];
        for routine in &plan.routines {
            let mut steps = vec![];
            for (index, step) in routine.steps.iter().enumerate() {
                let linked = cpu.link_step(step, &plan.buffers, Some(base), Fault { cell: &fault, step: index })?;
                let planned = step.scratch.map_or(0, |scratch| plan.buffers[scratch].bytes());
                assert!(linked.scratch <= planned, "{} asks for more scratch than it said", step.op.kind().name());
                for job in &linked.jobs {
                    assert!(job.worker_scratch() <= plan.worker_scratch, "{} likewise", step.op.kind().name());
                }
                let (jobs, blame) = (linked.jobs, linked.blame);
                steps.push(LinkedStep { jobs, blame, op: step.op.kind().name(), place: step.place });
            }
            routines.push(steps);
        }
        let worker_scratch = arena.at(plan.regions.total() - plan.regions.workers);
        Ok(CpuExecutable {
            routines,
            arena,
            fault,
            cpu: cpu.clone(),
            worker_scratch,
            worker_scratch_bytes: plan.worker_scratch,
            places: plan.buffers.iter().map(|buffer| (buffer.offset, buffer.bytes())).collect(),
        })
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, routine: usize, done: &mut dyn FnMut(usize)) -> Result<()> {
        for (index, step) in self.routines[routine].iter().enumerate() {
            for job in &step.jobs {
                // SAFETY: the plan gave every operand its own live bytes in the arena (verified in debug builds),
                // one job runs at a time, and `&mut self` keeps others out of the arena meanwhile.
                unsafe { self.cpu.pool.run(job.as_ref(), self.worker_scratch, self.worker_scratch_bytes) };
            }
            if let Some(blame) = &step.blame
                && let Some((_, detail)) = self.fault.take()
            {
                return Err(blame.error(step.op, detail, step.place));
            }
            done(index);
        }
        Ok(())
    }

    fn relink(&mut self, plan: &Plan) -> Result<()> {
        let nothing = Arena::new(0)?;
        self.arena.resize(plan.regions.total())?;
        let arena = std::mem::replace(&mut self.arena, nothing);
        *self = CpuExecutable::over(arena, &self.cpu.clone(), plan)?;
        Ok(())
    }

    fn addresses(&self) -> Option<Range<usize>> {
        Some(self.arena.addresses())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) {
        let (offset, length) = self.places[buffer];
        self.arena.bytes_mut(offset, length).copy_from_slice(bytes);
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) {
        // A look at nothing may start past the end.
        if bytes.is_empty() {
            return;
        }
        let start = self.places[operand.buffer].0 + operand.layout.offset * operand.dtype.size();
        bytes.copy_from_slice(self.arena.bytes(start, bytes.len()));
    }

    fn look(&self, buffer: BufferId) -> Option<&[u8]> {
        let (offset, length) = self.places[buffer];
        Some(self.arena.bytes(offset, length))
    }

    fn look_mut(&mut self, buffer: BufferId) -> Option<&mut [u8]> {
        let (offset, length) = self.places[buffer];
        Some(self.arena.bytes_mut(offset, length))
    }
}

impl Blame {
    fn error(&self, op: &str, detail: u32, at: Place) -> Error {
        match self {
            Blame::Index { bound } => {
                Error::Index { op: op.to_string(), index: detail as i32 as i64, bound: *bound, at }
            }
            Blame::NonFinite { name } => Error::NonFinite { name: name.clone(), element: detail as usize, at },
        }
    }
}
