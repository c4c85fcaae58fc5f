//! An offset for every buffer: which results may be written over their operands, which buffers may share bytes
//! because they are never alive together, and where in the arena each one lies.

use super::recompute::Recomputed;
use super::{Buffer, BufferId, BufferKind, Options, PlannedRoutine, Regions, Step, covers_all_reads};
use std::collections::HashMap;

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

/// Gives the buffers of a routine addresses from `base` on, behind what persists; says how many bytes they span.
pub(super) fn place(
    routine: &Recomputed,
    buffers: &mut [Buffer],
    base: usize,
    alignment: usize,
    options: Options,
) -> usize {
    for &(state, new) in &routine.0.assigns {
        buffers[new].offset = buffers[state].offset;
    }
    Storages::of(&routine.0, buffers, options).place(buffers, base, alignment, options.share)
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
    fn of(routine: &PlannedRoutine, buffers: &[Buffer], options: Options) -> Storages {
        let liveness = routine.liveness(buffers.len());
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
                    .find(|input| liveness.ends_at(*input, index) && may_lie_over(step, *input, output, buffers));
                if let Some(input) = over {
                    taken.push(input);
                    let storage = storages.of_buffer[&input];
                    storages.all[storage].last = liveness.end(output).expect("a result is written");
                    storages.of_buffer.insert(output, storage);
                } else {
                    let bytes = buffers[output].bytes();
                    let [first, last] =
                        [liveness.first(output), liveness.end(output)].map(|step| step.expect("a result is written"));
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
