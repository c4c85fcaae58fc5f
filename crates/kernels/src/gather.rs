//! Elements picked along an axis by an index of their own each, and the way back: elements added along it.

use crate::isa::multiversion;
use crate::{Element, Fault, In, Isa, Job, Out, chunk, parts_of};
use bytemuck::Pod;

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// Neighbouring lines that are done together where they lie side by side: a cache line of f32.
const SIDE_BY_SIDE: usize = 16;

/// The sizes around the axis: of all axes before it, the axis itself in the source (or target) and in the index,
/// and of all axes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// All axes before, as one.
    pub outer: usize,
    /// The axis that is indexed.
    pub axis: usize,
    /// The same axis of the index.
    pub index_axis: usize,
    /// All axes after, as one.
    pub inner: usize,
}

/// `y[o, i, k] = x[o, index[o, i, k], k]`. An index out of range is a fault, and a zero.
pub struct Gather<T> {
    x: In<T>,
    index: In<u32>,
    y: Out<T>,
    sizes: Sizes,
    fault: Fault,
}

impl<T: Pod + Send + Sync> Gather<T> {
    /// Of dense operands of these sizes.
    pub fn new(x: In<T>, index: In<u32>, y: Out<T>, sizes: Sizes, fault: Fault) -> Gather<T> {
        Gather { x, index, y, sizes, fault }
    }
}

impl<T: Pod + Send + Sync> Job for Gather<T> {
    fn parts(&self) -> usize {
        parts_of(self.index.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let Sizes { axis, index_axis, inner, .. } = self.sizes;
        let all = chunk(part, PART_ELEMENTS, self.index.len());
        let mut start = all.start;
        while start < all.end {
            // As far as the elements lie side by side: to the end of the innermost axes, or of the part.
            let (row, first) = (start / inner, start % inner);
            let end = all.end.min(start + inner - first);
            let block = row / index_axis * axis * inner;
            // SAFETY: the caller's promise; the result lies over neither operand, and the range is this part's own.
            let (x, index, y) = unsafe {
                (self.x.slice(block..block + axis * inner), self.index.slice(start..end), self.y.slice(start..end))
            };
            for (offset, (&index, to)) in index.iter().zip(y).enumerate() {
                *to = if (index as usize) < axis {
                    x[index as usize * inner + first + offset]
                } else {
                    // SAFETY: the cell outlives the jobs of its program.
                    unsafe { self.fault.raise(index) };
                    T::zeroed()
                };
            }
            start = end;
        }
    }
}

/// `y = x`, and then `y[o, index[o, i, k], k] += updates[o, i, k]` in the order of `i`. Sums are in f32 and rounded
/// once. An index out of range is a fault and adds nothing.
pub struct ScatterAdd<T> {
    x: In<T>,
    index: In<u32>,
    updates: In<T>,
    y: Out<T>,
    sizes: Sizes,
    /// Neighbouring lines of a tile; a tile holds whole lines, so no two tiles write to the same element.
    tile_lines: usize,
    tiles_per_part: usize,
    fault: Fault,
    body: unsafe fn(&ScatterAdd<T>, usize, &mut [f32]),
}

impl<T: Element> ScatterAdd<T> {
    /// Of dense operands of these sizes. `y` may be `x`.
    pub fn new(
        isa: Isa,
        x: In<T>,
        index: In<u32>,
        updates: In<T>,
        y: Out<T>,
        sizes: Sizes,
        fault: Fault,
    ) -> ScatterAdd<T> {
        let line = (sizes.axis + sizes.index_axis).max(1);
        let tile_lines = (PART_ELEMENTS / line).max(SIDE_BY_SIDE).min(sizes.inner).max(1);
        let tiles_per_part = (PART_ELEMENTS / (line * tile_lines)).max(1);
        ScatterAdd { x, index, updates, y, sizes, tile_lines, tiles_per_part, fault, body: tiles_of::select(isa) }
    }

    fn tiles_across(&self) -> usize {
        parts_of(self.sizes.inner, self.tile_lines)
    }

    fn tiles(&self) -> usize {
        self.sizes.outer * self.tiles_across()
    }
}

impl<T: Element> Job for ScatterAdd<T> {
    fn parts(&self) -> usize {
        parts_of(self.tiles(), self.tiles_per_part)
    }

    fn worker_scratch(&self) -> usize {
        self.sizes.axis * self.tile_lines * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; tiles are disjoint, and the machine has the level, since whoever built the
        // job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// The tiles of a part: each is taken to scratch as f32, added to and stored, so `y` may lie over `x`.
    fn tiles_of<T: Element>(job: &ScatterAdd<T>, part: usize, scratch: &mut [f32]) {
        let Sizes { axis, index_axis, inner, .. } = job.sizes;
        for tile in chunk(part, job.tiles_per_part, job.tiles()) {
            let outer = tile / job.tiles_across();
            let lines = chunk(tile % job.tiles_across(), job.tile_lines, inner);
            let width = lines.len();
            let sums = &mut scratch[..axis * width];
            let row = |row: usize| row * inner + lines.start..row * inner + lines.end;
            for (at, sums) in sums.chunks_exact_mut(width).enumerate() {
                // SAFETY: the row is inside the operand, and the borrow ends before `y` is borrowed.
                for (sum, x) in sums.iter_mut().zip(unsafe { job.x.slice(row(outer * axis + at)) }) {
                    *sum = x.to_f32();
                }
            }
            for at in 0..index_axis {
                let range = row(outer * index_axis + at);
                // SAFETY: the row is inside both operands, over which `y` does not lie.
                let (index, updates) = unsafe { (job.index.slice(range.clone()), job.updates.slice(range)) };
                for (line, (&index, update)) in index.iter().zip(updates).enumerate() {
                    if (index as usize) < axis {
                        sums[index as usize * width + line] += update.to_f32();
                    } else {
                        // SAFETY: the cell outlives the jobs of its program.
                        unsafe { job.fault.raise(index) };
                    }
                }
            }
            for (at, sums) in sums.chunks_exact(width).enumerate() {
                // SAFETY: the row's lines are this part's own.
                for (to, sum) in unsafe { job.y.slice(row(outer * axis + at)) }.iter_mut().zip(sums) {
                    *to = T::from_f32(*sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCell, bf16, run_alone};

    fn numbers<T: Element>(count: usize, step: usize) -> Vec<T> {
        (0..count).map(|i| T::from_f32((i * step % 257) as f32 / 64.0 - 2.0)).collect()
    }

    fn indices(sizes: Sizes, bound: usize) -> Vec<u32> {
        (0..sizes.outer * sizes.index_axis * sizes.inner).map(|i| (i * i * 7 % bound) as u32).collect()
    }

    /// For each element of the index: its place in `x`, if the index is in range.
    fn places(index: &[u32], sizes: Sizes) -> Vec<Option<usize>> {
        let Sizes { axis, index_axis, inner, .. } = sizes;
        let place = |(position, &index): (usize, &u32)| {
            let (outer, line) = (position / (index_axis * inner), position % inner);
            ((index as usize) < axis).then(|| (outer * axis + index as usize) * inner + line)
        };
        index.iter().enumerate().map(place).collect()
    }

    fn gather<T: Element + PartialEq + std::fmt::Debug>(sizes: Sizes, bound: usize) -> Option<u32> {
        let x = numbers::<T>(sizes.outer * sizes.axis * sizes.inner, 37);
        let index = indices(sizes, bound);
        let mut y = vec![T::from_f32(9.0); index.len()];
        let cell = FaultCell::default();
        let (from, by) = (In::new(x.as_ptr(), x.len()), In::new(index.as_ptr(), index.len()));
        run_alone(&Gather::new(from, by, Out::new(y.as_mut_ptr(), y.len()), sizes, Fault::new(&cell, 0)));
        for (position, (y, place)) in y.iter().zip(places(&index, sizes)).enumerate() {
            assert_eq!(*y, place.map_or(T::from_f32(0.0), |place| x[place]), "{sizes:?}, element {position}");
        }
        cell.take().map(|(_, index)| index)
    }

    fn scatter<T: Element>(isa: Isa, sizes: Sizes, bound: usize, in_place: bool, tolerance: f64) -> Option<u32> {
        let mut x = numbers::<T>(sizes.outer * sizes.axis * sizes.inner, 37);
        let index = indices(sizes, bound);
        let updates = numbers::<T>(index.len(), 53);
        let mut expected: Vec<f64> = x.iter().map(|x| x.to_f32() as f64).collect();
        for (update, place) in updates.iter().zip(places(&index, sizes)) {
            place.into_iter().for_each(|place| expected[place] += update.to_f32() as f64);
        }
        let mut apart = vec![T::from_f32(9.0); x.len()];
        let y = if in_place { x.as_mut_ptr() } else { apart.as_mut_ptr() };
        let from = if in_place { y.cast_const() } else { x.as_ptr() };
        let cell = FaultCell::default();
        run_alone(&ScatterAdd::new(
            isa,
            In::new(from, expected.len()),
            In::new(index.as_ptr(), index.len()),
            In::new(updates.as_ptr(), updates.len()),
            Out::new(y, expected.len()),
            sizes,
            Fault::new(&cell, 0),
        ));
        let y = if in_place { &x } else { &apart };
        let largest = expected.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
        for (position, (y, expected)) in y.iter().zip(&expected).enumerate() {
            let error = (y.to_f32() as f64 - expected).abs() / largest;
            assert!(error <= tolerance, "{isa}, {sizes:?}, element {position}: {} not {expected}", y.to_f32());
        }
        cell.take().map(|(_, index)| index)
    }

    /// One element, odd sizes, the last axis, many lines side by side, long lines, and nothing at all.
    fn all_sizes() -> Vec<Sizes> {
        [
            (1, 1, 1, 1),
            (3, 5, 2, 7),
            (400, 90, 3, 1),
            (2, 3, 5, 9001),
            (3, 2000, 11, 19),
            (1, 20_000, 20_001, 1),
            (0, 2, 3, 4),
            (2, 3, 0, 4),
            (2, 3, 4, 0),
        ]
        .map(|(outer, axis, index_axis, inner)| Sizes { outer, axis, index_axis, inner })
        .to_vec()
    }

    #[test]
    fn elements_are_picked() {
        for sizes in all_sizes() {
            assert_eq!(gather::<f32>(sizes, sizes.axis), None);
            assert_eq!(gather::<bf16>(sizes, sizes.axis), None);
        }
    }

    #[test]
    fn elements_are_added() {
        for isa in Isa::available() {
            for (sizes, in_place) in all_sizes().into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
                assert_eq!(scatter::<f32>(isa, sizes, sizes.axis, in_place, 1e-6), None);
                assert_eq!(scatter::<bf16>(isa, sizes, sizes.axis, in_place, 4e-3), None);
            }
        }
    }

    #[test]
    fn an_index_out_of_range_is_a_fault() {
        let sizes = Sizes { outer: 3, axis: 5, index_axis: 4, inner: 6 };
        assert_eq!(gather::<f32>(sizes, 9), Some(7));
        let nothing = Sizes { axis: 0, ..sizes };
        assert_eq!(gather::<f32>(nothing, 9), Some(0));
        for isa in Isa::available() {
            assert_eq!(scatter::<f32>(isa, sizes, 9, false, 1e-6), Some(7));
            assert_eq!(scatter::<f32>(isa, nothing, 9, false, 1e-6), Some(0));
        }
    }
}
