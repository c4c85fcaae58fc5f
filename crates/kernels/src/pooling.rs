//! Pooling of planes: the largest or the mean of each window, and the gradients.

use crate::isa::multiversion;
use crate::window::inside;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use std::ops::Range;

/// Elements of a part, of the larger planes.
const PART_ELEMENTS: usize = 16 * 1024;

/// Windows that are looked at together: a vector of the widest level.
const BLOCK: usize = 16;

/// Lines that are asked for ahead. Those of a row of windows are read side by side, which the machine does not foresee: 1,024
/// planes of 112 x 112 took 3 ms so, and 12 without.
const LINES_AHEAD: usize = 8;

/// The sizes of a pooling. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// How many planes.
    pub planes: usize,
    /// The size of a plane.
    pub input: [usize; 2],
    /// The size of a window.
    pub kernel: [usize; 2],
    /// How far apart windows start.
    pub stride: [usize; 2],
    /// How far the first window starts outside; at most half a window.
    pub padding: [usize; 2],
    /// The number of windows along each axis.
    pub output: [usize; 2],
}

impl Windows {
    #[inline(always)]
    fn input_range(&self, plane: usize) -> Range<usize> {
        let size = self.input[0] * self.input[1];
        plane * size..(plane + 1) * size
    }

    #[inline(always)]
    fn output_range(&self, plane: usize) -> Range<usize> {
        let size = self.output[0] * self.output[1];
        plane * size..(plane + 1) * size
    }

    /// Calls `visit` for every element of the windows of row `row`, one place in the window after another: with the
    /// columns of the windows that have an element there, and the position in the plane of the first one's element;
    /// those of the others follow a stride apart.
    #[inline(always)]
    fn visit_row(&self, row: usize, mut visit: impl FnMut(Range<usize>, usize)) {
        for line in 0..self.kernel[0] {
            let line = (row * self.stride[0] + line).wrapping_sub(self.padding[0]);
            if line >= self.input[0] {
                continue;
            }
            for column in 0..self.kernel[1] {
                let offset = column as isize - self.padding[1] as isize;
                let columns = inside(self.stride[1], offset, self.input[1], self.output[1]);
                if !columns.is_empty() {
                    let first = (columns.start * self.stride[1]).wrapping_add_signed(offset);
                    visit(columns, line * self.input[1] + first);
                }
            }
        }
    }

    /// The elements of a window, those in the padding included.
    #[inline(always)]
    fn window_elements(&self) -> f32 {
        (self.kernel[0] * self.kernel[1]) as f32
    }

    #[inline(always)]
    fn planes_per_part(&self) -> usize {
        let largest = self.input_range(0).len().max(self.output_range(0).len());
        (PART_ELEMENTS / largest.max(1)).max(1)
    }

    /// The planes of a part.
    #[inline(always)]
    fn part(&self, part: usize) -> Range<usize> {
        chunk(part, self.planes_per_part(), self.planes)
    }

    fn parts(&self) -> usize {
        parts_of(self.planes, self.planes_per_part())
    }
}

/// Implements [`Job`] for a kernel whose parts are ranges of planes, with a row or a plane of f32 as scratch.
macro_rules! job_over_planes {
    ($name:ident, |$windows:ident| $scratch:expr) => {
        impl<T: Element> Job for $name<T> {
            fn parts(&self) -> usize {
                self.windows.parts()
            }

            fn worker_scratch(&self) -> usize {
                let $windows = &self.windows;
                $scratch * size_of::<f32>()
            }

            unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
                let scratch = &mut scratch[..self.worker_scratch()];
                // SAFETY: the caller's promise; each part has its own planes, and the machine has the level, since
                // whoever built the job took it from `Isa::available`.
                unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
            }
        }
    };
}

/// The largest element of each window and its position in the plane. The first of equal ones is taken, and NaN
/// before any number.
pub struct MaxPool<T> {
    windows: Windows,
    x: In<T>,
    values: Out<T>,
    indices: Out<i32>,
    body: unsafe fn(&MaxPool<T>, usize, &mut [f32]),
}

impl<T: Element> MaxPool<T> {
    /// Of dense planes.
    pub fn new(isa: Isa, windows: Windows, x: In<T>, values: Out<T>, indices: Out<i32>) -> MaxPool<T> {
        MaxPool { windows, x, values, indices, body: max_of::select(isa) }
    }
}

job_over_planes!(MaxPool, |_windows| 0);

/// Whether an element is taken instead of what was found before: it is larger, or the first that is not a number.
#[inline(always)]
fn is_better(x: f32, found: f32) -> bool {
    (x > found) | (x.is_nan() & !found.is_nan())
}

/// The windows of a row that lie in the plane's lines from end to end.
#[inline(always)]
fn whole_windows(windows: &Windows) -> Range<usize> {
    let (stride, padding) = (windows.stride[1], windows.padding[1]);
    let first = padding.div_ceil(stride);
    let end = (windows.input[1] + padding).checked_sub(windows.kernel[1]).map_or(0, |room| room / stride + 1);
    first..end.min(windows.output[1]).max(first)
}

/// The largest element of a window and its position, whatever part of it lies in the plane: these lines and columns. Of nothing
/// larger than minus infinity it is the first element's.
#[inline(always)]
fn largest<T: Element>(x: &[T], width: usize, lines: Range<usize>, columns: Range<usize>) -> (f32, usize) {
    let mut found = (f32::NEG_INFINITY, lines.start * width + columns.start);
    for line in lines {
        for column in columns.clone() {
            let at = line * width + column;
            let x = x[at].to_f32();
            found = if is_better(x, found.0) { (x, at) } else { found };
        }
    }
    found
}

/// The same of windows side by side that lie so far apart, whole in their lines; the first begins at `first`. What was found so
/// far stays in registers.
#[inline(always)]
fn largest_of_block<T: Element, const APART: usize>(
    x: &[T],
    width: usize,
    first: usize,
    [lines, columns]: [usize; 2],
) -> ([f32; BLOCK], [i32; BLOCK]) {
    let position = |at: usize, window: usize| at as i32 + (window * APART) as i32;
    let mut found = [f32::NEG_INFINITY; BLOCK];
    let mut places: [i32; BLOCK] = std::array::from_fn(|window| position(first, window));
    for line in 0..lines {
        for column in 0..columns {
            let at = first + line * width + column;
            let x = &x[at..at + APART * (BLOCK - 1) + 1];
            let x: [f32; BLOCK] = std::array::from_fn(|window| x[window * APART].to_f32());
            let better: [bool; BLOCK] = std::array::from_fn(|window| is_better(x[window], found[window]));
            found = std::array::from_fn(|window| if better[window] { x[window] } else { found[window] });
            places = std::array::from_fn(|window| if better[window] { position(at, window) } else { places[window] });
        }
    }
    (found, places)
}

multiversion! {
    /// The planes of a part, a row of windows at a time: blocks of those that lie whole in their lines, and the others one by one.
    fn max_of<T: Element>(job: &MaxPool<T>, part: usize, _scratch: &mut [f32]) {
        let windows = &job.windows;
        let Windows { input: [height, width], kernel, stride, padding, output, .. } = *windows;
        let whole = whole_windows(windows);
        let in_blocks = if whole.len() >= BLOCK && stride[1] <= 2 { whole } else { 0..0 };
        // What a window has in the plane along an axis.
        let inside = |window: usize, axis: usize, size: usize| {
            let start = window * stride[axis];
            start.saturating_sub(padding[axis])..(start + kernel[axis]).saturating_sub(padding[axis]).min(size)
        };
        for plane in windows.part(part) {
            let range = windows.output_range(plane);
            // SAFETY: nothing writes the operand, and these planes of the results are this part's own.
            let (x, values, indices) = unsafe {
                (job.x.slice(windows.input_range(plane)), job.values.slice(range.clone()), job.indices.slice(range))
            };
            let rows = values.chunks_exact_mut(output[1]).zip(indices.chunks_exact_mut(output[1]));
            for (row, (values, indices)) in rows.enumerate() {
                let lines = inside(row, 0, height);
                let ahead = windows.input_range(plane).start + (lines.end + LINES_AHEAD) * width;
                job.x.ask_for(ahead..ahead + stride[0] * width);
                for window in (0..in_blocks.start).chain(in_blocks.end..output[1]) {
                    let (value, at) = largest(x, width, lines.clone(), inside(window, 1, width));
                    (values[window], indices[window]) = (T::from_f32(value), at as i32);
                }
                for start in in_blocks.clone().step_by(BLOCK) {
                    // The last block may begin among windows that are done.
                    let start = start.min(in_blocks.end - BLOCK);
                    let first = lines.start * width + start * stride[1] - padding[1];
                    let sizes = [lines.len(), kernel[1]];
                    let (found, places) = match stride[1] {
                        1 => largest_of_block::<T, 1>(x, width, first, sizes),
                        _ => largest_of_block::<T, 2>(x, width, first, sizes),
                    };
                    values[start..start + BLOCK].copy_from_slice(&found.map(T::from_f32));
                    indices[start..start + BLOCK].copy_from_slice(&places);
                }
            }
        }
    }
}

/// `dx[indices[i]] += g[i]` in each plane: the gradient of [`MaxPool`]. An index outside of the plane is passed over.
pub struct ScatterPlanes<T> {
    windows: Windows,
    indices: In<i32>,
    g: In<T>,
    dx: Out<T>,
    body: unsafe fn(&ScatterPlanes<T>, usize, &mut [f32]),
}

impl<T: Element> ScatterPlanes<T> {
    /// Of dense planes of `from` elements into planes of `to`.
    pub fn new(isa: Isa, [from, to]: [usize; 2], indices: In<i32>, g: In<T>, dx: Out<T>) -> ScatterPlanes<T> {
        ScatterPlanes { windows: flat(from, to, dx.len()), indices, g, dx, body: scattered_of::select(isa) }
    }
}

/// Planes of which only the numbers of elements matter: `outputs` elements that point into `inputs`.
fn flat(outputs: usize, inputs: usize, total_inputs: usize) -> Windows {
    Windows {
        planes: total_inputs.checked_div(inputs).unwrap_or(0),
        input: [1, inputs],
        kernel: [1, 1],
        stride: [1, 1],
        padding: [0, 0],
        output: [1, outputs],
    }
}

job_over_planes!(ScatterPlanes, |windows| windows.input[1]);

multiversion! {
    /// The planes of a part, each summed up in f32.
    fn scattered_of<T: Element>(job: &ScatterPlanes<T>, part: usize, sums: &mut [f32]) {
        let windows = &job.windows;
        for plane in windows.part(part) {
            let range = windows.output_range(plane);
            sums.fill(0.0);
            // SAFETY: nothing writes the operands while this job runs.
            let (indices, g) = unsafe { (job.indices.slice(range.clone()), job.g.slice(range)) };
            for (&index, g) in indices.iter().zip(g) {
                if let Some(sum) = sums.get_mut(index as usize) {
                    *sum += g.to_f32();
                }
            }
            // SAFETY: the plane is this part's own.
            store(sums, unsafe { job.dx.slice(windows.input_range(plane)) });
        }
    }
}

/// `y[i] = x[indices[i]]` in each plane: the gradient of [`ScatterPlanes`]. An index outside of the plane gives 0.
pub struct GatherPlanes<T> {
    windows: Windows,
    indices: In<i32>,
    x: In<T>,
    y: Out<T>,
    body: unsafe fn(&GatherPlanes<T>, usize, &mut [f32]),
}

impl<T: Element> GatherPlanes<T> {
    /// Of dense planes of `from` elements into planes of `to`.
    pub fn new(isa: Isa, [from, to]: [usize; 2], indices: In<i32>, x: In<T>, y: Out<T>) -> GatherPlanes<T> {
        GatherPlanes { windows: flat(to, from, x.len()), indices, x, y, body: gathered_of::select(isa) }
    }
}

job_over_planes!(GatherPlanes, |_windows| 0);

multiversion! {
    /// The planes of a part.
    fn gathered_of<T: Element>(job: &GatherPlanes<T>, part: usize, _scratch: &mut [f32]) {
        let windows = &job.windows;
        for plane in windows.part(part) {
            let range = windows.output_range(plane);
            // SAFETY: nothing writes the operands while this job runs, and the plane of `y` is this part's own.
            let (indices, x, y) = unsafe {
                (job.indices.slice(range.clone()), job.x.slice(windows.input_range(plane)), job.y.slice(range))
            };
            for (y, &index) in y.iter_mut().zip(indices) {
                *y = x.get(index as usize).copied().unwrap_or(T::from_f32(0.0));
            }
        }
    }
}

/// The mean of each window, zeros in the padding included.
pub struct AveragePool<T> {
    windows: Windows,
    x: In<T>,
    y: Out<T>,
    body: unsafe fn(&AveragePool<T>, usize, &mut [f32]),
}

impl<T: Element> AveragePool<T> {
    /// Of dense planes.
    pub fn new(isa: Isa, windows: Windows, x: In<T>, y: Out<T>) -> AveragePool<T> {
        AveragePool { windows, x, y, body: means_of::select(isa) }
    }
}

job_over_planes!(AveragePool, |windows| windows.output[1]);

multiversion! {
    /// The planes of a part, a row of windows at a time.
    fn means_of<T: Element>(job: &AveragePool<T>, part: usize, sums: &mut [f32]) {
        let windows = &job.windows;
        for plane in windows.part(part) {
            // SAFETY: nothing writes the operand, and the plane of the result is this part's own.
            let (x, y) = unsafe {
                (job.x.slice(windows.input_range(plane)), job.y.slice(windows.output_range(plane)))
            };
            for (row, y) in y.chunks_exact_mut(windows.output[1]).enumerate() {
                sums.fill(0.0);
                windows.visit_row(row, |columns, first| {
                    for (sum, x) in sums[columns].iter_mut().zip(x[first..].iter().step_by(windows.stride[1])) {
                        *sum += x.to_f32();
                    }
                });
                for (y, sum) in y.iter_mut().zip(&*sums) {
                    *y = T::from_f32(sum / windows.window_elements());
                }
            }
        }
    }
}

/// The gradient of [`AveragePool`]: each element's share in the windows it lies in.
pub struct AveragePoolGradient<T> {
    windows: Windows,
    g: In<T>,
    dx: Out<T>,
    body: unsafe fn(&AveragePoolGradient<T>, usize, &mut [f32]),
}

impl<T: Element> AveragePoolGradient<T> {
    /// Of dense planes.
    pub fn new(isa: Isa, windows: Windows, g: In<T>, dx: Out<T>) -> AveragePoolGradient<T> {
        AveragePoolGradient { windows, g, dx, body: shares_of::select(isa) }
    }
}

job_over_planes!(AveragePoolGradient, |windows| windows.input_range(0).len());

multiversion! {
    /// The planes of a part, each summed up in f32.
    fn shares_of<T: Element>(job: &AveragePoolGradient<T>, part: usize, sums: &mut [f32]) {
        let windows = &job.windows;
        for plane in windows.part(part) {
            sums.fill(0.0);
            // SAFETY: nothing writes the operand while this job runs.
            let g = unsafe { job.g.slice(windows.output_range(plane)) };
            for (row, g) in g.chunks_exact(windows.output[1]).enumerate() {
                windows.visit_row(row, |columns, first| {
                    for (sum, g) in sums[first..].iter_mut().step_by(windows.stride[1]).zip(&g[columns]) {
                        *sum += g.to_f32() / windows.window_elements();
                    }
                });
            }
            // SAFETY: the plane is this part's own.
            store(sums, unsafe { job.dx.slice(windows.input_range(plane)) });
        }
    }
}

#[inline(always)]
fn store<T: Element>(numbers: &[f32], target: &mut [T]) {
    for (to, from) in target.iter_mut().zip(numbers) {
        *to = T::from_f32(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bf16, run_alone};

    fn windows() -> Vec<Windows> {
        let rows = [
            (1, [1, 1], [1, 1], [1, 1], [0, 0]),
            (3, [5, 7], [2, 2], [2, 2], [0, 0]),
            (2, [6, 9], [3, 3], [2, 1], [1, 1]),
            (2, [7, 7], [2, 3], [3, 4], [1, 0]),
            (0, [4, 4], [2, 2], [2, 2], [0, 0]),
            (90, [23, 37], [3, 2], [1, 2], [1, 1]),
            (2, [5, 70], [3, 3], [2, 2], [1, 1]),
            (2, [4, 41], [2, 3], [1, 1], [0, 1]),
            (2, [1, 24], [1, 1], [1, 2], [0, 0]),
        ];
        let with_output = |(planes, input, kernel, stride, padding): (usize, [usize; 2], [usize; 2], _, _)| {
            let (stride, padding): ([usize; 2], [usize; 2]) = (stride, padding);
            let size = |axis: usize| (input[axis] + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
            Windows { planes, input, kernel, stride, padding, output: [size(0), size(1)] }
        };
        rows.map(with_output).to_vec()
    }

    /// The positions in all planes of the elements of each window, in order.
    fn elements(windows: &Windows) -> Vec<Vec<usize>> {
        let mut all = vec![];
        for plane in 0..windows.planes {
            for (oy, ox) in (0..windows.output[0]).flat_map(|oy| (0..windows.output[1]).map(move |ox| (oy, ox))) {
                let mut window = vec![];
                for (ky, kx) in (0..windows.kernel[0]).flat_map(|ky| (0..windows.kernel[1]).map(move |kx| (ky, kx))) {
                    let y = (oy * windows.stride[0] + ky).wrapping_sub(windows.padding[0]);
                    let x = (ox * windows.stride[1] + kx).wrapping_sub(windows.padding[1]);
                    if y < windows.input[0] && x < windows.input[1] {
                        window.push((plane * windows.input[0] + y) * windows.input[1] + x);
                    }
                }
                all.push(window);
            }
        }
        all
    }

    fn numbers<T: Element>(count: usize) -> Vec<T> {
        let special = |index: usize| match index % 41 {
            7 => f32::NEG_INFINITY,
            20 if index.is_multiple_of(5) => f32::NAN,
            _ => ((index * 7919) % 61) as f32 / 8.0 - 3.0,
        };
        (0..count).map(|index| T::from_f32(special(index))).collect()
    }

    fn finite<T: Element>(count: usize) -> Vec<T> {
        (0..count).map(|index| T::from_f32(((index * 7919) % 61) as f32 / 8.0 - 3.0)).collect()
    }

    fn reads<T>(numbers: &[T]) -> In<T> {
        In::new(numbers.as_ptr(), numbers.len())
    }

    fn writes<T>(numbers: &mut [T]) -> Out<T> {
        Out::new(numbers.as_mut_ptr(), numbers.len())
    }

    fn compare<T: Element>(what: &str, found: &[T], expected: &[f64], tolerance: f64) {
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let found = found.to_f32() as f64;
            let same = found == *expected || (found.is_nan() && expected.is_nan());
            let close = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            assert!(same || close, "{what}: element {index}: {found}, not {expected}");
        }
    }

    fn check_max<T: Element>(tolerance: f64) {
        for windows in windows() {
            let elements = elements(&windows);
            let (inputs, outputs) = (windows.planes * windows.input_range(0).len(), elements.len());
            let (x, g, gx) = (numbers::<T>(inputs), finite::<T>(outputs), finite::<T>(inputs));
            let first_of_largest = |window: &Vec<usize>| {
                let is_better = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
                window
                    .iter()
                    .copied()
                    .reduce(|best, at| if is_better(x[at].to_f32(), x[best].to_f32()) { at } else { best })
            };
            let chosen: Vec<usize> = elements.iter().filter_map(first_of_largest).collect();
            assert_eq!(chosen.len(), outputs, "a window is empty");
            let mut dx = vec![0.0; inputs];
            chosen.iter().zip(&g).for_each(|(&at, g)| dx[at] += g.to_f32() as f64);
            let plane = windows.input_range(0).len();
            let expected_indices: Vec<i32> = chosen.iter().map(|at| (at % plane) as i32).collect();
            let picked = |from: &[T]| chosen.iter().map(|&at| from[at].to_f32() as f64).collect::<Vec<_>>();
            let [from, to] = [windows.output_range(0).len(), plane];
            for isa in Isa::available() {
                let what = format!("{windows:?} on {isa}");
                let (mut values, mut indices) = (vec![T::from_f32(9.0); outputs], vec![-1; outputs]);
                run_alone(&MaxPool::new(isa, windows, reads(&x), writes(&mut values), writes(&mut indices)));
                assert_eq!(indices, expected_indices, "{what}");
                compare(&what, &values, &picked(&x), 0.0);
                let mut found = vec![T::from_f32(9.0); inputs];
                run_alone(&ScatterPlanes::new(isa, [from, to], reads(&indices), reads(&g), writes(&mut found)));
                compare(&format!("{what}: scattered"), &found, &dx, tolerance);
                run_alone(&GatherPlanes::new(isa, [to, from], reads(&indices), reads(&gx), writes(&mut values)));
                compare(&format!("{what}: gathered"), &values, &picked(&gx), 0.0);
            }
        }
    }

    fn check_average<T: Element>(tolerance: f64) {
        for windows in windows() {
            let elements = elements(&windows);
            let (inputs, outputs) = (windows.planes * windows.input_range(0).len(), elements.len());
            let (x, g) = (finite::<T>(inputs), finite::<T>(outputs));
            let count = windows.window_elements() as f64;
            let (mut y, mut dx) = (vec![0.0; outputs], vec![0.0; inputs]);
            for (output, window) in elements.iter().enumerate() {
                for &input in window {
                    y[output] += x[input].to_f32() as f64 / count;
                    dx[input] += g[output].to_f32() as f64 / count;
                }
            }
            for isa in Isa::available() {
                let what = format!("{windows:?} on {isa}");
                let mut found = vec![T::from_f32(9.0); outputs];
                run_alone(&AveragePool::new(isa, windows, reads(&x), writes(&mut found)));
                compare(&what, &found, &y, tolerance);
                let mut found = vec![T::from_f32(9.0); inputs];
                run_alone(&AveragePoolGradient::new(isa, windows, reads(&g), writes(&mut found)));
                compare(&format!("{what}: gradient"), &found, &dx, tolerance);
            }
        }
    }

    #[test]
    fn the_largest_and_its_gradients_equal_the_written_out_form() {
        check_max::<f32>(1e-6);
        check_max::<bf16>(4e-3);
    }

    #[test]
    fn the_mean_and_its_gradient_equal_the_written_out_form() {
        check_average::<f32>(1e-6);
        check_average::<bf16>(4e-3);
    }

    #[test]
    fn indices_outside_of_a_plane_are_passed_over() {
        let (indices, g) = ([-1, 4, 2, i32::MIN], [1.0f32; 4]);
        let mut dx = [9.0f32; 4];
        run_alone(&ScatterPlanes::new(Isa::detect(), [4, 4], reads(&indices), reads(&g), writes(&mut dx)));
        assert_eq!(dx, [0.0, 0.0, 1.0, 0.0]);
        let mut y = [9.0f32; 4];
        run_alone(&GatherPlanes::new(Isa::detect(), [4, 4], reads(&indices), reads(&g), writes(&mut y)));
        assert_eq!(y, [0.0, 0.0, 1.0, 0.0]);
    }
}
