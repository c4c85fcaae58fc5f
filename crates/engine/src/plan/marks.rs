//! When a replay gives states or other values to others, and when it needs states back: between which steps, once these are in
//! order.

use super::{BufferId, Operand, PlannedRoutine, Step};

/// What is due at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The states have their last values, and what is given is there: whoever exchanges them may begin.
    Start,
    /// The states are needed: whoever exchanges them must be done.
    Await,
}

/// A place between two steps of a routine at which states begin to be exchanged, or must have been.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What is due.
    pub moment: Moment,
    /// For which states, by a number that the routines of a program share.
    pub group: usize,
    /// How many steps come before.
    pub at: usize,
    /// The states: no later step touches those that are started, and no earlier one those that are awaited.
    pub buffers: Vec<BufferId>,
    /// What is given away: it lies there at the mark, to be read at once, and not any longer than steps need it.
    pub given: Vec<Operand>,
}

impl PlannedRoutine {
    /// Puts every mark where it belongs.
    pub(super) fn place_marks(&mut self) {
        let due = self.due();
        self.marks.iter_mut().zip(due).for_each(|(mark, due)| mark.at = due);
        self.marks.sort_by_key(|mark| mark.at);
    }

    /// By mark, how many steps come before: starts are as early, and awaits as late as the order of the steps allows. Values are given
    /// in the order of their marks, since all that exchange must do so in the same one.
    pub(super) fn due(&self) -> Vec<usize> {
        let PlannedRoutine { marks, steps, assigns, .. } = self;
        let mut given_before = 0;
        let due = |mark: &Mark| {
            let new = assigns.iter().filter(|(state, _)| mark.buffers.contains(state)).map(|&(_, new)| new);
            let new: Vec<BufferId> = new.collect();
            let touches = |step: &Step| {
                let touched = step.inputs.iter().chain(&step.outputs).map(|operand| operand.buffer);
                touched.into_iter().any(|buffer| mark.buffers.contains(&buffer) || new.contains(&buffer))
            };
            let makes = |step: &Step| {
                mark.given.iter().any(|given| step.outputs.iter().any(|output| output.buffer == given.buffer))
            };
            if mark.moment == Moment::Await {
                return steps.iter().position(touches).unwrap_or(steps.len());
            }
            let due = steps.iter().rposition(|step| touches(step) || makes(step)).map_or(0, |last| last + 1);
            if mark.given.is_empty() {
                return due;
            }
            given_before = due.max(given_before);
            given_before
        };
        marks.iter().map(due).collect()
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

    const DEPTH: usize = 8;

    /// The gradients of a deeper network: a routine that gives them away, from the last layer to the first, and looks whether a number is
    /// finite; and one that gives them as outputs.
    fn giving(trace: &Trace) -> [Routine; 2] {
        let weights: Vec<Tensor> =
            (0..DEPTH).map(|layer| trace.zero_state(&format!("w.{layer}"), DType::F32, [32, 32])).collect();
        let x = trace.input("x", DType::F32, [4, 32]);
        let y = weights.iter().fold(x, |x, weight| (x.matmul(weight) + 0.5).tanh());
        let slopes = gradient(&(&y * &y).sum(&[0, 1]), &weights.iter().collect::<Vec<_>>()).unwrap();
        let rate = trace.input("rate", DType::F32, []).check_finite("the rate");
        let kept = trace.zero_state("part", DType::F32, [16]);
        let gives = |routine: Routine, layer: usize| routine.gives(layer, &[], &slopes[layer..=layer]);
        let gives = (0..DEPTH).rev().fold(Routine::new("gives"), gives).output("rate", &rate);
        // A state that others write from then on.
        let gives = gives.gives(DEPTH, &[kept], &[]);
        let keeps = |routine: Routine, layer: usize| routine.output(&format!("slope.{layer}"), &slopes[layer]);
        [gives, (0..DEPTH).fold(Routine::new("keeps"), keeps)]
    }

    fn bytes_of_routine(which: usize) -> usize {
        let (trace, cpu) = (Trace::new(), Cpu::new(1).unwrap());
        trace.plan(&cpu, &giving(&trace)[which..=which], Options::default()).unwrap().regions.transients
    }

    #[test]
    fn what_is_given_away_is_there_at_its_mark_and_takes_no_memory_afterwards() {
        let (gives, keeps) = (bytes_of_routine(0), bytes_of_routine(1));
        assert!(keeps >= DEPTH * 32 * 32 * size_of::<f32>() && 2 * gives < keeps, "{gives} and {keeps}");
        for options in [Options::default(), Options { reorder: false, in_place: false, ..Options::default() }] {
            let (trace, cpu) = (Trace::new(), Cpu::new(2).unwrap());
            let plan = trace.plan(&cpu, &giving(&trace), options).unwrap();
            let mut program = Program::link(plan, &cpu).unwrap();
            let numbers: Vec<f32> = (0..1024).map(|at| (at as f32 * 0.37).sin() * 0.1).collect();
            (0..DEPTH).for_each(|layer| program.write(&format!("w.{layer}")[..], &numbers).unwrap());
            program.write("x", &numbers[..128]).unwrap();
            program.write("rate", &[0.1f32]).unwrap();
            program.run("keeps").unwrap();
            let slopes: Vec<Vec<u8>> = (0..DEPTH)
                .map(|layer| program.look(&format!("slope.{layer}")[..]).unwrap().unwrap().to_vec())
                .collect();
            assert!(slopes.iter().flatten().any(|byte| *byte != 0));
            let mut groups = vec![];
            let at = |program: &mut Program, _: Moment, group: usize| {
                if group < DEPTH {
                    assert!(program.given("gives", group, 0)?.unwrap() == slopes[group], "group {group}");
                }
                groups.push(group);
                Ok(())
            };
            program.run_marked::<Error>("gives", at).unwrap();
            // The state's mark has no value to wait for.
            groups.retain(|group| *group < DEPTH);
            assert_eq!(groups, Vec::from_iter((0..DEPTH).rev()));
            let problem = program.given("gives", 0, 1).unwrap_err().to_string();
            assert!(problem.contains("gives no value 1 for group 0"), "{problem}");
            // What may fault comes before the first is given away.
            program.write("rate", &[f32::NAN]).unwrap();
            let mut given = 0;
            let at = |_: &mut Program, _: Moment, group: usize| {
                given += usize::from(group < DEPTH);
                Ok(())
            };
            assert!(matches!(program.run_marked("gives", at), Err(Error::NonFinite { .. })));
            assert_eq!(given, 0);
        }
    }

    #[test]
    fn what_is_not_there_any_more_cannot_be_given_away() {
        let (trace, cpu) = (Trace::new(), Cpu::new(1).unwrap());
        let plan = trace.plan(&cpu, &giving(&trace)[..1], Options::default()).unwrap();
        let refused = |corrupt: &dyn Fn(&mut PlannedRoutine)| {
            let mut parts = Parts::clone(&plan);
            corrupt(&mut parts.routines[0]);
            parts.routines[0].marks.sort_by_key(|mark| mark.at);
            Plan::new(parts).err().unwrap_or_default()
        };
        let marks = &plan.routines[0].marks;
        for (index, mark) in marks.iter().enumerate().filter(|(_, mark)| !mark.given.is_empty()) {
            let makes = plan.routines[0].steps.iter().position(|step| step.outputs[0].buffer == mark.given[0].buffer);
            let early = refused(&|routine| routine.marks[index].at = makes.unwrap());
            assert!(early.contains("does not hold its value"), "{index}: {early:?}");
        }
        let first = marks.iter().position(|mark| !mark.given.is_empty()).unwrap();
        let late = refused(&|routine| routine.marks[first].at = routine.steps.len());
        assert!(late.contains(&format!("what it gives for group {}: buffer", DEPTH - 1)), "{late:?}");
        let elsewhere = refused(&|routine| routine.marks[first].given[0].layout.offset = 1);
        assert!(elsewhere.contains("reaches past buffer"), "{elsewhere:?}");
        let looks = plan.routines[0].steps.iter().position(|step| step.effect().check().is_some()).unwrap();
        let fault = refused(&|routine| {
            let step = routine.steps.remove(looks);
            routine.steps.push(step);
            routine.marks.iter_mut().filter(|mark| mark.at > looks).for_each(|mark| mark.at -= 1);
        });
        assert!(fault.contains("something was given away"), "{fault:?}");
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
