//! Which steps may end a replay because the data are bad. Nothing may be written to a state before the last of them.

use super::{BufferId, Operand, Step};
use crate::Layout;
use crate::ops::{Check, Effect};

/// What a step looks for, and in which numbers: two that look for the same in the same numbers end alike.
#[derive(PartialEq)]
struct Look {
    buffer: BufferId,
    layout: Layout,
    bound: Option<(usize, Option<i32>)>,
}

impl Look {
    fn of(step: &Step) -> Option<Look> {
        let Effect::Faults(check) = step.effect() else { return None };
        let Operand { buffer, layout, .. } = step.inputs[check.input()].clone();
        // The same numbers may be seen in several shapes.
        let layout = layout.reshaped(&[layout.shape.elements()].into()).unwrap_or(layout);
        let bound = match check {
            Check::Indices { bound, ignored, .. } => Some((bound, ignored)),
            Check::Finite { .. } => None,
        };
        Some(Look { buffer, layout, bound })
    }
}

/// By step: the first that looks for the same in the same numbers, which may be the step itself; `None` if it looks for
/// nothing.
pub(super) fn first_looks(steps: &[Step]) -> Vec<Option<usize>> {
    let mut known: Vec<(Look, usize)> = vec![];
    let first = |(index, step): (usize, &Step)| {
        let look = Look::of(step)?;
        if let Some((_, first)) = known.iter().find(|(earlier, _)| *earlier == look) {
            return Some(*first);
        }
        known.push((look, index));
        Some(index)
    };
    steps.iter().enumerate().map(first).collect()
}

/// The last step that may end the replay: one that looks for something new and does not occur again.
pub(super) fn last_that_may_fault(steps: &[Step]) -> Option<usize> {
    let first = first_looks(steps);
    (0..steps.len()).rev().find(|&index| first[index] == Some(index) && !steps[index].again)
}
