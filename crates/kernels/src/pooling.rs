//! Pooling of planes: the largest or the mean of each window, and the gradients.

use crate::isa::multiversion;
use crate::window::inside;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use std::ops::Range;

/// Elements of a part, of the larger planes.
const PART_ELEMENTS: usize = 16 * 1024;

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

job_over_planes!(MaxPool, |windows| windows.output[1]);

/// Takes `x` and its position where it is larger than what was found before, or the first that is not a number.
#[inline(always)]
fn take_one<T: Element>(x: T, at: i32, largest: &mut f32, index: &mut i32) {
    let x = x.to_f32();
    let is_larger = (x > *largest) | (x.is_nan() & !largest.is_nan());
    *largest = if is_larger { x } else { *largest };
    *index = if is_larger { at } else { *index };
}

/// One element for each window, from `first` on and so far apart as is known here, so that the loop is over vectors.
#[inline(always)]
fn take_larger<T: Element, const APART: usize>(x: &[T], first: usize, largest: &mut [f32], indices: &mut [i32]) {
    let whole = largest.len().min((x.len() - first) / APART);
    let (whole_largest, last_largest) = largest.split_at_mut(whole);
    let (whole_indices, last_indices) = indices.split_at_mut(whole);
    let places = whole_largest.iter_mut().zip(whole_indices).zip(x[first..].chunks_exact(APART));
    let mut at = first as i32;
    for ((largest, index), x) in places {
        take_one(x[0], at, largest, index);
        at += APART as i32;
    }
    take_larger_apart(x, first + whole * APART, APART, last_largest, last_indices);
}

/// The same for any distance.
#[inline(always)]
fn take_larger_apart<T: Element>(x: &[T], first: usize, apart: usize, largest: &mut [f32], indices: &mut [i32]) {
    for (step, (largest, index)) in largest.iter_mut().zip(indices).enumerate() {
        let at = first + step * apart;
        take_one(x[at], at as i32, largest, index);
    }
}

multiversion! {
    /// The planes of a part, a row of windows at a time.
    fn max_of<T: Element>(job: &MaxPool<T>, part: usize, largest: &mut [f32]) {
        let windows = &job.windows;
        let [stride, width] = [windows.stride[1], windows.output[1]];
        for plane in windows.part(part) {
            let range = windows.output_range(plane);
            // SAFETY: nothing writes the operand, and these planes of the results are this part's own.
            let (x, values, indices) = unsafe {
                (job.x.slice(windows.input_range(plane)), job.values.slice(range.clone()), job.indices.slice(range))
            };
            let rows = values.chunks_exact_mut(width).zip(indices.chunks_exact_mut(width));
            for (row, (values, indices)) in rows.enumerate() {
                // A window of nothing larger than minus infinity has its first element's position.
                largest.fill(f32::NEG_INFINITY);
                let line = (row * windows.stride[0]).saturating_sub(windows.padding[0]) * windows.input[1];
                for (column, index) in indices.iter_mut().enumerate() {
                    *index = (line + (column * stride).saturating_sub(windows.padding[1])) as i32;
                }
                windows.visit_row(row, |columns, first| {
                    let (largest, indices) = (&mut largest[columns.clone()], &mut indices[columns]);
                    match stride {
                        1 => take_larger::<T, 1>(x, first, largest, indices),
                        2 => take_larger::<T, 2>(x, first, largest, indices),
                        _ => take_larger_apart(x, first, stride, largest, indices),
                    }
                });
                for (value, largest) in values.iter_mut().zip(&*largest) {
                    *value = T::from_f32(*largest);
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
