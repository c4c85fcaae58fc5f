//! Packing: a panel of a strided matrix becomes dense f32, in the order in which the inner product reads it.

use super::microkernel::Level;
use crate::Element;

/// A panel of a matrix: `width` lines side by side, each `depth` long.
#[derive(Clone, Copy)]
pub(super) struct Panel<T> {
    /// The first element.
    pub first: *const T,
    /// Lines there are; at most the panel's full width.
    pub width: usize,
    /// How far apart lines lie.
    pub line_stride: usize,
    /// Elements of a line.
    pub depth: usize,
    /// How far apart the elements of a line lie.
    pub step_stride: usize,
}

/// Lines and steps that are turned at once.
const TURN: usize = 8;

/// Writes `FULL` numbers for each step of the depth: one of each line, and zeros for lines that are not there.
///
/// # Safety
/// The panel must lie in living memory that nothing writes, and the machine must have the level.
#[inline(always)]
pub(super) unsafe fn pack<T: Element, L: Level, const FULL: usize>(panel: Panel<T>, to: &mut [f32]) {
    let (steps, _) = to[..panel.depth * FULL].as_chunks_mut::<FULL>();
    if panel.width == FULL && panel.line_stride == 1 {
        // SAFETY: the caller's promise is that of each way to pack.
        unsafe { copy_steps(panel, steps) }
    } else if panel.width == FULL && panel.step_stride == 1 {
        // SAFETY: as above.
        unsafe { turn_lines::<T, L, FULL>(panel, steps) }
    } else {
        // SAFETY: as above.
        unsafe { gather(panel, steps) }
    }
}

/// Neighbouring lines are neighbours in memory: each step is a copy.
#[inline(always)]
unsafe fn copy_steps<T: Element, const FULL: usize>(panel: Panel<T>, steps: &mut [[f32; FULL]]) {
    let mut from = panel.first;
    for step in steps {
        let (runs, rest) = step.as_chunks_mut::<TURN>();
        let first_of_rest = from.wrapping_add(runs.len() * TURN);
        // Whole runs are loaded before they are stored: source and target might be the same, for all that the
        // compiler knows, and it would move one number at a time.
        for (index, run) in runs.iter_mut().enumerate() {
            // SAFETY: `FULL` lines lie side by side at this step of the panel.
            *run = unsafe { from.add(index * TURN).cast::<[T; TURN]>().read_unaligned() }.map(T::to_f32);
        }
        for (index, to) in rest.iter_mut().enumerate() {
            // SAFETY: as above.
            *to = unsafe { *first_of_rest.add(index) }.to_f32();
        }
        from = from.wrapping_add(panel.step_stride);
    }
}

/// Each line is dense: blocks of lines are loaded and turned, eight lines along their whole depth at a time, so
/// that each line of the cache is used up before it is lost.
#[inline(always)]
unsafe fn turn_lines<T: Element, L: Level, const FULL: usize>(panel: Panel<T>, steps: &mut [[f32; FULL]]) {
    let whole = panel.depth - panel.depth % TURN;
    for first_line in (0..FULL).step_by(TURN) {
        let count = TURN.min(FULL - first_line);
        for start in (0..whole).step_by(TURN) {
            let mut lines = [[0.0f32; TURN]; TURN];
            for (line, to) in lines.iter_mut().enumerate().take(count) {
                let from = panel.first.wrapping_add((first_line + line) * panel.line_stride + start);
                // SAFETY: `TURN` elements of the line from `start` on are inside the panel.
                *to = unsafe { from.cast::<[T; TURN]>().read_unaligned() }.map(T::to_f32);
            }
            // SAFETY: the machine has the level, by the caller's promise.
            let turned = unsafe { L::turn(lines) };
            for (step, from) in steps[start..start + TURN].iter_mut().zip(&turned) {
                step[first_line..first_line + count].copy_from_slice(&from[..count]);
            }
        }
    }
    let rest = Panel { first: panel.first.wrapping_add(whole), depth: panel.depth - whole, ..panel };
    // SAFETY: the rest of the panel lies in it.
    unsafe { gather(rest, &mut steps[whole..]) }
}

/// Any strides, and panels that are not full.
#[inline(always)]
unsafe fn gather<T: Element, const FULL: usize>(panel: Panel<T>, steps: &mut [[f32; FULL]]) {
    for (index, step) in steps.iter_mut().enumerate() {
        *step = [0.0; FULL];
        for (line, to) in step.iter_mut().enumerate().take(panel.width) {
            // SAFETY: the element is inside the panel.
            *to = unsafe { *panel.first.add(index * panel.step_stride + line * panel.line_stride) }.to_f32();
        }
    }
}
