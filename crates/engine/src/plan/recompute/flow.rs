//! A routine as the planner weighs it: who writes and reads what, how many bytes, how many seconds; and what it
//! becomes when some results are evicted.

use crate::Result;
use crate::ops::{Effect, Form};
use crate::plan::liveness::Liveness;
use crate::plan::{Buffer, BufferId, BufferKind, Machine, PlannedRoutine, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// A routine's steps in numbers. The second making of buffer `id` is known as `id + buffers`.
pub(super) struct Flow {
    /// The routine's steps, then short ways to make a result again.
    steps: Vec<FlowStep>,
    /// How many of the steps are the routine's own.
    own: usize,
    /// The short ways, as steps; by their place after the routine's own.
    short_ways: Vec<Step>,
    /// By the routine's step: the short way to its last result.
    short_way_of: HashMap<usize, usize>,
    /// By buffer: its bytes; 0 if it persists or takes a state's bytes.
    bytes: Vec<usize>,
    writer: Vec<Option<usize>>,
    /// By buffer: whether it may be evicted.
    candidate: Vec<bool>,
    /// By buffer: whether it must stay the same bytes: indices, which are small, and what the gradient looks at to find
    /// bad data, which once found good must stay the same numbers.
    fixed: Vec<bool>,
    /// By buffer: whether it can be made again when the gradient first reads it.
    in_time: Vec<bool>,
    /// What the caller reads afterwards.
    given: Vec<BufferId>,
}

struct FlowStep {
    /// Transients that it reads, each once.
    inputs: Vec<BufferId>,
    outputs: Vec<BufferId>,
    /// Pairs (output, input) of equal size where the one may lie over the other.
    over: Vec<(BufferId, BufferId)>,
    scratch: usize,
    backward: bool,
    seconds: f64,
    operations: u64,
}

/// One step of a routine in which some results are made twice.
#[derive(Clone, Copy)]
struct Occurrence {
    step: usize,
    again: bool,
}

/// What a routine with some results evicted needs, and who is alive where it needs most.
pub(super) struct Walk {
    /// The most bytes alive at once.
    pub peak: usize,
    /// The time of all steps.
    pub seconds: f64,
    /// At the peak: what could be evicted and is only waiting there.
    pub waiting: Vec<BufferId>,
    /// By buffer: whether it is alive at the peak.
    alive: Vec<bool>,
}

impl Flow {
    pub fn of(routine: &PlannedRoutine, buffers: &[Buffer], machine: &dyn Machine) -> Result<Flow> {
        let assigned: Vec<BufferId> = routine.assigns.iter().map(|&(_, new)| new).collect();
        let mut bytes: Vec<usize> = buffers.iter().map(|buffer| buffer.bytes()).collect();
        let persistent = |id: BufferId| buffers[id].kind.is_persistent();
        (0..bytes.len()).filter(|&id| persistent(id)).for_each(|id| bytes[id] = 0);
        assigned.iter().for_each(|&id| bytes[id] = 0);
        let mut flow = Flow {
            steps: routine.steps.iter().map(|step| FlowStep::of(step, buffers)).collect(),
            own: routine.steps.len(),
            short_ways: vec![],
            short_way_of: HashMap::new(),
            writer: vec![None; bytes.len()],
            candidate: vec![false; bytes.len()],
            fixed: fixed(routine, buffers),
            in_time: in_time(routine, buffers),
            given: routine.outputs.iter().map(|(_, output)| output.buffer).chain(assigned).collect(),
            bytes,
        };
        for (index, step) in routine.steps.iter().enumerate() {
            step.outputs.iter().for_each(|output| flow.writer[output.buffer] = Some(index));
            if let Some(mut short_way) = short_way(step) {
                short_way.scratch = None;
                let needs = machine.scratch(&short_way)?;
                if needs.shared > 0 {
                    continue;
                }
                short_way.seconds = machine.seconds(&short_way);
                flow.short_way_of.insert(index, flow.steps.len());
                flow.steps.push(FlowStep::of(&short_way, buffers));
                flow.short_ways.push(short_way);
            }
        }
        for step in routine.steps.iter().filter(|step| step.part.backward) {
            for input in &step.inputs {
                let forward = flow.writer[input.buffer].is_some_and(|writer| !routine.steps[writer].part.backward);
                if forward && flow.may_be_evicted(input.buffer) {
                    flow.candidate[input.buffer] = true;
                }
            }
        }
        Ok(flow)
    }

    /// What may be evicted: results of the forward pass that the gradient reads.
    pub fn candidates(&self) -> impl Iterator<Item = BufferId> {
        (0..self.candidate.len()).filter(|&id| self.candidate[id])
    }

    /// Whether it can be made again in time, nothing relies on its bytes, and only the routine's own steps read it.
    pub fn may_be_evicted(&self, id: BufferId) -> bool {
        self.in_time[id] && !self.fixed[id] && !self.given.contains(&id)
    }

    /// Whether it must stay the same bytes.
    pub fn is_fixed(&self, id: BufferId) -> bool {
        self.fixed[id]
    }

    /// The step that makes a buffer's value.
    pub fn writer(&self, id: BufferId) -> Option<usize> {
        self.writer[id]
    }

    /// How many buffers there are.
    pub fn buffers(&self) -> usize {
        self.bytes.len()
    }

    pub fn bytes(&self, id: BufferId) -> u64 {
        self.bytes[id] as u64
    }

    /// Operations of the shortest way to make a result again, from operands that are there.
    pub fn operations_to_remake(&self, id: BufferId) -> u64 {
        self.way_to(id, &vec![false; self.bytes.len()]).map_or(u64::MAX, |step| self.steps[step].operations)
    }

    /// Seconds that evicting one more result adds, if the operands of its step are there.
    pub fn seconds_to_remake(&self, id: BufferId, evicted: &[bool]) -> f64 {
        let Some(step) = self.writer[id] else { return f64::INFINITY };
        let Some(&short) = self.short_way_of.get(&step) else {
            // A step that occurs again anyway gives its other results too.
            let again = self.steps[step].outputs.iter().any(|output| evicted[*output]);
            return if again { 0.0 } else { self.steps[step].seconds };
        };
        let [product, result] = self.steps[step].outputs[..] else { return self.steps[step].seconds };
        match (id == result, evicted[product], evicted[result]) {
            (true, true, _) => 0.0,
            (true, false, _) => self.steps[short].seconds,
            (false, _, true) => self.steps[step].seconds - self.steps[short].seconds,
            (false, _, false) => self.steps[step].seconds,
        }
    }

    /// What making a result again reads.
    pub fn operands_to_remake(&self, id: BufferId, evicted: &[bool]) -> &[BufferId] {
        self.way_to(id, evicted).map_or(&[], |step| &self.steps[step].inputs)
    }

    /// The step by which an evicted result is made again.
    fn way_to(&self, id: BufferId, evicted: &[bool]) -> Option<usize> {
        let step = self.writer[id]?;
        match self.short_way_of.get(&step) {
            Some(&short) if self.steps[short].outputs[0] == id && !evicted[self.steps[step].outputs[0]] => Some(short),
            _ => Some(step),
        }
    }

    /// The order of steps with these results evicted: each is made again right before it is first needed.
    fn occurrences(&self, evicted: &[bool]) -> Vec<Occurrence> {
        let mut order = Vec::with_capacity(self.own * 3 / 2);
        let mut remade = vec![false; self.bytes.len()];
        for step in 0..self.own {
            if self.steps[step].backward {
                for &input in &self.steps[step].inputs {
                    self.remake(input, evicted, &mut remade, &mut order);
                }
            }
            order.push(Occurrence { step, again: false });
        }
        order
    }

    fn remake(&self, id: BufferId, evicted: &[bool], remade: &mut [bool], order: &mut Vec<Occurrence>) {
        if !evicted[id] || remade[id] {
            return;
        }
        let step = self.way_to(id, evicted).expect("what is evicted was written");
        for &input in &self.steps[step].inputs {
            self.remake(input, evicted, remade, order);
        }
        order.push(Occurrence { step, again: true });
        self.steps[step].outputs.iter().for_each(|&output| remade[output] = true);
    }

    /// The name of what an occurrence reads: the second making, where the first is gone.
    fn read_as(&self, occurrence: Occurrence, input: BufferId, evicted: &[bool]) -> BufferId {
        let late = occurrence.again || self.steps[occurrence.step].backward;
        if late && evicted[input] { input + self.bytes.len() } else { input }
    }

    fn written_as(&self, occurrence: Occurrence, output: BufferId) -> BufferId {
        if occurrence.again { output + self.bytes.len() } else { output }
    }

    /// Follows what is alive.
    pub(super) fn walk(&self, evicted: &[bool]) -> Walk {
        let count = self.bytes.len();
        let order = self.occurrences(evicted);
        let mut liveness = Liveness::new(2 * count);
        let (mut last_early, mut first_late) = (vec![0; count], vec![usize::MAX; count]);
        for (at, &occurrence) in order.iter().enumerate() {
            let step = &self.steps[occurrence.step];
            for &input in &step.inputs {
                let name = self.read_as(occurrence, input, evicted);
                liveness.read(name, at);
                match occurrence.again || step.backward {
                    true if name == input => first_late[input] = first_late[input].min(at),
                    true => {}
                    false => last_early[input] = at,
                }
            }
        }
        self.given.iter().for_each(|&id| liveness.kept(id, order.len()));
        let (mut now, mut peak, mut peak_at) = (0, 0, 0);
        for (at, &occurrence) in order.iter().enumerate() {
            let step = &self.steps[occurrence.step];
            now += step.outputs.iter().map(|&output| self.bytes[output]).sum::<usize>();
            let shared: usize = self.written_over(occurrence, at, &liveness, evicted);
            let here = now + step.scratch - shared;
            if here > peak {
                (peak, peak_at) = (here, at);
            }
            for &output in &step.outputs {
                if liveness.last(self.written_as(occurrence, output)).is_none() {
                    now -= self.bytes[output];
                }
            }
            for &input in &step.inputs {
                if liveness.ends_at(self.read_as(occurrence, input, evicted), at) {
                    now -= self.bytes[input];
                }
            }
        }
        let alive = self.alive_at(peak_at, &order, &liveness);
        let idle = |id: &BufferId| last_early[*id] < peak_at && first_late[*id] > peak_at;
        let waiting = self.candidates().filter(|&id| alive[id] && !evicted[id]).filter(idle).collect();
        let seconds = order.iter().map(|occurrence| self.steps[occurrence.step].seconds).sum();
        Walk { peak, seconds, waiting, alive }
    }

    /// Bytes of results that lie over operands which end here.
    fn written_over(&self, occurrence: Occurrence, at: usize, liveness: &Liveness, evicted: &[bool]) -> usize {
        let step = &self.steps[occurrence.step];
        let (mut shared, mut used): (usize, Vec<BufferId>) = (0, vec![]);
        for &(output, input) in &step.over {
            let ends = liveness.ends_at(self.read_as(occurrence, input, evicted), at);
            if ends && !used.contains(&output) && !used.contains(&input) {
                used.extend([output, input]);
                shared += self.bytes[output].min(self.bytes[input]);
            }
        }
        shared
    }

    /// By buffer, first makings only: whether it is written before and read after this place.
    fn alive_at(&self, at: usize, order: &[Occurrence], liveness: &Liveness) -> Vec<bool> {
        let mut alive = vec![false; self.bytes.len()];
        for occurrence in order[..at].iter().filter(|occurrence| !occurrence.again) {
            for &output in &self.steps[occurrence.step].outputs {
                alive[output] = liveness.last(output).is_some_and(|last| last > at);
            }
        }
        alive
    }

    /// The routine with these results evicted, over buffers that grow by the second makings.
    pub fn apply(&self, routine: &PlannedRoutine, evicted: &[bool], buffers: &mut Vec<Buffer>) -> PlannedRoutine {
        let mut second: HashMap<BufferId, BufferId> = HashMap::new();
        let mut steps = Vec::with_capacity(self.own);
        for occurrence in self.occurrences(evicted) {
            let short = occurrence.step.checked_sub(self.own).map(|place| &self.short_ways[place]);
            let mut step = short.unwrap_or_else(|| &routine.steps[occurrence.step]).clone();
            for input in &mut step.inputs {
                if self.read_as(occurrence, input.buffer, evicted) != input.buffer {
                    input.buffer = second[&input.buffer];
                }
            }
            if occurrence.again {
                step.again = true;
                step.scratch = step.scratch.map(|scratch| copy_of(scratch, buffers));
                for output in &mut step.outputs {
                    let copy = copy_of(output.buffer, buffers);
                    if evicted[output.buffer] {
                        second.insert(output.buffer, copy);
                    }
                    output.buffer = copy;
                }
            }
            steps.push(step);
        }
        PlannedRoutine { steps, ..routine.clone() }
    }
}

/// By buffer: the last step before which it can be made again from whatever persists. A state that has its new value
/// cannot be read any more, and what others take part in is not done twice.
fn deadlines(routine: &PlannedRoutine, buffers: &[Buffer]) -> Vec<usize> {
    let mut deadlines = vec![usize::MAX; buffers.len()];
    let written = routine.liveness(buffers.len());
    for &(state, new) in &routine.assigns {
        deadlines[state] = written.first(new).unwrap_or(usize::MAX);
    }
    for step in &routine.steps {
        let of_operands = step.inputs.iter().map(|input| deadlines[input.buffer]).min().unwrap_or(usize::MAX);
        let deadline = if step.effect() == Effect::Collective { 0 } else { of_operands };
        step.outputs.iter().for_each(|output| deadlines[output.buffer] = deadline);
    }
    deadlines
}

/// By buffer: whether it can be made again before the first step of the gradient that reads it.
fn in_time(routine: &PlannedRoutine, buffers: &[Buffer]) -> Vec<bool> {
    let deadlines = deadlines(routine, buffers);
    let mut in_time = vec![true; buffers.len()];
    let mut seen = vec![false; buffers.len()];
    for (at, step) in routine.steps.iter().enumerate().filter(|(_, step)| step.part.backward) {
        for input in &step.inputs {
            if !std::mem::replace(&mut seen[input.buffer], true) {
                in_time[input.buffer] = at <= deadlines[input.buffer];
            }
        }
    }
    in_time
}

/// By buffer: whether it holds integers, or a step of the gradient may fault because of it.
fn fixed(routine: &PlannedRoutine, buffers: &[Buffer]) -> Vec<bool> {
    let mut fixed: Vec<bool> = buffers.iter().map(|buffer| buffer.ty.dtype.is_integer()).collect();
    for step in routine.steps.iter().filter(|step| step.part.backward) {
        if let Effect::Faults(check) = step.effect() {
            fixed[step.inputs[check.input()].buffer] = true;
        }
    }
    fixed
}

fn copy_of(id: BufferId, buffers: &mut Vec<Buffer>) -> BufferId {
    let kind = match buffers[id].kind {
        BufferKind::Scratch => BufferKind::Scratch,
        _ => BufferKind::Transient,
    };
    let ty = buffers[id].ty.clone();
    buffers.push(Buffer::new(kind, ty));
    buffers.len() - 1
}

impl Walk {
    pub fn is_alive(&self, id: BufferId) -> bool {
        self.alive[id]
    }
}

impl FlowStep {
    fn of(step: &Step, buffers: &[Buffer]) -> FlowStep {
        let transient = |id: &BufferId| !buffers[*id].kind.is_persistent();
        let mut inputs: Vec<BufferId> = step.inputs.iter().map(|input| input.buffer).filter(transient).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let over = step.op.in_place().into_iter().map(|(output, input)| (&step.outputs[output], &step.inputs[input]));
        let over = over.filter(|(output, input)| {
            let same = buffers[output.buffer].bytes() == buffers[input.buffer].bytes();
            same && input.is_whole(buffers) && transient(&input.buffer)
        });
        let over = over.map(|(output, input)| (output.buffer, input.buffer)).collect();
        FlowStep {
            inputs,
            outputs: step.outputs.iter().map(|output| output.buffer).collect(),
            over,
            scratch: step.scratch.map_or(0, |scratch| buffers[scratch].bytes()),
            backward: step.part.backward,
            seconds: step.seconds,
            operations: step.cost().operations,
        }
    }
}

/// A product that is kept beside what was made of it gives the latter without being computed again.
fn short_way(step: &Step) -> Option<Step> {
    let Form::FusedProduct(product) = step.op.form() else { return None };
    let (epilogue, others) = product.epilogue_of_kept_product()?;
    let [product, result] = &step.outputs[..] else { return None };
    let inputs = std::iter::once(product).chain(&step.inputs[others..]).cloned().collect();
    Some(Step { op: Arc::new(epilogue), inputs, outputs: vec![result.clone()], ..step.clone() })
}
