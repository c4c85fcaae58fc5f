//! Packing: lines of a strided matrix, rows or columns, become dense panels of words, in the order in which the
//! inner product reads them.

use super::is;
use super::microkernel::{Microkernel, TRANSPOSE_SIDE, TRANSPOSED_WORDS, Word, pair};
use crate::{Element, bf16};

/// Lines of a matrix side by side.
#[derive(Clone, Copy)]
pub(super) struct Lines<T> {
    /// The first element.
    pub first: *const T,
    /// How many lines.
    pub count: usize,
    /// How far apart lines lie.
    pub line_stride: usize,
    /// Elements of a line.
    pub depth: usize,
    /// How far apart the elements of a line lie.
    pub step_stride: usize,
}

/// Words that a copy asks the cache for in advance: they may lie on pages that the machine does not foresee.
const AHEAD: usize = 8;

/// Words of a panel that are copied together.
const GROUP: usize = 4;

/// Words of a panel that are transposed before the next.
const STRETCH: usize = 64;

/// Words of a line, padded to what the level wants.
#[inline(always)]
pub(super) fn words_of<L: Microkernel>(depth: usize) -> usize {
    depth.div_ceil(L::STEPS).next_multiple_of(L::WORDS)
}

/// Writes panels of `FULL` lines, one after another: for each word of the depth one of each line, and zeros for the
/// lines that the last panel lacks and the steps that the last words lack.
///
/// # Safety
/// The lines must lie in living memory that nothing writes, and the machine must have the level.
#[inline(always)]
pub(super) unsafe fn pack<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, to: &mut [Word]) {
    let depth = words_of::<L>(lines.depth);
    let panels = lines.count.div_ceil(FULL);
    let (words, _) = to[..panels * depth * FULL].as_chunks_mut::<FULL>();
    let (full, last) = words.split_at_mut(lines.count / FULL * depth);
    let from = |line: usize, count: usize| {
        let first = lines.first.wrapping_add(line * lines.line_stride);
        Lines { first, count, ..lines }
    };
    if lines.line_stride == 1 {
        // SAFETY: the caller's promise is that of each way to pack.
        unsafe { copy_steps::<T, L, FULL>(lines, full) }
    } else {
        for (panel, words) in full.chunks_exact_mut(depth.max(1)).enumerate() {
            let lines = from(panel * FULL, FULL);
            match lines.step_stride {
                // SAFETY: as above.
                1 => unsafe { transpose_lines::<T, L, FULL>(lines, words) },
                // SAFETY: as above.
                _ => unsafe { gather::<T, L, FULL>(lines, words) },
            }
        }
    }
    // SAFETY: as above.
    unsafe { gather::<T, L, FULL>(from(lines.count / FULL * FULL, lines.count % FULL), last) };
}

/// A word of one step.
#[inline(always)]
fn single<T: Element>(x: T) -> Word {
    x.to_f32().to_bits()
}

/// Words of two steps each. f32 is rounded; bf16 is there already.
#[inline(always)]
unsafe fn pairs<T: Element, L: Microkernel, const N: usize>(steps: [T; N], next: [T; N]) -> [Word; N] {
    match is::<T, f32>() {
        // SAFETY: the caller's promise.
        true => unsafe { L::pairs(steps.map(T::to_f32), next.map(T::to_f32)) },
        false => std::array::from_fn(|line| pair(steps[line], next[line])),
    }
}

/// Neighbouring lines are neighbours in memory: each word is a copy. A few words of all panels are copied before the
/// next few, since the next step may lie on another page; and a few at once, since whole lines of the cache are
/// written fastest.
#[inline(always)]
unsafe fn copy_steps<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, words: &mut [[Word; FULL]]) {
    let depth = words_of::<L>(lines.depth);
    let whole = lines.depth / L::STEPS;
    for group in (0..whole).step_by(GROUP) {
        let group = group..(group + GROUP).min(whole);
        for (panel, words) in words.chunks_exact_mut(depth).enumerate() {
            for index in group.clone() {
                let from = lines.first.wrapping_add(index * L::STEPS * lines.step_stride + panel * FULL);
                // SAFETY: `FULL` lines lie side by side at these steps of each line.
                unsafe { copy_word::<T, L, FULL>(from, lines.step_stride, &mut words[index]) };
            }
        }
    }
    if whole < depth {
        for (panel, words) in words.chunks_exact_mut(depth).enumerate() {
            let first = lines.first.wrapping_add(panel * FULL + whole * L::STEPS * lines.step_stride);
            let rest = Lines { first, count: FULL, depth: lines.depth - whole * L::STEPS, ..lines };
            // SAFETY: the last step of each line lies in it.
            unsafe { gather::<T, L, FULL>(rest, &mut words[whole..]) }
        }
    }
}

/// A word of each of `FULL` lines.
#[inline(always)]
unsafe fn copy_word<T: Element, L: Microkernel, const FULL: usize>(
    from: *const T,
    step_stride: usize,
    to: &mut [Word; FULL],
) {
    let next = from.wrapping_add((L::STEPS - 1) * step_stride);
    let (wide, rest) = to.as_chunks_mut::<{ 2 * TRANSPOSE_SIDE }>();
    for (run, to) in wide.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            copy_run::<T, L, { 2 * TRANSPOSE_SIDE }>(from.wrapping_add(run * 2 * TRANSPOSE_SIDE), step_stride, to)
        };
    }
    let (narrow, rest) = rest.as_chunks_mut::<TRANSPOSE_SIDE>();
    for to in narrow {
        // SAFETY: as above.
        unsafe {
            copy_run::<T, L, TRANSPOSE_SIDE>(
                from.wrapping_add(FULL / (2 * TRANSPOSE_SIDE) * 2 * TRANSPOSE_SIDE),
                step_stride,
                to,
            )
        };
    }
    let start = FULL / TRANSPOSE_SIDE * TRANSPOSE_SIDE;
    for (line, to) in (start..).zip(rest) {
        // SAFETY: as above.
        *to = unsafe {
            match L::STEPS {
                1 => single(*from.wrapping_add(line)),
                _ => pair(*from.wrapping_add(line), *next.wrapping_add(line)),
            }
        };
    }
}

/// A word of each of a few lines. They are loaded before they are stored: for all that the compiler knows, source and
/// target might be the same, and it would move one number at a time.
#[inline(always)]
unsafe fn copy_run<T: Element, L: Microkernel, const N: usize>(from: *const T, step_stride: usize, to: &mut [Word; N]) {
    for step in 0..L::STEPS {
        L::prefetch(from.wrapping_add((AHEAD * L::STEPS + step) * step_stride).cast());
    }
    // SAFETY: the caller's promise.
    *to = unsafe {
        let first = from.cast::<[T; N]>().read_unaligned();
        match L::STEPS {
            1 => first.map(single),
            _ => pairs::<T, L, N>(first, from.wrapping_add(step_stride).cast::<[T; N]>().read_unaligned()),
        }
    };
}

/// Each line is dense: blocks of lines are loaded and transposed.
#[inline(always)]
unsafe fn transpose_lines<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, words: &mut [[Word; FULL]]) {
    let whole = lines.depth / (TRANSPOSE_SIDE * L::STEPS) * TRANSPOSE_SIDE;
    let are_words = if L::STEPS == 1 { is::<T, f32>() } else { is::<T, bf16>() };
    match are_words && FULL.is_multiple_of(L::LINES) {
        // SAFETY: the caller's promise.
        true => unsafe { transpose_words::<T, L, FULL>(lines, &mut words[..whole]) },
        // SAFETY: the caller's promise.
        false => unsafe { transpose_blocks::<T, L, FULL>(lines, &mut words[..whole]) },
    }
    let steps = whole * L::STEPS;
    let rest = Lines { first: lines.first.wrapping_add(steps), depth: lines.depth - steps, ..lines };
    // SAFETY: the rest of each line lies in it.
    unsafe { gather::<T, L, FULL>(rest, &mut words[whole..]) }
}

/// Lines that are words already: all words of a few lines before the next lines.
#[inline(always)]
unsafe fn transpose_words<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, words: &mut [[Word; FULL]]) {
    let line_bytes = lines.line_stride * size_of::<T>();
    for first_line in (0..FULL).step_by(L::LINES) {
        let first = lines.first.wrapping_add(first_line * lines.line_stride).cast::<Word>();
        for (index, block) in words.as_chunks_mut::<TRANSPOSED_WORDS>().0.iter_mut().enumerate() {
            let from = first.wrapping_add(index * TRANSPOSED_WORDS);
            let to = block.as_flattened_mut()[first_line..].as_mut_ptr();
            // SAFETY: these words of the lines are inside them, and the block has room for them; the machine has the
            // level, by the caller's promise.
            unsafe { L::transpose_words(from, line_bytes, to, FULL) };
        }
    }
}

/// All lines for some words before the next, which stay in the first-level cache meanwhile.
#[inline(always)]
unsafe fn transpose_blocks<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, words: &mut [[Word; FULL]]) {
    let whole = words.len();
    for stretch in (0..whole).step_by(STRETCH) {
        for first_line in (0..FULL).step_by(TRANSPOSE_SIDE) {
            for start in (stretch..(stretch + STRETCH).min(whole)).step_by(TRANSPOSE_SIDE) {
                let from = lines.first.wrapping_add(first_line * lines.line_stride + start * L::STEPS);
                let block = &mut words[start..start + TRANSPOSE_SIDE];
                // SAFETY: these elements of the lines are inside them.
                unsafe { transpose_block::<T, L, FULL>(from, lines.line_stride, block, first_line) };
            }
        }
    }
}

/// A few words of a few lines, transposed.
#[inline(always)]
unsafe fn transpose_block<T: Element, L: Microkernel, const FULL: usize>(
    from: *const T,
    line_stride: usize,
    words: &mut [[Word; FULL]],
    first_line: usize,
) {
    let count = TRANSPOSE_SIDE.min(FULL - first_line);
    let mut runs = [[0; TRANSPOSE_SIDE]; TRANSPOSE_SIDE];
    for (line, to) in runs.iter_mut().enumerate().take(count) {
        // SAFETY: the caller's promise.
        *to = unsafe { run_of::<T, L>(from.wrapping_add(line * line_stride)) };
    }
    // SAFETY: the machine has the level, by the caller's promise.
    let transposed = unsafe { L::transpose(runs) };
    for (word, from) in words.iter_mut().zip(&transposed) {
        word[first_line..first_line + count].copy_from_slice(&from[..count]);
    }
}

/// A few words of a dense line.
#[inline(always)]
unsafe fn run_of<T: Element, L: Microkernel>(from: *const T) -> [Word; TRANSPOSE_SIDE] {
    // SAFETY: the caller's promise.
    unsafe {
        match L::STEPS {
            1 => from.cast::<[T; TRANSPOSE_SIDE]>().read_unaligned().map(single),
            _ if is::<T, f32>() => L::line(from.cast::<[T; 2 * TRANSPOSE_SIDE]>().read_unaligned().map(T::to_f32)),
            _ => from.cast::<[[T; 2]; TRANSPOSE_SIDE]>().read_unaligned().map(|[x, next]| pair(x, next)),
        }
    }
}

/// Writes lines, one after another: for each all its words, and zeros for the steps that the last words lack.
///
/// # Safety
/// As for [`pack`].
#[inline(always)]
pub(super) unsafe fn pack_line_major<T: Element, L: Microkernel>(lines: Lines<T>, to: &mut [Word]) {
    let depth = words_of::<L>(lines.depth);
    let to = &mut to[..lines.count * depth];
    // Words that are taken in whole runs, and lines that are transposed.
    let whole = lines.depth / (TRANSPOSE_SIDE * L::STEPS) * TRANSPOSE_SIDE;
    let transposed = if lines.line_stride == 1 { lines.count / TRANSPOSE_SIDE * TRANSPOSE_SIDE } else { 0 };
    for first_line in (0..transposed).step_by(TRANSPOSE_SIDE) {
        for start in (0..whole).step_by(TRANSPOSE_SIDE) {
            let from = lines.first.wrapping_add(start * L::STEPS * lines.step_stride + first_line);
            // SAFETY: these elements of the lines are inside them, and the machine has the level.
            let runs = unsafe { transposed_steps::<T, L>(from, lines.step_stride) };
            for (line, run) in (first_line..).zip(&runs) {
                to[line * depth + start..][..TRANSPOSE_SIDE].copy_from_slice(run);
            }
        }
    }
    for (line, to) in to.chunks_exact_mut(depth.max(1)).enumerate() {
        let first = lines.first.wrapping_add(line * lines.line_stride);
        let done = match lines.step_stride {
            _ if line < transposed => whole,
            1 => {
                // SAFETY: these elements of the line are inside it.
                unsafe { copy_runs::<T, L>(first, &mut to[..whole]) };
                whole
            }
            _ => 0,
        };
        let first = first.wrapping_add(done * L::STEPS * lines.step_stride);
        let rest = Lines { first, count: 1, depth: lines.depth - done * L::STEPS, ..lines };
        let (words, _) = to[done..].as_chunks_mut::<1>();
        // SAFETY: the rest of the line lies in it.
        unsafe { gather::<T, L, 1>(rest, words) }
    }
}

/// A few words of a few lines that lie side by side, transposed.
#[inline(always)]
unsafe fn transposed_steps<T: Element, L: Microkernel>(
    from: *const T,
    step_stride: usize,
) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
    let mut steps = [[0; TRANSPOSE_SIDE]; TRANSPOSE_SIDE];
    for (word, to) in steps.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { copy_word::<T, L, TRANSPOSE_SIDE>(from.wrapping_add(word * L::STEPS * step_stride), step_stride, to) };
    }
    // SAFETY: the machine has the level, by the caller's promise.
    unsafe { L::transpose(steps) }
}

/// Words of a dense line, in whole runs.
#[inline(always)]
unsafe fn copy_runs<T: Element, L: Microkernel>(from: *const T, to: &mut [Word]) {
    let (runs, _) = to.as_chunks_mut::<TRANSPOSE_SIDE>();
    for (index, run) in runs.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *run = unsafe { run_of::<T, L>(from.wrapping_add(index * TRANSPOSE_SIDE * L::STEPS)) };
    }
}

/// Any strides, and a panel or a word that is not full.
#[inline(always)]
unsafe fn gather<T: Element, L: Microkernel, const FULL: usize>(lines: Lines<T>, words: &mut [[Word; FULL]]) {
    for (index, word) in words.iter_mut().enumerate() {
        *word = [0; FULL];
        let step = index * L::STEPS;
        for (line, to) in word.iter_mut().enumerate().take(lines.count) {
            let at = |step: usize| lines.first.wrapping_add(step * lines.step_stride + line * lines.line_stride);
            // SAFETY: the elements are inside the lines.
            *to = unsafe {
                match lines.depth.saturating_sub(step) {
                    0 => 0,
                    _ if L::STEPS == 1 => single(*at(step)),
                    1 => pair(*at(step), T::from_f32(0.0)),
                    _ => pair(*at(step), *at(step + 1)),
                }
            };
        }
    }
}
