//! Sums along an axis of all elements up to each one.

use crate::{Element, In, Job, Out, chunk, parts_of};

/// Elements of a part, roughly: whole tiles.
const PART_ELEMENTS: usize = 16 * 1024;

/// Neighboring lines of a tile, which are summed side by side.
const TILE_LINES: usize = 64;

/// `y[o, i, k]` is the sum of `x[o, j, k]` over all `j` up to `i`, or from `i` on. Sums are in f64 and rounded for each
/// result.
pub struct CumulativeSum<T> {
    x: In<T>,
    y: Out<T>,
    axis: usize,
    inner: usize,
    reverse: bool,
}

impl<T: Element> CumulativeSum<T> {
    /// Of dense operands, with so many elements along the axis and in all axes after it.
    pub fn new(x: In<T>, y: Out<T>, axis: usize, inner: usize, reverse: bool) -> CumulativeSum<T> {
        CumulativeSum { x, y, axis, inner, reverse }
    }

    fn tiles_across(&self) -> usize {
        parts_of(self.inner, TILE_LINES)
    }

    fn tiles(&self) -> usize {
        if self.x.is_empty() { 0 } else { self.x.len() / (self.axis * self.inner) * self.tiles_across() }
    }

    fn tiles_per_part(&self) -> usize {
        (PART_ELEMENTS / self.axis.saturating_mul(self.inner.min(TILE_LINES)).max(1)).max(1)
    }
}

impl<T: Element> Job for CumulativeSum<T> {
    fn parts(&self) -> usize {
        parts_of(self.tiles(), self.tiles_per_part())
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        for tile in chunk(part, self.tiles_per_part(), self.tiles()) {
            let outer = tile / self.tiles_across();
            let lines = chunk(tile % self.tiles_across(), TILE_LINES, self.inner);
            let mut sums = [0f64; TILE_LINES];
            for step in 0..self.axis {
                let at = if self.reverse { self.axis - 1 - step } else { step };
                let first = (outer * self.axis + at) * self.inner;
                let range = first + lines.start..first + lines.end;
                // SAFETY: the caller's promise; tiles are disjoint, and the result does not lie over the operand.
                let (x, y) = unsafe { (self.x.slice(range.clone()), self.y.slice(range)) };
                for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                    *sum += x.to_f32() as f64;
                    *y = T::from_f32(*sum as f32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_alone;

    #[test]
    fn every_element_is_the_sum_up_to_it_in_either_direction() {
        for (outer, axis, inner) in
            [(1, 1, 1), (3, 5, 1), (2, 4, 70), (40, 900, 1), (2, 300, 129), (2, 0, 3), (0, 2, 2)]
        {
            let x: Vec<f32> = (0..outer * axis * inner).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            for reverse in [false, true] {
                let mut y = vec![0.5f32; x.len()];
                let (from, to) = (In::new(x.as_ptr(), x.len()), Out::new(y.as_mut_ptr(), y.len()));
                run_alone(&CumulativeSum::new(from, to, axis, inner, reverse));
                for (place, &y) in y.iter().enumerate() {
                    let (outer, at, line) = (place / inner / axis, place / inner % axis, place % inner);
                    let range = if reverse { at..axis } else { 0..at + 1 };
                    let sum: f32 = range.map(|at| x[(outer * axis + at) * inner + line]).sum();
                    assert_eq!(y, sum, "{outer} {at} {line} of {axis}, {inner}");
                }
            }
        }
    }
}
