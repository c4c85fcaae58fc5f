//! Packing: lines of a strided matrix, rows or columns, become dense panels of f32, in the order in which the
//! inner product reads them.

use super::microkernel::Level;
use crate::Element;

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

/// Steps that a copy asks the cache for in advance: they may lie on pages that the machine does not foresee.
const AHEAD: usize = 8;

/// Lines and steps that are turned at once.
const TURN: usize = 8;

/// Writes panels of `FULL` lines, one after another: for each step of the depth one number of each line, and zeros
/// for the lines that the last panel lacks.
///
/// # Safety
/// The lines must lie in living memory that nothing writes, and the machine must have the level.
#[inline(always)]
pub(super) unsafe fn pack<T: Element, L: Level, const FULL: usize>(lines: Lines<T>, to: &mut [f32]) {
    let panels = lines.count.div_ceil(FULL);
    let (steps, _) = to[..panels * lines.depth * FULL].as_chunks_mut::<FULL>();
    let (full, last) = steps.split_at_mut(lines.count / FULL * lines.depth);
    let from = |line: usize, count: usize| {
        let first = lines.first.wrapping_add(line * lines.line_stride);
        Lines { first, count, ..lines }
    };
    if lines.line_stride == 1 {
        // SAFETY: the caller's promise is that of each way to pack.
        unsafe { copy_steps::<T, L, FULL>(lines, full) }
    } else {
        for (panel, steps) in full.chunks_exact_mut(lines.depth.max(1)).enumerate() {
            let lines = from(panel * FULL, FULL);
            match lines.step_stride {
                // SAFETY: as above.
                1 => unsafe { turn_lines::<T, L, FULL>(lines, steps) },
                // SAFETY: as above.
                _ => unsafe { gather(lines, steps) },
            }
        }
    }
    // SAFETY: as above.
    unsafe { gather(from(lines.count / FULL * FULL, lines.count % FULL), last) };
}

/// Neighbouring lines are neighbours in memory: each step is a copy, for all panels at once, since the next step
/// may lie on another page.
#[inline(always)]
unsafe fn copy_steps<T: Element, L: Level, const FULL: usize>(lines: Lines<T>, steps: &mut [[f32; FULL]]) {
    for index in 0..lines.depth.min(steps.len()) {
        let mut from = lines.first.wrapping_add(index * lines.step_stride);
        for step in steps[index..].iter_mut().step_by(lines.depth) {
            // Whole runs are loaded before they are stored: for all that the compiler knows, source and target
            // might be the same, and it would move one number at a time.
            let (runs, rest) = step.as_chunks_mut::<TURN>();
            for run in runs {
                L::prefetch(from.wrapping_add(AHEAD * lines.step_stride).cast());
                // SAFETY: `FULL` lines lie side by side at this step of each lines.
                *run = unsafe { from.cast::<[T; TURN]>().read_unaligned() }.map(T::to_f32);
                from = from.wrapping_add(TURN);
            }
            for to in rest {
                // SAFETY: as above.
                *to = unsafe { *from }.to_f32();
                from = from.wrapping_add(1);
            }
        }
    }
}

/// Each line is dense: blocks of lines are loaded and turned, eight lines along their whole depth at a time, so
/// that each line of the cache is used up before it is lost.
#[inline(always)]
unsafe fn turn_lines<T: Element, L: Level, const FULL: usize>(lines: Lines<T>, steps: &mut [[f32; FULL]]) {
    let whole = lines.depth - lines.depth % TURN;
    for first_line in (0..FULL).step_by(TURN) {
        let count = TURN.min(FULL - first_line);
        for start in (0..whole).step_by(TURN) {
            let mut runs = [[0.0f32; TURN]; TURN];
            for (line, to) in runs.iter_mut().enumerate().take(count) {
                let from = lines.first.wrapping_add((first_line + line) * lines.line_stride + start);
                // SAFETY: `TURN` elements of the line from `start` on are inside the lines.
                *to = unsafe { from.cast::<[T; TURN]>().read_unaligned() }.map(T::to_f32);
            }
            // SAFETY: the machine has the level, by the caller's promise.
            let turned = unsafe { L::turn(runs) };
            for (step, from) in steps[start..start + TURN].iter_mut().zip(&turned) {
                step[first_line..first_line + count].copy_from_slice(&from[..count]);
            }
        }
    }
    let rest = Lines { first: lines.first.wrapping_add(whole), depth: lines.depth - whole, ..lines };
    // SAFETY: the rest of each line lies in it.
    unsafe { gather(rest, &mut steps[whole..]) }
}

/// Any strides, and a panel that is not full.
#[inline(always)]
unsafe fn gather<T: Element, const FULL: usize>(lines: Lines<T>, steps: &mut [[f32; FULL]]) {
    for (index, step) in steps.iter_mut().enumerate() {
        *step = [0.0; FULL];
        for (line, to) in step.iter_mut().enumerate().take(lines.count) {
            // SAFETY: the element is inside the lines.
            *to = unsafe { *lines.first.add(index * lines.step_stride + line * lines.line_stride) }.to_f32();
        }
    }
}
