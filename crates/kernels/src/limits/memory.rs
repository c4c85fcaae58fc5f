//! Memory moved with next to no arithmetic.

use crate::isa::multiversion;
use crate::{Isa, Job, chunk, parts_of};
use std::hint::black_box;

/// Bytes of an array that no cache holds a useful part of.
const BEYOND_CACHES: usize = 128 << 20;
/// Bytes of an array of which two fit a second-level cache, with room to spare.
const WITHIN_CACHE: usize = 128 << 10;
/// Bytes of a part of an array beyond the caches: several pages, and short beside the whole.
const PART_BYTES: usize = 1 << 20;
/// Times that a part within the caches is moved, so that it takes longer than to be given out.
const CACHE_TURNS: usize = 64;
/// Parts within the caches for each thread.
const CACHE_PARTS_PER_THREAD: usize = 8;
/// What numbers are multiplied by on the way: a plain copy could become a call that chooses its own instructions.
const FACTOR: f32 = 1.0;

/// How memory is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    Read,
    Copy,
    StreamingCopy,
    Update,
}

/// A cache line of numbers.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; LANES]);

const LANES: usize = 16;

/// Arrays, and how each part of them is moved.
pub(super) struct Memory {
    motion: Motion,
    isa: Isa,
    source: Array,
    /// Of no lines where nothing is copied.
    destination: Array,
    part_lines: usize,
    turns: usize,
}

/// Lines that parts of a job share out among themselves.
struct Array {
    first: *mut Line,
    lines: Vec<Line>,
}

// SAFETY: `first` points into `lines`, which lives as long; it is followed only by parts of a job, each for lines of
// its own.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    fn new(bytes: usize) -> Array {
        // Written, so that every page is there: pages that were never written are all the same one.
        let mut lines = vec![Line([1.0; LANES]); bytes / size_of::<Line>()];
        Array { first: lines.as_mut_ptr(), lines }
    }
}

impl Memory {
    /// Arrays that lie in memory.
    pub fn beyond_caches(motion: Motion) -> Memory {
        Memory::new(motion, BEYOND_CACHES, PART_BYTES, 1)
    }

    /// Arrays of which each part stays in the cache of the core that moves it.
    pub fn within_caches(motion: Motion, threads: usize) -> Memory {
        Memory::new(motion, WITHIN_CACHE * CACHE_PARTS_PER_THREAD * threads, WITHIN_CACHE, CACHE_TURNS)
    }

    fn new(motion: Motion, bytes: usize, part_bytes: usize, turns: usize) -> Memory {
        let is_copied = matches!(motion, Motion::Copy | Motion::StreamingCopy);
        Memory {
            motion,
            isa: Isa::detect(),
            source: Array::new(bytes),
            destination: Array::new(if is_copied { bytes } else { 0 }),
            part_lines: part_bytes / size_of::<Line>(),
            turns,
        }
    }

    /// What is read and written.
    pub fn bytes(&self) -> u64 {
        let ways = if self.motion == Motion::Read { 1 } else { 2 };
        (ways * self.turns * self.source.lines.len() * size_of::<Line>()) as u64
    }
}

impl Job for Memory {
    fn parts(&self) -> usize {
        parts_of(self.source.lines.len(), self.part_lines)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let lines = chunk(part, self.part_lines, self.source.lines.len());
        for _ in 0..self.turns {
            // SAFETY: the lines are inside the arrays, and no other part has the same.
            unsafe {
                let source = self.source.first.add(lines.start);
                let destination = self.destination.first;
                match self.motion {
                    Motion::Read => read::select(self.isa)(source, lines.len()),
                    Motion::Copy => copy::select(self.isa)(source, destination.add(lines.start), lines.len()),
                    Motion::StreamingCopy => {
                        streaming_copy(self.isa, source, destination.add(lines.start), lines.len())
                    }
                    Motion::Update => update::select(self.isa)(source, lines.len()),
                }
            }
        }
    }
}

multiversion! {
/// Adds up lines, in several sums that do not wait for each other.
fn read(source: *mut Line, count: usize) {
    // SAFETY: the caller has these lines for itself.
    let (blocks, _) = unsafe { std::slice::from_raw_parts(source, count) }.as_chunks::<4>();
    let mut sums = [[0.0f32; LANES]; 4];
    for block in blocks {
        for (sum, line) in sums.iter_mut().zip(block) {
            for lane in 0..LANES {
                sum[lane] += line.0[lane];
            }
        }
    }
    black_box(sums);
}
}

multiversion! {
/// Copies lines.
fn copy(source: *mut Line, destination: *mut Line, count: usize) {
    // SAFETY: the caller has these lines of two arrays for itself; a line is so many numbers.
    let (source, destination) = unsafe {
        let numbers = count * LANES;
        (std::slice::from_raw_parts(source.cast::<f32>(), numbers), std::slice::from_raw_parts_mut(destination.cast::<f32>(), numbers))
    };
    let factor = black_box(FACTOR);
    for (new, number) in destination.iter_mut().zip(source) {
        *new = number * factor;
    }
}
}

multiversion! {
/// Changes lines where they are.
fn update(source: *mut Line, count: usize) {
    // SAFETY: the caller has these lines for itself; a line is so many numbers.
    let numbers = unsafe { std::slice::from_raw_parts_mut(source.cast::<f32>(), count * LANES) };
    let factor = black_box(FACTOR);
    for number in numbers {
        *number *= factor;
    }
}
}

/// Whether the machine has stores that go around the caches.
pub(super) fn has_streaming() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Copies lines with stores that go around the caches.
///
/// # Safety
/// The caller must have these lines of two arrays for itself, on a machine that has such stores and the level.
#[cfg(target_arch = "x86_64")]
unsafe fn streaming_copy(isa: Isa, source: *const Line, destination: *mut Line, count: usize) {
    let copy = if isa >= Isa::Avx512 { streaming::by_sixteen } else { streaming::by_four };
    // SAFETY: the caller's promise; after the fence the lines are where everyone sees them.
    unsafe {
        copy(source.cast(), destination.cast(), count * LANES);
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn streaming_copy(_isa: Isa, _source: *const Line, _destination: *mut Line, _count: usize) {
    unreachable!("a limit that this machine does not have");
}

#[cfg(target_arch = "x86_64")]
mod streaming {
    use std::arch::x86_64::*;

    /// # Safety
    /// The numbers must be the caller's own, aligned to 64 bytes, and the machine must have AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn by_sixteen(source: *const f32, destination: *mut f32, count: usize) {
        for index in (0..count).step_by(16) {
            // SAFETY: inside both arrays and aligned, by the caller's promise.
            unsafe { _mm512_stream_ps(destination.add(index), _mm512_load_ps(source.add(index))) };
        }
    }

    /// # Safety
    /// The numbers must be the caller's own, aligned to 64 bytes.
    pub unsafe fn by_four(source: *const f32, destination: *mut f32, count: usize) {
        for index in (0..count).step_by(4) {
            // SAFETY: inside both arrays and aligned, by the caller's promise.
            unsafe { _mm_stream_ps(destination.add(index), _mm_load_ps(source.add(index))) };
        }
    }
}
