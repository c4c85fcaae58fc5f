//! An offset for every buffer: which results may be written over their operands, which buffers may share bytes
//! because they are never alive together, and where in the arena each one lies.

use super::checks::last_that_may_fault;
use super::recompute::Rung;
use super::{Buffer, BufferId, BufferKind, Draft, Estimate, Operand, Options, Parts, Planner, Regions, Routine, Step};
use crate::graph::Part;
use crate::ops::Elementwise;
use std::collections::HashMap;
use std::sync::Arc;

/// Gives what persists its place: states first, then inputs, then constants. What is left of the regions is empty.
pub(super) fn place_what_persists(buffers: &mut [Buffer], alignment: usize) -> Regions {
    let mut end = 0;
    let mut placed = |belongs: fn(&BufferKind) -> bool| place_persistent(buffers, &mut end, alignment, belongs);
    Regions {
        states: placed(|kind| matches!(kind, BufferKind::State(..))),
        inputs: placed(|kind| matches!(kind, BufferKind::Input(_))),
        constants: placed(|kind| matches!(kind, BufferKind::Constant(_))),
        ..Regions::default()
    }
}

/// Places the buffers of all routines behind what persists, routines over each other. Each routine is carried out in
/// the fastest way that keeps the arena within the limit, or else in the smallest.
pub(super) fn place(planner: &Planner<'_>, limit: usize) -> Parts {
    let mut buffers = planner.buffers.clone();
    let mut regions = planner.regions;
    let mut routines = vec![];
    for draft in &planner.drafts {
        let rung = fastest_within(planner, draft, limit);
        let placed = Placed::at(planner, draft, &draft.ladder.rungs()[rung], buffers);
        regions.transients = regions.transients.max(placed.bytes);
        buffers = placed.buffers;
        routines.push(placed.routine);
    }
    let (alignment, handles) = (planner.machine.alignment(), planner.handles.clone());
    Parts { buffers, routines, regions, worker_scratch: planner.worker_scratch, alignment, handles }
}

/// What [`place`] would give, in numbers.
pub(super) fn estimate(planner: &Planner<'_>, limit: usize) -> Estimate {
    let mut estimate = Estimate { arena: 0, seconds: 0.0 };
    let mut transients = 0;
    for draft in &planner.drafts {
        let size = size_of(planner, draft, fastest_within(planner, draft, limit));
        transients = transients.max(size.bytes);
        estimate.seconds += draft.routine.times_per_step as f64 * size.seconds;
    }
    estimate.arena = planner.regions.total() + transients;
    estimate
}

/// A routine in one of its ways, its buffers placed.
struct Placed {
    routine: Routine,
    buffers: Vec<Buffer>,
    bytes: usize,
}

impl Placed {
    fn at(planner: &Planner<'_>, draft: &Draft, rung: &Rung, mut buffers: Vec<Buffer>) -> Placed {
        let (alignment, options) = (planner.machine.alignment(), planner.options);
        let Regions { states, inputs, constants, .. } = planner.regions;
        let mut routine = draft.at(rung, &mut buffers);
        settle_assigns(&mut routine, &mut buffers, options);
        let storages = Storages::of(&routine, &buffers, options);
        let bytes = storages.place(&mut buffers, states + inputs + constants, alignment, options.share);
        Placed { routine, buffers, bytes }
    }
}

/// What a way to carry a routine out comes to.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// What its transients span.
    bytes: usize,
    seconds: f64,
}

/// The size of one of a routine's ways. Placing takes long, so that it is done once for each way and only if asked for.
fn size_of(planner: &Planner<'_>, draft: &Draft, rung: usize) -> Size {
    *draft.sizes[rung].get_or_init(|| {
        let placed = Placed::at(planner, draft, &draft.ladder.rungs()[rung], planner.buffers.clone());
        Size { bytes: placed.bytes, seconds: placed.routine.seconds() }
    })
}

/// Of the last ways, that many are tried when none fits: the last one has least alive at once, but another may leave
/// fewer gaps.
const LAST_TRIED: usize = 8;

/// The fastest way that keeps the arena within the limit, or else the smallest.
fn fastest_within(planner: &Planner<'_>, draft: &Draft, limit: usize) -> usize {
    let limit = limit.saturating_sub(planner.regions.total());
    let rungs = draft.ladder.rungs();
    // No placement needs less than what is alive at once.
    let fits = |&rung: &usize| rungs[rung].alive <= limit && size_of(planner, draft, rung).bytes <= limit;
    (0..rungs.len()).find(fits).unwrap_or_else(|| smallest(planner, draft))
}

fn smallest(planner: &Planner<'_>, draft: &Draft) -> usize {
    let rungs = draft.ladder.rungs();
    let last = (1..rungs.len()).rev().take(LAST_TRIED);
    let bytes = |rung: usize| size_of(planner, draft, rung).bytes;
    let smaller = |best: usize, rung: usize| {
        if rungs[rung].alive < bytes(best) && bytes(rung) < bytes(best) { rung } else { best }
    };
    last.chain([0]).reduce(smaller).expect("a ladder has a rung")
}

fn place_persistent(
    buffers: &mut [Buffer],
    end: &mut usize,
    alignment: usize,
    belongs: fn(&BufferKind) -> bool,
) -> usize {
    let start = *end;
    for buffer in buffers.iter_mut().filter(|buffer| belongs(&buffer.kind)) {
        buffer.offset = *end;
        *end += buffer.bytes().next_multiple_of(alignment);
    }
    *end - start
}

/// Puts the new value of each state at the state's own address. Where the old value is still read when the new
/// one is made, or the replay may yet end because the data are bad, the new one is kept aside and copied at the end.
fn settle_assigns(routine: &mut Routine, buffers: &mut Vec<Buffer>, options: Options) {
    let uses = Uses::of(routine, buffers);
    let last_check = last_that_may_fault(&routine.steps);
    for assign in 0..routine.assigns.len() {
        let (state, mut new) = routine.assigns[assign];
        let is_safe = last_check.is_none_or(|check| check < uses.first[&new]);
        if !is_safe || !may_write_over_state(routine, &uses, buffers, state, new, options) {
            let operand = Operand::dense(new, &buffers[new].ty.clone());
            buffers.push(Buffer::new(BufferKind::Transient, buffers[new].ty.clone()));
            new = buffers.len() - 1;
            let ty = operand.ty();
            let output = Operand::dense(new, &ty);
            let place = routine.steps.last().expect("a new value has a step").place;
            let op = Arc::new(Elementwise::dense_copy(ty));
            let (inputs, outputs, part) = (vec![operand], vec![output], Part::default());
            routine.steps.push(Step { op, inputs, outputs, scratch: None, seconds: 0.0, place, part, again: false });
            routine.assigns[assign].1 = new;
        }
        buffers[new].offset = buffers[state].offset;
    }
}

fn may_write_over_state(
    routine: &Routine,
    uses: &Uses,
    buffers: &[Buffer],
    state: BufferId,
    new: BufferId,
    options: Options,
) -> bool {
    let written = uses.first[&new];
    match uses.last_read.get(&state) {
        None => true,
        Some(&read) if read < written => true,
        Some(&read) if read == written => {
            options.in_place && covers_all_reads(&routine.steps[written], state, new, buffers)
        }
        Some(_) => false,
    }
}

/// Whether the step's in-place rule lets `output` lie over `input`, for every operand that reads it.
fn covers_all_reads(step: &Step, input: BufferId, output: BufferId, buffers: &[Buffer]) -> bool {
    let pairs = step.op.in_place();
    let output = step.outputs.iter().position(|operand| operand.buffer == output).expect("the step's own output");
    let result = &step.outputs[output];
    step.inputs.iter().enumerate().filter(|(_, operand)| operand.buffer == input).all(|(position, operand)| {
        pairs.contains(&(output, position))
            && operand.is_whole(buffers)
            && operand.dtype.size() == result.dtype.size()
            && operand.layout.shape.elements() == result.layout.shape.elements()
    })
}

/// When buffers are written and read, by the number of the step.
struct Uses {
    first: HashMap<BufferId, usize>,
    last_read: HashMap<BufferId, usize>,
    last: HashMap<BufferId, usize>,
}

impl Uses {
    fn of(routine: &Routine, buffers: &[Buffer]) -> Uses {
        let mut uses = Uses { first: HashMap::new(), last_read: HashMap::new(), last: HashMap::new() };
        for (index, step) in routine.steps.iter().enumerate() {
            for output in step.outputs.iter().map(|output| output.buffer).chain(step.scratch) {
                uses.first.entry(output).or_insert(index);
                uses.last.insert(output, index);
            }
            for input in &step.inputs {
                uses.last_read.insert(input.buffer, index);
                uses.last.insert(input.buffer, index);
            }
        }
        let end = routine.steps.len();
        let kept = routine.outputs.iter().map(|(_, output)| output.buffer);
        for buffer in kept.chain(routine.assigns.iter().map(|&(_, new)| new)) {
            uses.last.insert(buffer, end);
        }
        uses.last.retain(|&buffer, _| !buffers[buffer].kind.is_persistent());
        uses
    }
}

/// Bytes shared by a chain of buffers, each written over the one before.
struct Storage {
    bytes: usize,
    first: usize,
    last: usize,
    offset: usize,
}

struct Storages {
    all: Vec<Storage>,
    of_buffer: HashMap<BufferId, usize>,
}

impl Storages {
    /// Gives every buffer of the routine that has no address yet a storage, its own or that of an operand it may
    /// be written over.
    fn of(routine: &Routine, buffers: &[Buffer], options: Options) -> Storages {
        let uses = Uses::of(routine, buffers);
        let mut storages = Storages { all: vec![], of_buffer: HashMap::new() };
        for (index, step) in routine.steps.iter().enumerate() {
            let mut taken = vec![];
            for output in step.outputs.iter().map(|output| output.buffer).chain(step.scratch) {
                if storages.of_buffer.contains_key(&output) || buffers[output].offset != usize::MAX {
                    continue;
                }
                let over = options
                    .in_place
                    .then(|| step.inputs.iter().map(|input| input.buffer))
                    .into_iter()
                    .flatten()
                    .filter(|input| !taken.contains(input) && storages.of_buffer.contains_key(input))
                    .find(|input| uses.last[input] == index && may_lie_over(step, *input, output, buffers));
                if let Some(input) = over {
                    taken.push(input);
                    let storage = storages.of_buffer[&input];
                    storages.all[storage].last = uses.last[&output];
                    storages.of_buffer.insert(output, storage);
                } else {
                    let bytes = buffers[output].bytes();
                    let (first, last) = (uses.first[&output], uses.last[&output]);
                    storages.of_buffer.insert(output, storages.all.len());
                    storages.all.push(Storage { bytes, first, last, offset: 0 });
                }
            }
        }
        storages
    }

    /// Gives every storage an offset from `base` on; returns how many bytes they span.
    fn place(mut self, buffers: &mut [Buffer], base: usize, alignment: usize, share: bool) -> usize {
        let by_size = |s: &Storage| (usize::MAX - s.bytes, s.first);
        let by_span = |s: &Storage| (usize::MAX - (s.last - s.first), usize::MAX - s.bytes);
        let by_start = |s: &Storage| (s.first, usize::MAX - s.bytes);
        let placements = [
            self.packed(by_size, alignment, share),
            self.packed(by_span, alignment, share),
            self.packed(by_start, alignment, share),
        ];
        let (bytes, offsets) = placements.into_iter().min_by_key(|(bytes, _)| *bytes).expect("three placements");
        for (storage, offset) in self.all.iter_mut().zip(offsets) {
            storage.offset = base + offset;
        }
        for (&buffer, &storage) in &self.of_buffer {
            buffers[buffer].offset = self.all[storage].offset;
        }
        bytes
    }

    /// Places the storages in the order of a key, each at the lowest offset where it meets no other that is alive
    /// at the same time.
    fn packed(&self, key: impl Fn(&Storage) -> (usize, usize), alignment: usize, share: bool) -> (usize, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by_key(|&index| key(&self.all[index]));
        let mut offsets = vec![0; self.all.len()];
        // In the order of offsets. Every storage is held against all of these, so they lie side by side.
        let mut taken: Vec<Taken> = Vec::with_capacity(self.all.len());
        let mut total = 0;
        for index in order {
            let Storage { bytes, first, last, .. } = self.all[index];
            let bytes = bytes.next_multiple_of(alignment);
            let mut start = 0;
            for other in taken.iter().filter(|other| !share || (other.first <= last && first <= other.last)) {
                if start + bytes <= other.start {
                    break;
                }
                start = start.max(other.end);
            }
            offsets[index] = start;
            let end = start + bytes;
            total = total.max(end);
            let at = taken.partition_point(|other| other.start <= start);
            taken.insert(at, Taken { start, end, first, last });
        }
        (total, offsets)
    }
}

/// Bytes that a storage has, and from when to when.
struct Taken {
    start: usize,
    end: usize,
    first: usize,
    last: usize,
}

fn may_lie_over(step: &Step, input: BufferId, output: BufferId, buffers: &[Buffer]) -> bool {
    step.scratch != Some(output)
        && buffers[input].bytes() == buffers[output].bytes()
        && covers_all_reads(step, input, output, buffers)
}
