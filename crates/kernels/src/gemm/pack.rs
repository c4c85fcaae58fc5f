//! Packing: a panel of a strided matrix becomes dense f32, in the order in which the inner product reads it.

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

/// Steps that are turned at once where a line's elements lie one after another.
const TURN: usize = 8;

/// Writes `FULL` numbers for each step of the depth: one of each line, and zeros for lines that are not there.
///
/// # Safety
/// The panel must lie in living memory that nothing writes.
#[inline(always)]
pub(super) unsafe fn pack<T: Element, const FULL: usize>(panel: Panel<T>, to: &mut [f32]) {
    let (steps, _) = to[..panel.depth * FULL].as_chunks_mut::<FULL>();
    // SAFETY (all three): the caller's promise is theirs.
    if panel.width == FULL && panel.line_stride == 1 {
        unsafe { copy_steps(panel, steps) }
    } else if panel.width == FULL && panel.step_stride == 1 {
        unsafe { turn_lines(panel, steps) }
    } else {
        unsafe { gather(panel, steps) }
    }
}

/// Neighbouring lines are neighbours in memory: each step is a copy.
#[inline(always)]
unsafe fn copy_steps<T: Element, const FULL: usize>(panel: Panel<T>, steps: &mut [[f32; FULL]]) {
    let mut from = panel.first;
    for step in steps {
        // SAFETY: `FULL` lines lie side by side at this step of the panel.
        let elements = unsafe { from.cast::<[T; FULL]>().read_unaligned() };
        *step = elements.map(T::to_f32);
        from = from.wrapping_add(panel.step_stride);
    }
}

/// Each line is dense: short runs of all lines are loaded and turned.
#[inline(always)]
unsafe fn turn_lines<T: Element, const FULL: usize>(panel: Panel<T>, steps: &mut [[f32; FULL]]) {
    let whole = panel.depth - panel.depth % TURN;
    for start in (0..whole).step_by(TURN) {
        let mut runs = [[0.0f32; TURN]; FULL];
        for (line, run) in runs.iter_mut().enumerate() {
            // SAFETY: `TURN` elements of the line from `start` on are inside the panel.
            let elements = unsafe {
                panel.first.add(line * panel.line_stride + start).cast::<[T; TURN]>().read_unaligned()
            };
            *run = elements.map(T::to_f32);
        }
        for step in 0..TURN {
            for line in 0..FULL {
                steps[start + step][line] = runs[line][step];
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
