//! The order of the steps: that of the trace, or one that frees memory sooner, whichever needs less. Then where the new
//! values of states are written, and at last, when all steps are known, what each takes.

mod assign;

use super::checks::first_looks;
use super::liveness::Liveness;
use super::lower::{Buffers, Lowered};
use super::{Buffer, BufferId, BufferKind, Machine, Moment, Options, PlannedRoutine, Step, bytes_type};
use crate::Result;
use crate::ops::Effect;
use std::collections::{BTreeSet, HashMap, HashSet};

/// A routine in order, its assignments settled, its steps weighed.
pub(super) struct Scheduled {
    pub routine: PlannedRoutine,
    /// Scratch that each worker needs, in bytes.
    pub worker_scratch: usize,
}

/// Orders a routine's steps, settles its assignments and asks the machine what its steps take.
pub(super) fn schedule(
    Lowered(routine): Lowered,
    buffers: &mut Buffers,
    machine: &dyn Machine,
    options: Options,
) -> Result<Scheduled> {
    // What others are replayed between is cut where its trace is.
    let reorder = options.reorder && !routine.apart;
    let mut routine = ordered(routine, &buffers.all, reorder);
    assign::settle(&mut routine, buffers, options);
    let mut worker_scratch = 0;
    for step in &mut routine.steps {
        let needs = machine.scratch(step)?;
        worker_scratch = worker_scratch.max(needs.per_worker);
        step.scratch = (needs.shared > 0).then(|| buffers.add(BufferKind::Scratch, bytes_type(needs.shared)));
        step.seconds = machine.seconds(step);
    }
    Ok(Scheduled { routine, worker_scratch })
}

/// The most bytes that are alive at once, in the order that needs least.
pub(super) fn least_alive(Lowered(routine): &Lowered, buffers: &Buffers, options: Options) -> usize {
    best_order(routine, &buffers.all, options.reorder && !routine.apart).1
}

/// The steps in order. Those that write a state's new value come after the other readers of its old value
/// wherever they can, so that the new value can be written over it; and so after all steps that may end the replay
/// because the data are bad. What looks at the same data once more, as gradients do, comes after the first that does and
/// need not be waited for.
fn ordered(mut routine: PlannedRoutine, buffers: &[Buffer], reorder: bool) -> PlannedRoutine {
    let (order, _) = best_order(&routine, buffers, reorder);
    let mut steps: Vec<Option<_>> = routine.steps.into_iter().map(Some).collect();
    routine.steps = order.into_iter().map(|index| steps[index].take().expect("each step once")).collect();
    routine
}

/// The order that needs least, of those that are allowed, and the most bytes that are alive at once in it.
fn best_order(routine: &PlannedRoutine, buffers: &[Buffer], reorder: bool) -> (Vec<usize>, usize) {
    let links = Links::of(routine);
    // Of what others are replayed between, all that waits for nobody comes first.
    let waits = if routine.apart { waiting(routine) } else { vec![false; routine.steps.len()] };
    let next = |ready: &BTreeSet<usize>| ready.iter().copied().min_by_key(|&step| (waits[step], step));
    let in_trace_order = links.ordered(|ready| next(ready).expect("a step is ready"));
    let alive = peak(routine, buffers, &in_trace_order);
    if reorder {
        let mut live = Live::of(routine, buffers);
        let sooner = links.ordered(|ready| live.choose(ready));
        let alive_sooner = peak(routine, buffers, &sooner);
        if alive_sooner < alive {
            return (sooner, alive_sooner);
        }
    }
    (in_trace_order, alive)
}

/// By step: whether it needs what a routine awaits, or what is made of that.
fn waiting(routine: &PlannedRoutine) -> Vec<bool> {
    let awaited = routine.marks.iter().filter(|mark| mark.moment == Moment::Await);
    let mut awaited: HashSet<BufferId> = awaited.flat_map(|mark| mark.buffers.iter().copied()).collect();
    let needs = |step: &Step| {
        let waits = step.inputs.iter().chain(&step.outputs).any(|operand| awaited.contains(&operand.buffer));
        awaited.extend(step.outputs.iter().filter(|_| waits).map(|output| output.buffer));
        waits
    };
    routine.steps.iter().map(needs).collect()
}

/// Which steps must come before which.
struct Links {
    followers: Vec<Vec<usize>>,
    leaders: Vec<usize>,
}

impl Links {
    fn of(routine: &PlannedRoutine) -> Links {
        let mut writer: HashMap<BufferId, usize> = HashMap::new();
        let mut readers: HashMap<BufferId, Vec<usize>> = HashMap::new();
        for (index, step) in routine.steps.iter().enumerate() {
            writer.extend(step.outputs.iter().map(|output| (output.buffer, index)));
            for input in &step.inputs {
                let readers = readers.entry(input.buffer).or_default();
                if readers.last() != Some(&index) {
                    readers.push(index);
                }
            }
        }
        let mut links = Links { followers: vec![vec![]; routine.steps.len()], leaders: vec![0; routine.steps.len()] };
        for (index, step) in routine.steps.iter().enumerate() {
            for input in &step.inputs {
                if let Some(&writer) = writer.get(&input.buffer) {
                    links.add(writer, index);
                }
            }
        }
        let looks = first_looks(&routine.steps);
        for (index, first) in looks.iter().enumerate() {
            if let Some(first) = first.filter(|&first| first != index) {
                links.add(first, index);
            }
        }
        // What others take part in comes in the order of the trace.
        let collectives: Vec<usize> =
            (0..looks.len()).filter(|&index| routine.steps[index].effect() == Effect::Collective).collect();
        collectives.windows(2).for_each(|pair| links.add(pair[0], pair[1]));
        let checks: Vec<usize> = (0..looks.len()).filter(|&index| looks[index] == Some(index)).collect();
        for &(state, new) in &routine.assigns {
            let readers = readers.get(&state).into_iter().flatten();
            links.keep_before(writer[&new], readers.chain(&checks).copied().collect());
        }
        // What was given away cannot be taken back.
        for writer in given(routine).filter_map(|buffer| writer.get(&buffer)) {
            links.keep_before(*writer, checks.clone());
        }
        links
    }

    fn add(&mut self, before: usize, after: usize) {
        self.followers[before].push(after);
        self.leaders[after] += 1;
    }

    /// Puts steps before the one that writes a state's new value.
    fn keep_before(&mut self, writer: usize, earlier: Vec<usize>) {
        if earlier.iter().all(|&step| step == writer) {
            return;
        }
        // A step that itself waits for the new value cannot come first; memory planning then keeps both values.
        let mut after_writer = vec![false; self.followers.len()];
        after_writer[writer] = true;
        let mut open = vec![writer];
        while let Some(index) = open.pop() {
            for &follower in &self.followers[index] {
                if !std::mem::replace(&mut after_writer[follower], true) {
                    open.push(follower);
                }
            }
        }
        for step in earlier.into_iter().filter(|&step| !after_writer[step]) {
            self.add(step, writer);
        }
    }

    /// An order that `choose` makes from the steps that are ready.
    fn ordered(&self, mut choose: impl FnMut(&BTreeSet<usize>) -> usize) -> Vec<usize> {
        let mut waiting = self.leaders.clone();
        let mut ready: BTreeSet<usize> = (0..waiting.len()).filter(|&index| waiting[index] == 0).collect();
        let mut order = Vec::with_capacity(waiting.len());
        while !ready.is_empty() {
            let next = choose(&ready);
            ready.remove(&next);
            order.push(next);
            for &follower in &self.followers[next] {
                waiting[follower] -= 1;
                if waiting[follower] == 0 {
                    ready.insert(follower);
                }
            }
        }
        assert_eq!(order.len(), waiting.len(), "steps wait for each other in a circle");
        order
    }
}

/// What a routine gives away while it is replayed.
fn given(routine: &PlannedRoutine) -> impl Iterator<Item = BufferId> {
    routine.marks.iter().flat_map(|mark| &mark.given).map(|given| given.buffer)
}

/// What is alive while steps are chosen.
struct Live<'a> {
    routine: &'a PlannedRoutine,
    buffers: &'a [Buffer],
    /// By step: the transients that it reads, each once.
    inputs: Vec<Vec<BufferId>>,
    readers_left: HashMap<BufferId, usize>,
    /// New values of states, which take the old ones' bytes, and what is given away, which is soon gone.
    assigned: HashSet<BufferId>,
}

impl<'a> Live<'a> {
    fn of(routine: &'a PlannedRoutine, buffers: &'a [Buffer]) -> Live<'a> {
        let assigned = routine.assigns.iter().map(|&(_, new)| new).chain(given(routine)).collect();
        let inputs: Vec<_> = (0..routine.steps.len()).map(|index| transient_inputs(routine, buffers, index)).collect();
        let readers_left = readers(routine, &inputs);
        Live { routine, buffers, inputs, readers_left, assigned }
    }

    /// The first ready step that does not add to what is alive; if all do, the first of the trace.
    fn choose(&mut self, ready: &BTreeSet<usize>) -> usize {
        let shrinking = ready.iter().copied().find(|&index| self.growth(index) <= 0);
        let chosen = shrinking.unwrap_or_else(|| *ready.first().expect("a step is ready"));
        for buffer in &self.inputs[chosen] {
            *self.readers_left.get_mut(buffer).expect("a transient that is read") -= 1;
        }
        chosen
    }

    fn growth(&self, index: usize) -> isize {
        let written: usize = self.routine.steps[index].outputs.iter().map(|output| self.bytes(output.buffer)).sum();
        let last_read = self.inputs[index].iter().filter(|buffer| self.readers_left[buffer] == 1);
        let freed: usize = last_read.map(|&buffer| self.bytes(buffer)).sum();
        written as isize - freed as isize
    }

    fn bytes(&self, buffer: BufferId) -> usize {
        if self.assigned.contains(&buffer) { 0 } else { self.buffers[buffer].bytes() }
    }
}

/// How many steps read each transient; what the caller reads is never freed.
fn readers(routine: &PlannedRoutine, inputs: &[Vec<BufferId>]) -> HashMap<BufferId, usize> {
    let mut readers = HashMap::new();
    for &buffer in inputs.iter().flatten() {
        *readers.entry(buffer).or_insert(0) += 1;
    }
    for (_, output) in &routine.outputs {
        *readers.entry(output.buffer).or_insert(0) += 1;
    }
    readers
}

fn transient_inputs(routine: &PlannedRoutine, buffers: &[Buffer], index: usize) -> Vec<BufferId> {
    let inputs = routine.steps[index].inputs.iter().map(|input| input.buffer);
    let mut inputs: Vec<BufferId> = inputs.filter(|&buffer| !buffers[buffer].kind.is_persistent()).collect();
    inputs.sort_unstable();
    inputs.dedup();
    inputs
}

/// The most bytes alive at once in this order.
fn peak(routine: &PlannedRoutine, buffers: &[Buffer], order: &[usize]) -> usize {
    let live = Live::of(routine, buffers);
    let mut liveness = Liveness::new(buffers.len());
    for (at, &index) in order.iter().enumerate() {
        live.inputs[index].iter().for_each(|&buffer| liveness.read(buffer, at));
    }
    routine.outputs.iter().for_each(|(_, output)| liveness.kept(output.buffer, order.len()));
    let (mut now, mut peak) = (0, 0);
    for (at, &index) in order.iter().enumerate() {
        let outputs = routine.steps[index].outputs.iter().map(|output| output.buffer);
        now += outputs.clone().map(|output| live.bytes(output)).sum::<usize>();
        peak = peak.max(now);
        // A result that nobody reads is gone at once.
        let unread = outputs.filter(|&output| liveness.last(output).is_none());
        let ending = live.inputs[index].iter().copied().filter(|&input| liveness.ends_at(input, at));
        now -= unread.chain(ending).map(|buffer| live.bytes(buffer)).sum::<usize>();
    }
    peak
}
