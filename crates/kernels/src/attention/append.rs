//! Rows written into a cache, from a place on that is only known when the job runs.

use super::Heads;
use crate::{Element, In, Job, Out, chunk, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// Writes `new` [batch, heads, rows, depth] over the places `position..` of `cache` [batch, heads, places, depth], which is
/// dense. Rows whose place is not there are left out.
pub struct Append<N, C> {
    new: Heads<N>,
    position: In<i32>,
    cache: Out<C>,
    heads: usize,
    rows: usize,
    places: usize,
    depth: usize,
    all_rows: usize,
}

impl<N: Element, C: Element> Append<N, C> {
    /// For these sizes of `new`, and so many places of the cache; the position is one number.
    pub fn new(
        new: Heads<N>,
        [batch, heads, rows, depth]: [usize; 4],
        position: In<i32>,
        cache: Out<C>,
        places: usize,
    ) -> Append<N, C> {
        Append { new, position, cache, heads, rows, places, depth, all_rows: batch * heads * rows }
    }

    fn rows_per_part(&self) -> usize {
        (PART_ELEMENTS / self.depth.max(1)).max(1)
    }
}

impl<N: Element, C: Element> Job for Append<N, C> {
    fn parts(&self) -> usize {
        parts_of(self.all_rows, self.rows_per_part())
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the position is there, and nothing writes to it, by the caller's promise.
        let position = unsafe { self.position.slice(0..1) }[0] as i64;
        for row in chunk(part, self.rows_per_part(), self.all_rows) {
            let (head, row) = (row / self.rows, row % self.rows);
            let place = usize::try_from(position + row as i64).ok().filter(|&place| place < self.places);
            let Some(place) = place else { continue };
            let start = (head * self.places + place) * self.depth;
            // SAFETY: the row is inside of `new`, which nothing writes to; the place is inside of the cache, and this
            // row's own.
            let (from, to) = unsafe {
                let from = self.new.row((head / self.heads, head % self.heads), row, self.depth);
                (from, self.cache.slice(start..start + self.depth))
            };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = C::from_f32(from.to_f32()));
        }
    }
}
