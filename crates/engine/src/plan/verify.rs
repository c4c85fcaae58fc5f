//! Checks a plan by following what every byte holds, step by step. It shares no code with the planner: what it
//! accepts is right whatever the planner meant.

use super::{Buffer, BufferId, Operand, Plan, Routine, Step};
use std::collections::BTreeMap;

type Verdict = std::result::Result<(), String>;

/// Checks every routine of a plan.
pub fn verify(plan: &Plan) -> Verdict {
    for routine in &plan.routines {
        Check::of(plan).routine(routine).map_err(|problem| format!("routine {:?}: {problem}", routine.name))?;
    }
    Ok(())
}

/// Checks a routine that has no addresses yet: every step reads what an earlier one wrote or what persists, and its
/// operation's rule gives the types that are written down.
pub(super) fn verify_draft(routine: &Routine, buffers: &[Buffer]) -> Verdict {
    let mut written = vec![false; buffers.len()];
    let has_value = |written: &[bool], id: BufferId| written[id] || buffers[id].kind.is_persistent();
    for (index, step) in routine.steps.iter().enumerate() {
        let about = |problem: String| format!("step {index} ({}): {problem}", step.op.kind().name());
        check_types(step).map_err(about)?;
        if let Some(early) = step.inputs.iter().find(|input| !has_value(&written, input.buffer)) {
            return Err(about(format!("buffer {} is read before it is written", early.buffer)));
        }
        step.outputs.iter().for_each(|output| written[output.buffer] = true);
    }
    let given = routine.outputs.iter().map(|(_, output)| output.buffer);
    match given.chain(routine.assigns.iter().map(|&(_, new)| new)).find(|&id| !has_value(&written, id)) {
        Some(id) => Err(format!("buffer {id} is asked for and never written")),
        None => Ok(()),
    }
}

fn check_types(step: &Step) -> Verdict {
    let types: Vec<_> = step.inputs.iter().map(Operand::ty).collect();
    let ruled = step.op.outputs(&types).map_err(|mismatch| format!("operands are not taken: {mismatch:?}"))?;
    match ruled.into_iter().eq(step.outputs.iter().map(Operand::ty)) {
        true => Ok(()),
        false => Err("the results are not of the types its rule gives".to_string()),
    }
}

/// What the arena holds: by first byte, the end and the buffer whose value lies there whole.
struct Check<'a> {
    plan: &'a Plan,
    contents: BTreeMap<usize, (usize, BufferId)>,
}

impl<'a> Check<'a> {
    fn of(plan: &'a Plan) -> Check<'a> {
        let mut check = Check { plan, contents: BTreeMap::new() };
        for (id, buffer) in plan.buffers.iter().enumerate() {
            if buffer.kind.is_persistent() && buffer.bytes() > 0 {
                check.contents.insert(buffer.offset, (buffer.offset + buffer.bytes(), id));
            }
        }
        check
    }

    fn routine(mut self, routine: &Routine) -> Verdict {
        self.persistent_buffers_apart()?;
        for (index, step) in routine.steps.iter().enumerate() {
            self.step(step).map_err(|problem| format!("step {index} ({}): {problem}", step.op.kind().name()))?;
        }
        for (name, output) in &routine.outputs {
            self.holds(output.buffer).map_err(|problem| format!("output {name:?}: {problem}"))?;
        }
        for (id, buffer) in self.plan.buffers.iter().enumerate().filter(|(_, buffer)| buffer.kind.is_persistent()) {
            match routine.assigns.iter().find(|&&(state, _)| state == id) {
                Some(&(_, new)) if self.buffer(new).offset != buffer.offset => {
                    return Err(format!("the new value of buffer {id} is not at its address"));
                }
                Some(&(_, new)) => self.holds(new)?,
                None => self.holds(id)?,
            }
        }
        Ok(())
    }

    fn persistent_buffers_apart(&self) -> Verdict {
        let mut last_end = 0;
        for (&start, &(end, id)) in &self.contents {
            if start < last_end {
                return Err(format!("buffer {id} overlaps another one that persists"));
            }
            last_end = end;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Verdict {
        check_types(step)?;
        for input in &step.inputs {
            let buffer = self.buffer(input.buffer);
            if input.layout.end() * input.dtype.size() > buffer.bytes() {
                return Err(format!("an operand reaches past buffer {}", input.buffer));
            }
            self.holds(input.buffer)?;
        }
        let mut written: Vec<BufferId> = vec![];
        for (position, output) in step.outputs.iter().enumerate() {
            if !output.is_whole(&self.plan.buffers) {
                return Err(format!("result {position} is not its whole buffer"));
            }
            self.apart_from(output.buffer, &written)?;
            self.over_operands(step, position, output)?;
            written.push(output.buffer);
        }
        if let Some(scratch) = step.scratch {
            self.apart_from(scratch, &written)?;
            self.apart_from(scratch, &step.inputs.iter().map(|input| input.buffer).collect::<Vec<_>>())?;
            written.push(scratch);
        }
        written.into_iter().try_for_each(|buffer| self.write(buffer))
    }

    /// A result may lie over an operand only whole, and only if the operation's rule says so.
    fn over_operands(&self, step: &Step, position: usize, output: &Operand) -> Verdict {
        let result = self.buffer(output.buffer);
        for (at, input) in step.inputs.iter().enumerate() {
            let operand = self.buffer(input.buffer);
            if !overlap(operand, result) {
                continue;
            }
            let same = operand.offset == result.offset && operand.bytes() == result.bytes();
            let whole = input.is_whole(&self.plan.buffers) && input.dtype.size() == output.dtype.size();
            if !same || !whole || !step.op.in_place().contains(&(position, at)) {
                return Err(format!("result {position} lies over operand {at} against the in-place rule"));
            }
        }
        Ok(())
    }

    fn apart_from(&self, buffer: BufferId, others: &[BufferId]) -> Verdict {
        match others.iter().find(|&&other| overlap(self.buffer(buffer), self.buffer(other))) {
            Some(other) => Err(format!("buffers {buffer} and {other} of one step overlap")),
            None => Ok(()),
        }
    }

    /// The buffer's value must still be there, whole.
    fn holds(&self, id: BufferId) -> Verdict {
        let buffer = self.buffer(id);
        if buffer.bytes() == 0 || self.contents.get(&buffer.offset) == Some(&(buffer.offset + buffer.bytes(), id)) {
            return Ok(());
        }
        Err(format!("buffer {id} does not hold its value"))
    }

    /// What was in these bytes is gone; now they hold this buffer.
    fn write(&mut self, id: BufferId) -> Verdict {
        let buffer = self.buffer(id);
        let (start, end) = (buffer.offset, buffer.offset.saturating_add(buffer.bytes()));
        let limit = self.plan.regions.total() - self.plan.regions.workers;
        if !start.is_multiple_of(self.plan.alignment) || end > limit {
            return Err(format!("buffer {id} at {start}..{end} is not aligned or not inside the arena"));
        }
        if start == end {
            return Ok(());
        }
        let from = self.contents.range(..start).next_back().map_or(start, |(&before, _)| before);
        self.contents.retain(|&at, &mut (until, _)| at < from || at >= end || until <= start);
        self.contents.insert(start, (end, id));
        Ok(())
    }

    fn buffer(&self, id: BufferId) -> &'a Buffer {
        &self.plan.buffers[id]
    }
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.bytes() > 0
        && b.bytes() > 0
        && a.offset < b.offset.saturating_add(b.bytes())
        && b.offset < a.offset.saturating_add(a.bytes())
}
