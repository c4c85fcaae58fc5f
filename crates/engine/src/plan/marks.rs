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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::plan::verify::{verify_after, verify_between};
    use crate::plan::{Options, Parts, Plan};
    use crate::{DType, Error, Program, Routine, Tensor, Trace, gradient};

    const LAYERS: usize = 3;

    /// A small network: a routine that leaves the gradients of its layers in states, and one that updates from these, with these states.
    fn routines(trace: &Trace) -> ([Routine; 2], Vec<Tensor>) {
        let state = |name: &str, layer: usize| trace.zero_state(&format!("{name}.{layer}"), DType::F32, [8, 8]);
        let weights: Vec<Tensor> = (0..LAYERS).map(|layer| state("w", layer)).collect();
        let sums: Vec<Tensor> = (0..LAYERS).map(|layer| state("sum", layer)).collect();
        let x = trace.input("x", DType::F32, [4, 8]);
        let y = weights.iter().fold(x, |x, weight| (x.matmul(weight) + 0.5).tanh());
        let slopes = gradient(&(&y * &y).sum(&[0, 1]), &weights.iter().collect::<Vec<_>>()).unwrap();
        let mut first = Routine::new("first");
        let rate = trace.input("rate", DType::F32, []).check_finite("the rate");
        let mut update = Routine::new("update").output("rate", &rate).apart();
        for layer in 0..LAYERS {
            let (weight, sum) = (&weights[layer], &sums[layer]);
            first = first.assign(sum, &slopes[layer]).starts(layer, &sums[layer..=layer]);
            first = first.awaits(layer, &[weight.clone(), sum.clone()]);
            update = update.assign(weight, &(weight - sum * &rate)).awaits(layer, &sums[layer..=layer]);
        }
        ([first, update], sums)
    }

    fn planned() -> (Cpu, Plan) {
        let (trace, cpu) = (Trace::new(), Cpu::new(1).unwrap());
        let plan = trace.plan(&cpu, &routines(&trace).0, Options::default()).unwrap();
        (cpu, plan)
    }

    #[test]
    fn starts_are_early_and_awaits_late() {
        let (_, plan) = planned();
        let marks = |routine: usize, moment: Moment| -> Vec<(usize, usize)> {
            let marks = plan.routines[routine].marks.iter().filter(|mark| mark.moment == moment);
            marks.map(|mark| (mark.group, mark.at)).collect()
        };
        let (awaits, starts) = (marks(0, Moment::Await), marks(0, Moment::Start));
        assert_eq!(awaits.iter().map(|(group, _)| *group).collect::<Vec<_>>(), [0, 1, 2], "forward");
        assert_eq!(starts.iter().map(|(group, _)| *group).collect::<Vec<_>>(), [2, 1, 0], "backward");
        assert!(awaits.windows(2).all(|pair| pair[0].1 < pair[1].1) && awaits[0].1 == 0);
        assert!(starts.windows(2).all(|pair| pair[0].1 < pair[1].1) && starts[2].1 == plan.routines[0].steps.len());
        verify_between(&plan, &plan.routines[1], &plan.routines[0]).unwrap();
    }

    #[test]
    fn what_touches_what_is_in_flight_is_refused() {
        let (_, plan) = planned();
        let refused = |corrupt: &dyn Fn(&mut Parts)| {
            let mut parts = Parts::clone(&plan);
            corrupt(&mut parts);
            Plan::new(parts).err().unwrap_or_default()
        };
        for (routine, mark) in (0..2).flat_map(|routine| (0..2 * LAYERS).map(move |mark| (routine, mark))) {
            let Some(Mark { moment, at, .. }) = plan.routines[routine].marks.get(mark).cloned() else { continue };
            // A step earlier it is still being written, and a step later it is touched already.
            let moved = if moment == Moment::Start { at - 1 } else { at + 1 };
            let problem = refused(&|parts| {
                parts.routines[routine].marks[mark].at = moved;
                parts.routines[routine].marks.sort_by_key(|mark| mark.at);
            });
            assert!(problem.contains("that are in flight"), "{routine} {mark}: {problem:?}");
        }
        let late = refused(&|parts| parts.routines[0].marks[0].at = 1000);
        assert!(late.contains("its marks are not in the order of its steps"), "{late}");
        let transient = plan.routines[0].steps[0].outputs[0].buffer;
        let no_state = refused(&|parts| parts.routines[0].marks[0].buffers = vec![transient]);
        assert!(no_state.contains("something that is no state"), "{no_state}");
        let over = refused(&|parts| parts.routines[0].apart = true);
        assert!(over.is_empty(), "both may be apart: {over}");
        let own = plan.routines[1].outputs[0].1.buffer;
        let over = refused(&|parts| parts.buffers[own].offset = parts.buffers[transient].offset);
        assert!(over.contains("is apart, and \"first\" lies over its transients"), "{over}");
    }

    #[test]
    fn what_a_routine_needs_before_it_awaits_it_cannot_come_later() {
        let (_, plan) = planned();
        let mut first = plan.routines[0].clone();
        first.marks.retain(|mark| mark.group != 1);
        let problem = verify_between(&plan, &plan.routines[1], &first).unwrap_err();
        assert!(problem.contains("needs what \"update\" does for group 1"), "{problem}");
        assert!(verify_between(&plan, &first, &plan.routines[1]).unwrap_err().contains("is not apart"));
    }

    #[test]
    fn what_follows_each_start_must_be_done_with_there() {
        let (trace, cpu) = (Trace::new(), Cpu::new(1).unwrap());
        let ([first, _], sums) = routines(&trace);
        let kept = |layer: usize| trace.zero_state(&format!("kept.{layer}"), DType::F32, [8, 8]);
        let joining = (0..LAYERS).rev().fold(Routine::new("join").apart(), |routine, layer| {
            let sum = &sums[layer];
            routine.assign(sum, &(kept(layer) + sum)).starts(layer, &sums[layer..=layer])
        });
        let plan = trace.plan(&cpu, &[first, joining], Options::default()).unwrap();
        let [first, joining] = &plan.routines[..] else { panic!("two routines") };
        verify_after(&plan, joining, first).unwrap();
        assert!(verify_after(&plan, first, joining).unwrap_err().contains("is not apart"));
        let mut early = first.clone();
        early.marks.iter_mut().filter(|mark| mark.moment == Moment::Start).for_each(|mark| mark.at = 0);
        let problem = verify_after(&plan, joining, &early).unwrap_err();
        assert!(problem.contains("touches what \"join\" does for group"), "{problem}");
        let mut fewer = first.clone();
        fewer.marks.retain(|mark| mark.group != 1);
        assert!(verify_after(&plan, joining, &fewer).unwrap_err().contains("does not start group 1"));
    }

    #[test]
    fn an_update_between_the_steps_of_the_next_gives_the_same_bits() {
        let numbers: Vec<f32> = (0..64).map(|at| (at as f32 * 0.37).sin()).collect();
        let begun = || {
            let (cpu, plan) = planned();
            let mut program = Program::link(plan, &cpu).unwrap();
            (0..LAYERS).for_each(|layer| program.write(&format!("w.{layer}")[..], &numbers).unwrap());
            program.write("x", &numbers[..32]).unwrap();
            program.write("rate", &[0.1f32]).unwrap();
            program
        };
        let weights = |program: &Program| [0, 1, 2].map(|layer| program.read(&format!("w.{layer}")[..]).unwrap());
        let mut whole = begun();
        for _ in 0..3 {
            whole.run("first").unwrap();
            whole.run("update").unwrap();
        }
        let mut cut = begun();
        cut.run("first").unwrap();
        for _ in 0..2 {
            let pieces: Vec<(usize, usize)> =
                cut.plan().routines[1].marks.iter().map(|mark| (mark.group, mark.at)).collect();
            let steps = cut.plan().routines[1].steps.len();
            cut.run_steps("update", 0..pieces[0].1).unwrap();
            assert_eq!(cut.scalar("rate").unwrap(), 0.1);
            let mut started = vec![];
            let at = |program: &mut Program, moment: Moment, group: usize| match moment {
                Moment::Await => {
                    let end = pieces.get(group + 1).map_or(steps, |(_, at)| *at);
                    program.run_steps("update", pieces[group].1..end)
                }
                Moment::Start => {
                    started.push(group);
                    Ok(())
                }
            };
            cut.run_marked::<Error>("first", at).unwrap();
            assert_eq!(started, [2, 1, 0]);
        }
        cut.run("update").unwrap();
        assert_eq!(weights(&whole), weights(&cut));
    }
}
