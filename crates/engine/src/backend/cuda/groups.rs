//! Which steps of a routine may run side by side: neighbours that touch nothing that another of them writes. Many steps are
//! too small to fill a GPU (updates of small weights, sums, conversions), and so fill it together. And which may begin while the
//! one before still runs.

use crate::plan::{BufferId, Plan, PlannedRoutine, Step};
use gradus_cuda::Command;
use std::ops::Range;

/// The bytes of the arena that a step touches.
#[derive(Default)]
struct Touched {
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
}

impl Touched {
    fn by(plan: &Plan, step: &Step, commands: &[Command]) -> Touched {
        let bytes = |id: BufferId| plan.buffers[id].offset..plan.buffers[id].offset + plan.buffers[id].bytes();
        let mut writes: Vec<_> = step.outputs.iter().map(|output| bytes(output.buffer)).collect();
        writes.extend(step.scratch.map(bytes));
        // Products share one workspace.
        if commands.iter().any(|command| matches!(command, Command::Product(_))) {
            let total = plan.regions.total();
            writes.push(total - plan.regions.workers..total);
        }
        Touched { reads: step.inputs.iter().map(|input| bytes(input.buffer)).collect(), writes }
    }

    /// Whether the order of two steps matters.
    fn conflicts(&self, other: &Touched) -> bool {
        let meet = |a: &[Range<usize>], b: &[Range<usize>]| {
            a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
        };
        meet(&self.writes, &other.writes) || meet(&self.writes, &other.reads) || meet(&self.reads, &other.writes)
    }
}

/// The sizes of the groups, from the first step to the last; the commands are those of each step.
pub(super) fn groups(plan: &Plan, routine: &PlannedRoutine, commands: &[Vec<Command>]) -> Vec<usize> {
    let first_write = plan.first_write(routine);
    let mut groups: Vec<usize> = vec![];
    let mut group: Vec<Touched> = vec![];
    for (index, (step, commands)) in routine.steps.iter().zip(commands).enumerate() {
        let touched = Touched::by(plan, step, commands);
        if index == first_write || group.iter().any(|other| other.conflicts(&touched)) {
            groups.extend((!group.is_empty()).then_some(group.len()));
            group.clear();
        }
        group.push(touched);
    }
    groups.extend((!group.is_empty()).then_some(group.len()));
    groups
}

/// For every step, whether its first kernel may begin while the step before runs: what it reads before it waits, that one does
/// not write. The commands are linked to an arena at this address.
pub(super) fn overlaps(plan: &Plan, routine: &PlannedRoutine, commands: &[Vec<Command>], arena: u64) -> Vec<bool> {
    let mut before: Vec<Range<u64>> = vec![];
    let steps = routine.steps.iter().zip(commands).map(|(step, commands)| {
        let Some(first) = commands.first() else { return false };
        let is_written = |read: &Range<u64>| before.iter().any(|w| w.start < read.end && read.start < w.end);
        let early = first.launch().and_then(|launch| launch.early.as_ref());
        let overlaps = early.is_some_and(|early| !early.iter().any(is_written));
        let writes = Touched::by(plan, step, commands).writes.into_iter();
        before = writes.map(|bytes| arena + bytes.start as u64..arena + bytes.end as u64).collect();
        overlaps
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Cuda, GpuKind};
    use crate::plan::Options;
    use crate::{DType, Routine, Trace};

    #[test]
    fn what_does_not_depend_on_each_other_runs_side_by_side() {
        let trace = Trace::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| trace.zero_state(name, DType::F32, [100]));
        let x = trace.input("x", DType::F32, [100]);
        let step = Routine::new("step").assign(&a, &(&a + &x)).assign(&b, &(&b * &x)).assign(&c, &(&c + &a));
        let cuda = Cuda::of_kind(GpuKind::H200);
        let plan = trace.plan(&cuda, &[step], Options::default()).unwrap();
        let routine = &plan.routines[0];
        let sizes = groups(&plan, routine, &cuda.commands(&plan, 1 << 32).unwrap()[0]);
        assert_eq!(sizes.iter().sum::<usize>(), routine.steps.len());
        assert!(sizes.len() > 1, "what reads a state comes before what writes it: {sizes:?}");
        assert!(sizes.len() < routine.steps.len(), "{sizes:?}");
    }

    #[test]
    fn what_is_read_early_was_not_written_just_before() {
        let trace = Trace::new();
        let x = trace.input("x", DType::Bf16, [64, 128]);
        let [w, g] = [("w", [128, 128]), ("g", [128, 64])].map(|(name, shape)| trace.input(name, DType::Bf16, shape));
        let kinds = [x.relu().matmul(&w), x.matmul(&g.relu())].map(|y| {
            let cuda = Cuda::of_kind(GpuKind::H200);
            let plan = trace.plan(&cuda, &[Routine::new("r").output("y", &y)], Options::default()).unwrap();
            let commands = cuda.commands(&plan, 1 << 32).unwrap().remove(0);
            overlaps(&plan, &plan.routines[0], &commands, 1 << 32)
        });
        assert_eq!(kinds, [[true, true], [true, false]]);
    }
}
