//! From when to when each buffer is needed. Whoever asks that (order, recomputation, memory, reports) asks here.

use super::{BufferId, Plan};

/// When buffers are needed, by the numbers of steps in some order.
pub(super) struct Liveness {
    first: Vec<usize>,
    last: Vec<usize>,
}

/// What is never written, or never read.
const NEVER: usize = usize::MAX;

impl Liveness {
    /// Of nothing yet, for so many buffers.
    pub fn new(buffers: usize) -> Liveness {
        Liveness { first: vec![NEVER; buffers], last: vec![NEVER; buffers] }
    }

    /// A step reads a buffer. Steps are told in their order.
    pub fn read(&mut self, buffer: BufferId, step: usize) {
        self.last[buffer] = step;
    }

    /// A step writes a buffer.
    pub fn written(&mut self, buffer: BufferId, step: usize) {
        if self.first[buffer] == NEVER {
            self.first[buffer] = step;
        }
    }

    /// Someone needs a buffer when all steps are done.
    pub fn kept(&mut self, buffer: BufferId, steps: usize) {
        self.last[buffer] = steps;
    }

    /// Someone takes what a buffer holds when so many steps are done. It is not told from who needs it for one step more, since the last
    /// of those could lay its result over it.
    pub fn taken(&mut self, buffer: BufferId, steps: usize) {
        self.last[buffer] = self.last(buffer).map_or(steps, |last| last.max(steps));
    }

    /// The step that writes a buffer first, if one does.
    pub fn first(&self, buffer: BufferId) -> Option<usize> {
        Some(self.first[buffer]).filter(|&step| step != NEVER)
    }

    /// The last step that reads a buffer, or how many steps there are if it is needed afterwards.
    pub fn last(&self, buffer: BufferId) -> Option<usize> {
        Some(self.last[buffer]).filter(|&step| step != NEVER)
    }

    /// The last step at which a buffer holds anything of use: what is never read is gone where it is written.
    pub fn end(&self, buffer: BufferId) -> Option<usize> {
        self.last(buffer).or(self.first(buffer))
    }

    /// Whether a step is the last that reads a buffer.
    pub fn ends_at(&self, buffer: BufferId, step: usize) -> bool {
        self.last[buffer] == step
    }
}

/// When a buffer is needed, by the numbers of a routine's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Which buffer.
    pub buffer: BufferId,
    /// The step that writes it.
    pub first: usize,
    /// The last step that reads it, or the last of all if the caller does.
    pub last: usize,
}

impl Plan {
    /// The lifetimes of everything that a routine makes, scratch included, in the order of the steps.
    pub fn lifetimes(&self, routine: usize) -> Vec<Lifetime> {
        let routine = &self.routines[routine];
        let liveness = routine.liveness(self.buffers.len());
        let end = routine.steps.len().saturating_sub(1);
        let mut lifetimes: Vec<Lifetime> = vec![];
        for buffer in 0..self.buffers.len() {
            if let (Some(first), Some(last)) = (liveness.first(buffer), liveness.end(buffer)) {
                lifetimes.push(Lifetime { buffer, first, last: last.min(end) });
            }
        }
        lifetimes.sort_by_key(|lifetime| lifetime.first);
        lifetimes
    }
}

impl super::PlannedRoutine {
    /// When its buffers are needed.
    pub(super) fn liveness(&self, buffers: usize) -> Liveness {
        let mut liveness = Liveness::new(buffers);
        for (at, step) in self.steps.iter().enumerate() {
            step.inputs.iter().for_each(|input| liveness.read(input.buffer, at));
            let written = step.outputs.iter().map(|output| output.buffer);
            written.chain(step.scratch).for_each(|buffer| liveness.written(buffer, at));
        }
        for (mark, due) in self.marks.iter().zip(self.due()) {
            mark.given.iter().for_each(|given| liveness.taken(given.buffer, due));
        }
        let given = self.outputs.iter().map(|(_, output)| output.buffer);
        let assigned = self.assigns.iter().map(|&(_, new)| new);
        given.chain(assigned).for_each(|buffer| liveness.kept(buffer, self.steps.len()));
        liveness
    }
}
