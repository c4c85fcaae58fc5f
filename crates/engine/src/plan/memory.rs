//! An offset for every buffer: which results may be written over their operands, which buffers may share bytes
//! because they are never alive together, and where in the arena each one lies.

use super::recompute::Rung;
use super::{Buffer, BufferId, BufferKind, Draft, Operand, Options, Plan, Planner, Regions, Routine, Step};
use crate::graph::Part;
use crate::ops::Elementwise;
use std::collections::HashMap;
use std::sync::Arc;

/// Places the buffers of all routines: what persists first, then what each routine needs for itself, routines
/// over each other. Each routine is carried out in the fastest way that keeps the arena within the limit, or else in
/// the smallest.
pub(super) fn place(planner: &Planner<'_>, limit: usize) -> Plan {
    let (alignment, options) = (planner.machine.alignment(), planner.options);
    let mut buffers = planner.buffers.clone();
    let workers = planner.machine.workers() * planner.worker_scratch;
    let mut regions = Regions { workers, ..Regions::default() };
    let mut end = 0;
    regions.states = place_persistent(&mut buffers, &mut end, alignment, |kind| matches!(kind, BufferKind::State(..)));
    regions.inputs = place_persistent(&mut buffers, &mut end, alignment, |kind| matches!(kind, BufferKind::Input(_)));
    regions.constants =
        place_persistent(&mut buffers, &mut end, alignment, |kind| matches!(kind, BufferKind::Constant(_)));
    let limit = limit.saturating_sub(end + workers);
    let mut routines = vec![];
    for draft in &planner.drafts {
        let placed = fastest_within(draft, &buffers, end, limit, alignment, options);
        regions.transients = regions.transients.max(placed.bytes);
        buffers = placed.buffers;
        routines.push(placed.routine);
    }
    Plan { buffers, routines, regions, worker_scratch: planner.worker_scratch, alignment }
}

/// A routine in one of its ways, its buffers placed.
struct Placed {
    routine: Routine,
    buffers: Vec<Buffer>,
    bytes: usize,
}

/// Of the last ways, that many are tried when none fits: the last one has least alive at once, but another may leave
/// fewer gaps.
const LAST_TRIED: usize = 8;

/// The fastest way whose transients span at most `limit` bytes, or else the smallest.
fn fastest_within(
    draft: &Draft,
    buffers: &[Buffer],
    base: usize,
    limit: usize,
    alignment: usize,
    options: Options,
) -> Placed {
    let rungs = draft.ladder.rungs();
    let placed = |rung: &Rung| {
        let mut buffers = buffers.to_vec();
        let mut routine = draft.at(rung, &mut buffers);
        settle_assigns(&mut routine, &mut buffers, options);
        let storages = Storages::of(&routine, &buffers, options);
        let bytes = storages.place(&mut buffers, base, alignment, options.share);
        Placed { routine, buffers, bytes }
    };
    // No placement needs less than what is alive at once.
    let within = rungs.iter().filter(|rung| rung.alive <= limit).map(placed).find(|placed| placed.bytes <= limit);
    within.unwrap_or_else(|| {
        let last = rungs[1..].iter().rev().take(LAST_TRIED);
        let tried = std::iter::once(&rungs[0]).chain(last);
        tried.map(placed).min_by_key(|placed| placed.bytes).expect("a ladder has a rung")
    })
}

fn place_persistent(
    buffers: &mut [Buffer],
    end: &mut usize,
    alignment: usize,
    belongs: impl Fn(&BufferKind) -> bool,
) -> usize {
    let start = *end;
    for buffer in buffers.iter_mut().filter(|buffer| belongs(&buffer.kind)) {
        buffer.offset = *end;
        *end += buffer.bytes().next_multiple_of(alignment);
    }
    *end - start
}

/// Puts the new value of each state at the state's own address. Where the old value is still read when the new
/// one is made, the new one is kept aside and copied at the end.
fn settle_assigns(routine: &mut Routine, buffers: &mut Vec<Buffer>, options: Options) {
    let uses = Uses::of(routine, buffers);
    for assign in 0..routine.assigns.len() {
        let (state, mut new) = routine.assigns[assign];
        if !may_write_over_state(routine, &uses, buffers, state, new, options) {
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
        let mut placed: Vec<usize> = vec![];
        let mut total = 0;
        for index in order {
            let storage = &self.all[index];
            let bytes = storage.bytes.next_multiple_of(alignment);
            let alive_together = |&&other: &&usize| {
                !share || (self.all[other].first <= storage.last && storage.first <= self.all[other].last)
            };
            // `placed` is kept in the order of offsets.
            let mut offset = 0;
            for &other in placed.iter().filter(alive_together) {
                if offset + bytes <= offsets[other] {
                    break;
                }
                offset = offset.max(offsets[other] + self.all[other].bytes.next_multiple_of(alignment));
            }
            offsets[index] = offset;
            total = total.max(offset + bytes);
            let at = placed.partition_point(|&other| offsets[other] <= offset);
            placed.insert(at, index);
        }
        (total, offsets)
    }
}

fn may_lie_over(step: &Step, input: BufferId, output: BufferId, buffers: &[Buffer]) -> bool {
    step.scratch != Some(output)
        && buffers[input].bytes() == buffers[output].bytes()
        && covers_all_reads(step, input, output, buffers)
}
