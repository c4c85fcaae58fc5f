//! Where the new value of each state is written: over the old one at once, where nobody needs that any more and no check
//! is still to come; else aside, and copied at the end.

use crate::graph::Part;
use crate::ops::Elementwise;
use crate::plan::checks::last_that_may_fault;
use crate::plan::lower::Buffers;
use crate::plan::{BufferId, BufferKind, Operand, Options, PlannedRoutine, Step, covers_all_reads};
use std::sync::Arc;

/// Settles every assignment of a routine that is in order: from now on each new value lies at its state's own address.
pub(super) fn settle(routine: &mut PlannedRoutine, buffers: &mut Buffers, options: Options) {
    let liveness = routine.liveness(buffers.all.len());
    let last_check = last_that_may_fault(&routine.steps);
    for assign in 0..routine.assigns.len() {
        let (state, new) = routine.assigns[assign];
        let written = liveness.first(new).expect("a new value has a step");
        let is_safe = last_check.is_none_or(|check| check < written);
        let may_write_over = match liveness.last(state) {
            None => true,
            Some(read) if read < written => true,
            Some(read) if read == written => {
                options.in_place && covers_all_reads(&routine.steps[written], state, new, &buffers.all)
            }
            Some(_) => false,
        };
        if !is_safe || !may_write_over {
            routine.assigns[assign].1 = copied_at_the_end(routine, new, buffers);
        }
    }
}

fn copied_at_the_end(routine: &mut PlannedRoutine, value: BufferId, buffers: &mut Buffers) -> BufferId {
    let ty = buffers.all[value].ty.clone();
    let copy = buffers.add(BufferKind::Transient, ty.clone());
    routine.steps.push(Step {
        inputs: vec![Operand::dense(value, &ty)],
        outputs: vec![Operand::dense(copy, &ty)],
        location: routine.steps.last().expect("a new value has a step").location,
        op: Arc::new(Elementwise::dense_copy(ty)),
        scratch: None,
        seconds: 0.0,
        part: Part::default(),
        again: false,
    });
    copy
}
