//! Checks a plan by following what every byte holds, step by step. It shares no code with the planner: what it
//! accepts is right whatever the planner meant, and whoever links it may rely on it.

use super::{Buffer, BufferId, BufferKind, Mark, Moment, Operand, Parts, PlannedRoutine, Step};
use crate::Layout;
use crate::graph::{Initial, State};
use crate::ops::{Check, Effect, Lowering};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

type Verdict = std::result::Result<(), String>;

/// Checks what persists, and every routine.
pub fn verify(parts: &Parts) -> Verdict {
    limit(parts)?;
    let contents = contents_before_replays(parts)?;
    for routine in &parts.routines {
        let about = |problem| format!("routine {:?}: {problem}", routine.name);
        Replay::of(parts, contents.clone()).routine(routine).map_err(about)?;
        marks(parts, routine).map_err(about)?;
    }
    apart(parts)
}

/// What a step touches and what lies there: every operand, whole, and scratch.
fn touched(step: &Step) -> impl Iterator<Item = BufferId> {
    step.inputs.iter().chain(&step.outputs).map(|operand| operand.buffer).chain(step.scratch)
}

/// What is in flight may not be touched: no state after it is started, none before it is awaited.
fn marks(parts: &Parts, routine: &PlannedRoutine) -> Verdict {
    let steps = routine.steps.len();
    if !routine.marks.is_sorted_by_key(|mark| mark.at) || routine.marks.iter().any(|mark| mark.at > steps) {
        return Err("its marks are not in the order of its steps".to_string());
    }
    for Mark { moment, group, at, buffers, .. } in &routine.marks {
        if buffers
            .iter()
            .any(|&id| !matches!(parts.buffers.get(id).map(|buffer| &buffer.kind), Some(BufferKind::State(_))))
        {
            return Err(format!("group {group} has something that is no state"));
        }
        let in_flight = |id: BufferId| buffers.iter().any(|&state| overlap(&parts.buffers[state], &parts.buffers[id]));
        let (range, first) = match moment {
            Moment::Start => (&routine.steps[*at..], *at),
            Moment::Await => (&routine.steps[..*at], 0),
        };
        if let Some(index) = range.iter().position(|step| touched(step).any(in_flight)) {
            let (index, name) = (first + index, range[index].op.name());
            return Err(format!("step {index} ({name}) touches states of group {group} that are in flight"));
        }
        let read = routine.outputs.iter().find(|(_, output)| *moment == Moment::Start && in_flight(output.buffer));
        if let Some((name, _)) = read {
            return Err(format!("output {name:?} is of group {group}, which is in flight"));
        }
    }
    Ok(())
}

/// The transients of a routine that is apart are its own.
fn apart(parts: &Parts) -> Verdict {
    let regions = &parts.regions;
    let persistent = regions.states + regions.inputs + regions.constants;
    let span = |routine: &PlannedRoutine| {
        let ids = routine.steps.iter().flat_map(touched);
        let transients = ids.map(|id| &parts.buffers[id]).filter(|buffer| buffer.offset >= persistent);
        transients.fold((usize::MAX, 0), |(first, end), buffer| {
            (first.min(buffer.offset), end.max(buffer.offset + buffer.bytes()))
        })
    };
    let spans: Vec<(usize, usize)> = parts.routines.iter().map(span).collect();
    for (at, routine) in parts.routines.iter().enumerate().filter(|(_, routine)| routine.apart) {
        let (first, end) = spans[at];
        let meets = |&(other, &(start, until)): &(usize, &(usize, usize))| other != at && start < end && first < until;
        if let Some((other, _)) = spans.iter().enumerate().find(meets) {
            let (name, other) = (&routine.name, &parts.routines[other].name);
            return Err(format!("routine {name:?} is apart, and {other:?} lies over its transients"));
        }
    }
    Ok(())
}

/// Whether a routine gives the same when it is replayed between the steps of one that is apart: the steps of that before its
/// first await are done before, and those from the await of a group up to the next at the routine's own await of the same group,
/// or earlier. So whatever comes before that must have nothing to do with them.
pub fn verify_between(parts: &Parts, apart: &PlannedRoutine, routine: &PlannedRoutine) -> Verdict {
    if !apart.apart {
        return Err(format!("routine {:?} is not apart", apart.name));
    }
    let awaits = |routine: &PlannedRoutine| -> Vec<(usize, usize)> {
        let marks = routine.marks.iter().filter(|mark| mark.moment == Moment::Await);
        marks.map(|mark| (mark.group, mark.at)).collect()
    };
    let (cuts, due) = (awaits(apart), awaits(routine));
    for (place, &(group, from)) in cuts.iter().enumerate() {
        let until = cuts.get(place + 1).map_or(apart.steps.len(), |&(_, at)| at);
        let before = due.iter().find(|(known, _)| *known == group).map_or(routine.steps.len(), |&(_, at)| at);
        let (late_read, late_written) = persistent_bytes(parts, &apart.steps[from..until]);
        let (read, written) = persistent_bytes(parts, &routine.steps[..before]);
        let meets = |a: &HashSet<usize>, b: &HashSet<usize>| a.intersection(b).next().is_some();
        if meets(&late_written, &read) || meets(&late_written, &written) || meets(&late_read, &written) {
            let (late, name) = (&apart.name, &routine.name);
            return Err(format!("routine {name:?} needs what {late:?} does for group {group} before it awaits that"));
        }
    }
    Ok(())
}

/// Whether a routine that is apart gives the same when its steps up to each start are replayed as soon as another routine starts the same
/// group: then no later step of that one touches what they touch.
pub fn verify_after(parts: &Parts, apart: &PlannedRoutine, routine: &PlannedRoutine) -> Verdict {
    if !apart.apart {
        return Err(format!("routine {:?} is not apart", apart.name));
    }
    let starts = |routine: &PlannedRoutine| -> Vec<(usize, usize)> {
        let marks = routine.marks.iter().filter(|mark| mark.moment == Moment::Start);
        marks.map(|mark| (mark.group, mark.at)).collect()
    };
    let (cuts, given) = (starts(apart), starts(routine));
    let (late, name) = (&apart.name, &routine.name);
    if cuts.last().map_or(0, |&(_, at)| at) < apart.steps.len() {
        return Err(format!("routine {late:?} goes on after its last start"));
    }
    let mut from = 0;
    for &(group, until) in &cuts {
        let Some(&(_, after)) = given.iter().find(|(known, _)| *known == group) else {
            return Err(format!("routine {name:?} does not start group {group}"));
        };
        let (early_read, early_written) = persistent_bytes(parts, &apart.steps[from..until]);
        let (read, written) = persistent_bytes(parts, &routine.steps[after..]);
        let meets = |a: &HashSet<usize>, b: &HashSet<usize>| a.intersection(b).next().is_some();
        if meets(&early_written, &read) || meets(&early_written, &written) || meets(&early_read, &written) {
            return Err(format!("routine {name:?} touches what {late:?} does for group {group} after it starts that"));
        }
        from = until;
    }
    Ok(())
}

/// Where what persists begins that steps read, and that they write.
fn persistent_bytes(parts: &Parts, steps: &[Step]) -> (HashSet<usize>, HashSet<usize>) {
    let persistent = parts.regions.states + parts.regions.inputs + parts.regions.constants;
    let starts = |operands: &[Operand]| -> Vec<usize> {
        operands.iter().map(|operand| parts.buffers[operand.buffer].offset).filter(|&at| at < persistent).collect()
    };
    let (mut read, mut written) = (HashSet::new(), HashSet::new());
    for step in steps {
        read.extend(starts(&step.inputs));
        written.extend(starts(&step.outputs));
    }
    (read, written)
}

/// Checks a routine that has no addresses yet: every step reads what an earlier one wrote or what persists, and its
/// operation's rule gives the types that are written down.
pub(super) fn verify_draft(routine: &PlannedRoutine, buffers: &[Buffer]) -> Verdict {
    let mut written = vec![false; buffers.len()];
    let has_value = |written: &[bool], id: BufferId| written[id] || buffers[id].kind.is_persistent();
    for (index, step) in routine.steps.iter().enumerate() {
        let about = |problem: String| format!("step {index} ({}): {problem}", step.op.name());
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
type Contents = BTreeMap<usize, (usize, BufferId)>;

/// What persists lies apart, inside the arena, and begins with numbers of its own type.
fn contents_before_replays(parts: &Parts) -> Result<Contents, String> {
    let mut contents = Contents::new();
    for (id, buffer) in parts.buffers.iter().enumerate().filter(|(_, buffer)| buffer.kind.is_persistent()) {
        let (start, end) = bounds(parts, id)?;
        let numbers = match &buffer.kind {
            BufferKind::State(State { initial: Initial::Numbers(array), .. }) | BufferKind::Constant(array) => {
                Some(array.ty())
            }
            _ => None,
        };
        if numbers.is_some_and(|ty| *ty != buffer.ty) {
            return Err(format!("buffer {id} is not of the type of its numbers"));
        }
        if start < end && contents.insert(start, (end, id)).is_some() {
            return Err(format!("buffer {id} overlaps another one that persists"));
        }
    }
    let mut last_end = 0;
    for (&start, &(end, id)) in &contents {
        if start < last_end {
            return Err(format!("buffer {id} overlaps another one that persists"));
        }
        last_end = end;
    }
    Ok(contents)
}

/// Where the workers' scratch begins, at the end of the arena.
fn limit(parts: &Parts) -> Result<usize, String> {
    let regions = &parts.regions;
    let before = [regions.states, regions.inputs, regions.constants, regions.transients];
    let limit = before.into_iter().try_fold(0, usize::checked_add);
    let limit = limit.filter(|limit| limit.checked_add(regions.workers).is_some());
    limit.ok_or_else(|| "the regions are more bytes than can be counted".to_string())
}

/// A buffer's first byte and its end: aligned, and in the arena before the workers' scratch.
fn bounds(parts: &Parts, id: BufferId) -> Result<(usize, usize), String> {
    let buffer = parts.buffers.get(id).ok_or_else(|| format!("there is no buffer {id}"))?;
    let limit = limit(parts)?;
    let end = buffer.offset.checked_add(buffer.bytes()).filter(|_| buffer.ty.is_addressable());
    match end.filter(|&end| end <= limit && buffer.offset.is_multiple_of(parts.alignment)) {
        Some(end) => Ok((buffer.offset, end)),
        None => Err(format!("buffer {id} at {} is not aligned or not inside the arena", buffer.offset)),
    }
}

/// Follows one routine.
struct Replay<'a> {
    parts: &'a Parts,
    contents: Contents,
    /// Whether a byte of a state was written, or something was given away.
    written: bool,
    /// What was looked for so far, and in which numbers.
    looked_for: Vec<(BufferId, Numbers, Check)>,
    /// The operations that were carried out.
    done: HashSet<*const ()>,
}

/// Where numbers lie in a buffer: the first, and runs of (count, stride), as few as can say it.
type Numbers = (usize, Vec<(usize, usize)>);

impl<'a> Replay<'a> {
    fn of(parts: &'a Parts, contents: Contents) -> Replay<'a> {
        Replay { parts, contents, written: false, looked_for: vec![], done: HashSet::new() }
    }

    fn routine(mut self, routine: &PlannedRoutine) -> Verdict {
        for (index, step) in routine.steps.iter().enumerate() {
            self.given(routine, index)?;
            self.step(step).map_err(|problem| format!("step {index} ({}): {problem}", step.op.name()))?;
        }
        self.given(routine, routine.steps.len())?;
        for (name, output) in &routine.outputs {
            self.readable(output).map_err(|problem| format!("output {name:?}: {problem}"))?;
            if !output.layout.is_dense() {
                return Err(format!("output {name:?} does not lie densely"));
            }
        }
        for &(state, new) in &routine.assigns {
            let fits = |buffer: &Buffer| (buffer.ty.dtype, buffer.bytes(), buffer.offset);
            let [old, value] = [state, new].map(|id| self.parts.buffers.get(id).map(fits));
            if old.is_none() || old != value {
                return Err(format!("the new value of buffer {state} is not of its type and size at its address"));
            }
        }
        let assigned: HashMap<BufferId, BufferId> = routine.assigns.iter().copied().collect();
        for id in (0..self.parts.buffers.len()).filter(|&id| self.buffer(id).kind.is_persistent()) {
            self.holds(assigned.get(&id).copied().unwrap_or(id))?;
        }
        Ok(())
    }

    /// What is given away when so many steps are done must be there, and cannot be taken back.
    fn given(&mut self, routine: &PlannedRoutine, steps: usize) -> Verdict {
        for Mark { group, given, .. } in routine.marks.iter().filter(|mark| mark.at == steps) {
            for operand in given {
                self.readable(operand).map_err(|problem| format!("what it gives for group {group}: {problem}"))?;
                if !operand.layout.is_dense() {
                    return Err(format!("what it gives for group {group} does not lie densely"));
                }
                self.written = true;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Verdict {
        check_types(step)?;
        if let Lowering::View(_) | Lowering::Identity = step.op.lowering() {
            return Err("a view is not a step".to_string());
        }
        step.inputs.iter().try_for_each(|input| self.readable(input))?;
        let mut written: Vec<BufferId> = vec![];
        for (position, output) in step.outputs.iter().enumerate() {
            self.writable(output).map_err(|problem| format!("result {position}: {problem}"))?;
            self.apart_from(output.buffer, &written)?;
            self.over_operands(step, position, output)?;
            written.push(output.buffer);
        }
        if let Some(scratch) = step.scratch {
            bounds(self.parts, scratch)?;
            if !matches!(self.buffer(scratch).kind, BufferKind::Scratch) {
                return Err(format!("buffer {scratch} is not scratch"));
            }
            self.apart_from(scratch, &written)?;
            self.apart_from(scratch, &step.inputs.iter().map(|input| input.buffer).collect::<Vec<_>>())?;
            written.push(scratch);
        }
        self.written |= written.iter().any(|&id| self.buffer(id).offset < self.parts.regions.states);
        if step.effect().check().is_some_and(|check| check.input() >= step.inputs.len()) {
            return Err("what it looks for is in an operand that is not there".to_string());
        }
        if self.may_fault(step) && self.written {
            let problem = "bad data may end the replay here, when a state has been written or something was given away";
            return Err(problem.to_string());
        }
        written.into_iter().for_each(|buffer| self.write(buffer));
        Ok(())
    }

    /// Whether bad data may end the replay at this step: not if the same was looked for in the same numbers before.
    fn may_fault(&mut self, step: &Step) -> bool {
        let again = !self.done.insert(Arc::as_ptr(&step.op).cast()) && step.again;
        let Effect::Faults(check) = step.effect() else { return false };
        let operand = &step.inputs[check.input()];
        let check = match check {
            Check::Indices { bound, ignored, .. } => Check::Indices { input: 0, bound, ignored },
            Check::Finite { .. } => Check::Finite { input: 0, name: String::new() },
        };
        let look = (operand.buffer, numbers(&operand.layout), check);
        if again || self.looked_for.contains(&look) {
            return false;
        }
        self.looked_for.push(look);
        true
    }

    /// An operand must lie inside of its buffer, whose value must still be there.
    fn readable(&self, operand: &Operand) -> Verdict {
        let id = operand.buffer;
        bounds(self.parts, id)?;
        let buffer = self.buffer(id);
        let elements = buffer.ty.shape.elements();
        if operand.dtype != buffer.ty.dtype || end(&operand.layout).is_none_or(|end| end > elements) {
            return Err(format!("an operand reaches past buffer {id} or is of another type"));
        }
        self.holds(id)
    }

    /// A result must be a whole buffer of its own type, and no one else's.
    fn writable(&self, operand: &Operand) -> Verdict {
        let id = operand.buffer;
        bounds(self.parts, id)?;
        let buffer = self.buffer(id);
        if !matches!(buffer.kind, BufferKind::Transient) || operand.dtype != buffer.ty.dtype {
            return Err(format!("buffer {id} is not for results of this type"));
        }
        match end(&operand.layout).is_some() && operand.is_whole(&self.parts.buffers) {
            true => Ok(()),
            false => Err(format!("it is not the whole of buffer {id}")),
        }
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
            let whole = input.is_whole(&self.parts.buffers) && input.dtype.size() == output.dtype.size();
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
        let end = buffer.offset.checked_add(buffer.bytes());
        if buffer.bytes() == 0 || end.is_some_and(|end| self.contents.get(&buffer.offset) == Some(&(end, id))) {
            return Ok(());
        }
        Err(format!("buffer {id} does not hold its value"))
    }

    /// What was in these bytes is gone; now they hold this buffer.
    fn write(&mut self, id: BufferId) {
        let buffer = self.buffer(id);
        let (start, end) = (buffer.offset, buffer.offset + buffer.bytes());
        if start == end {
            return;
        }
        // What lies there is apart, so that only the nearest before it can reach into it.
        let from = self.contents.range(..start).next_back().map_or(start, |(&before, _)| before);
        let reached = self.contents.range(from..end).filter(|&(_, &(until, _))| until > start);
        for gone in reached.map(|(&at, _)| at).collect::<Vec<_>>() {
            self.contents.remove(&gone);
        }
        self.contents.insert(start, (end, id));
    }

    fn buffer(&self, id: BufferId) -> &'a Buffer {
        &self.parts.buffers[id]
    }
}

/// One past the furthest element of a layout, if that can be reckoned; 0 if it has none.
fn end(layout: &Layout) -> Option<usize> {
    if layout.strides.len() != layout.shape.rank() {
        return None;
    }
    if layout.shape.contains(&0) {
        return Some(0);
    }
    let reach = |end: usize, (&size, &stride): (&usize, &usize)| (size - 1).checked_mul(stride)?.checked_add(end);
    layout.shape.iter().zip(&layout.strides).try_fold(layout.offset, reach)?.checked_add(1)
}

fn numbers(layout: &Layout) -> Numbers {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (&size, &stride) in layout.shape.iter().zip(&layout.strides).filter(|&(&size, _)| size != 1) {
        match runs.last_mut() {
            Some((count, step)) if *step == size.saturating_mul(stride) => (*count, *step) = (*count * size, stride),
            _ => runs.push((size, stride)),
        }
    }
    (layout.offset, runs)
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.bytes() > 0
        && b.bytes() > 0
        && a.offset < b.offset.saturating_add(b.bytes())
        && b.offset < a.offset.saturating_add(a.bytes())
}
