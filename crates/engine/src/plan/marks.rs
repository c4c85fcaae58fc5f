//! When a replay gives states to others, and when it needs them back: between which steps, once these are in order.

use super::{BufferId, PlannedRoutine, Step};

/// What is due at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The states have their last values: whoever exchanges them may begin.
    Start,
    /// The states are needed: whoever exchanges them must be done.
    Await,
}

/// A place between two steps of a routine at which states begin to be exchanged, or must have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What is due.
    pub moment: Moment,
    /// For which states, by a number that the routines of a program share.
    pub group: usize,
    /// How many steps come before.
    pub at: usize,
    /// The states: no later step touches those that are started, and no earlier one those that are awaited.
    pub buffers: Vec<BufferId>,
}

impl PlannedRoutine {
    /// Puts every mark where it belongs: starts as early, and awaits as late as the order of the steps allows.
    pub(super) fn place_marks(&mut self) {
        let PlannedRoutine { marks, steps, assigns, .. } = self;
        for mark in &mut *marks {
            let new = assigns.iter().filter(|(state, _)| mark.buffers.contains(state)).map(|&(_, new)| new);
            let new: Vec<BufferId> = new.collect();
            let touches = |step: &Step| {
                let touched = step.inputs.iter().chain(&step.outputs).map(|operand| operand.buffer);
                touched.into_iter().any(|buffer| mark.buffers.contains(&buffer) || new.contains(&buffer))
            };
            mark.at = match mark.moment {
                Moment::Start => steps.iter().rposition(touches).map_or(0, |last| last + 1),
                Moment::Await => steps.iter().position(touches).unwrap_or(steps.len()),
            };
        }
        marks.sort_by_key(|mark| mark.at);
    }
}
