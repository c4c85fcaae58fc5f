//! Rotary positions: pairs of numbers turned by an angle that grows with the place.

use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// An axis of the operand before the last: its size and how far apart neighbours lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// How many rows.
    pub size: usize,
    /// The step between them.
    pub stride: usize,
}

/// Turns the pair of element `i` and element `i + depth / 2` of each row by the angle whose cosine and sine the
/// tables hold for the row's place and `i`.
pub struct Rotary<T> {
    x: In<T>,
    cos: In<f32>,
    sin: In<f32>,
    y: Out<T>,
    /// All axes but the last, outermost first; the last of them is the place.
    axes: Vec<Axis>,
    depth: usize,
    rows: usize,
    rows_per_part: usize,
    inverse: bool,
    body: unsafe fn(&Rotary<T>, usize, &mut [f32]),
}

impl<T: Element> Rotary<T> {
    /// For rows of `depth` dense elements, an even number; `tables` (cosine, sine) and `y` are dense. `y` may be
    /// `x` if that is dense too. The inverse turns the other way.
    pub fn new(
        isa: Isa,
        x: In<T>,
        axes: Vec<Axis>,
        depth: usize,
        tables: [In<f32>; 2],
        y: Out<T>,
        inverse: bool,
    ) -> Rotary<T> {
        let rows = if depth == 0 { 0 } else { axes.iter().map(|axis| axis.size).product() };
        let rows_per_part = (PART_ELEMENTS / depth.max(1)).max(1);
        let [cos, sin] = tables;
        Rotary { x, cos, sin, y, axes, depth, rows, rows_per_part, inverse, body: rows_of::select(isa) }
    }
}

impl<T: Element> Job for Rotary<T> {
    fn parts(&self) -> usize {
        parts_of(self.rows, self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        self.depth * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let row = &mut bytemuck::cast_slice_mut(scratch)[..self.depth];
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, row) }
    }
}

multiversion! {
    /// A part: rows are taken to scratch as f32, so `y` may lie over `x`.
    fn rows_of<T: Element>(job: &Rotary<T>, part: usize, row: &mut [f32]) {
        let half = job.depth / 2;
        let places = job.axes.last().map_or(1, |axis| axis.size);
        for index in chunk(part, job.rows_per_part, job.rows) {
            let (mut start, mut remaining) = (0, index);
            for axis in job.axes.iter().rev() {
                start += remaining % axis.size * axis.stride;
                remaining /= axis.size;
            }
            // SAFETY: the row is inside the operand, and the borrow ends before `y` is borrowed.
            for (to, from) in row.iter_mut().zip(unsafe { job.x.slice(start..start + job.depth) }) {
                *to = from.to_f32();
            }
            let angles = index % places * half..(index % places + 1) * half;
            // SAFETY: the tables have a row for each place and are not written; the row of `y` is this part's own.
            let (cos, sin, y) = unsafe {
                let y = job.y.slice(index * job.depth..(index + 1) * job.depth);
                (job.cos.slice(angles.clone()), job.sin.slice(angles), y)
            };
            turn(row, cos, sin, y, if job.inverse { -1.0 } else { 1.0 });
        }
    }
}

#[inline(always)]
fn turn<T: Element>(x: &[f32], cos: &[f32], sin: &[f32], y: &mut [T], direction: f32) {
    let half = x.len() / 2;
    let (x_first, x_second) = x.split_at(half);
    let (y_first, y_second) = y.split_at_mut(half);
    let (x_second, y_second) = (&x_second[..half], &mut y_second[..half]);
    let (cos, sin) = (&cos[..half], &sin[..half]);
    for i in 0..half {
        let sin = sin[i] * direction;
        y_first[i] = T::from_f32(x_first[i] * cos[i] - x_second[i] * sin);
        y_second[i] = T::from_f32(x_second[i] * cos[i] + x_first[i] * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bf16, run_alone};

    fn check<T: Element>(tolerance: f64) {
        // Axes (batch, head, place) of what lies as (batch, place, head); the last case has several parts.
        for ([batch, heads, places], depth) in
            [([1, 1, 1], 2), ([2, 3, 5], 6), ([0, 2, 3], 4), ([2, 2, 3], 0), ([3, 2, 70], 66)]
        {
            let size = |size, stride| Axis { size, stride };
            let strided = [size(batch, places * heads * depth), size(heads, depth), size(places, heads * depth)];
            let dense = [size(batch, heads * places * depth), size(heads, places * depth), size(places, depth)];
            let count = batch * heads * places * depth;
            let x: Vec<T> = (0..count).map(|i| T::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0)).collect();
            let half = depth / 2;
            let cos: Vec<f32> = (0..places * half).map(|i| (i as f32).cos()).collect();
            let sin: Vec<f32> = (0..places * half).map(|i| (i as f32).sin()).collect();
            let tables = [In::new(cos.as_ptr(), cos.len()), In::new(sin.as_ptr(), sin.len())];
            for isa in Isa::available() {
                for inverse in [false, true] {
                    let mut y = vec![T::from_f32(f32::NAN); count];
                    let to = Out::new(y.as_mut_ptr(), count);
                    let from = In::new(x.as_ptr(), count);
                    run_alone(&Rotary::new(isa, from, strided.to_vec(), depth, tables, to, inverse));
                    for row in 0..batch * heads * places {
                        let (place, head) = (row % places, row / places % heads);
                        let source = ((row / places / heads * places + place) * heads + head) * depth;
                        let number = |i: usize| x[source + i].to_f32() as f64;
                        for i in 0..half {
                            let (cos, sin) = (cos[place * half + i] as f64, sin[place * half + i] as f64);
                            let sin = if inverse { -sin } else { sin };
                            let first = number(i) * cos - number(i + half) * sin;
                            let second = number(i + half) * cos + number(i) * sin;
                            let got = |i: usize| y[row * depth + i].to_f32() as f64;
                            assert!((got(i) - first).abs() <= tolerance && (got(i + half) - second).abs() <= tolerance);
                        }
                    }
                    // In place gives the same.
                    let mut both: Vec<T> = y.clone();
                    let mut apart = vec![T::from_f32(0.0); count];
                    let from = In::new(y.as_ptr(), count);
                    let to = Out::new(apart.as_mut_ptr(), count);
                    run_alone(&Rotary::new(isa, from, dense.to_vec(), depth, tables, to, inverse));
                    let to = Out::new(both.as_mut_ptr(), count);
                    run_alone(&Rotary::new(isa, to.as_in(), dense.to_vec(), depth, tables, to, inverse));
                    assert!(both.iter().zip(&apart).all(|(a, b)| a.to_f32() == b.to_f32()));
                }
            }
        }
    }

    #[test]
    fn f32_equals_the_f64_computation() {
        check::<f32>(1e-6);
    }

    #[test]
    fn bf16_equals_the_f64_computation_to_its_precision() {
        check::<bf16>(1.0 / 128.0);
    }
}
