//! Sums over leading axes in order: each is one chain of additions in f32, which can go on from an earlier one.

use crate::isa::multiversion;
use crate::strided::{Axis, BlockReader, joined};
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};

/// Sums of a part: few enough that their running values stay in the first-level cache.
const PART_SUMS: usize = 1024;

/// `y[j] = x[0, j] + x[1, j] + ...`, added up from the left.
pub struct OrderedSum<Y> {
    reader: BlockReader,
    y: Out<Y>,
    terms: usize,
    continued: bool,
    body: unsafe fn(&OrderedSum<Y>, usize, &mut [f32]),
}

impl<Y: Element> OrderedSum<Y> {
    /// Of the terms along `reduced` axes for each place along the `kept` ones, given as (size, stride), outermost
    /// first. If `continued`, `y` holds what the sums go on from.
    pub fn new<T: Element>(
        isa: Isa,
        kept: &[(usize, usize)],
        reduced: &[(usize, usize)],
        x: In<T>,
        y: Out<Y>,
        continued: bool,
    ) -> OrderedSum<Y> {
        let terms = reduced.iter().map(|&(size, _)| size).product();
        let axes = joined(reduced.iter().chain(kept).map(|&(size, stride)| Axis { size, stride }));
        let reader = BlockReader::new(isa, x, axes);
        OrderedSum { reader, y, terms, continued, body: sums_of::select(isa) }
    }
}

impl<Y: Element> Job for OrderedSum<Y> {
    fn parts(&self) -> usize {
        parts_of(self.y.len(), PART_SUMS)
    }

    fn worker_scratch(&self) -> usize {
        2 * PART_SUMS * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges of sums, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// The sums of a part.
    fn sums_of<Y: Element>(job: &OrderedSum<Y>, part: usize, scratch: &mut [f32]) {
        let places = chunk(part, PART_SUMS, job.y.len());
        let (sums, block) = scratch.split_at_mut(PART_SUMS);
        let sums = &mut sums[..places.len()];
        // SAFETY: these sums are this part's own.
        let y = unsafe { job.y.slice(places.clone()) };
        match job.continued {
            true => sums.iter_mut().zip(&*y).for_each(|(sum, y)| *sum = y.to_f32()),
            false => sums.fill(0.0),
        }
        for term in 0..job.terms {
            // SAFETY: the terms lie inside the operand, which nothing writes to.
            let x = unsafe { job.reader.block(term * job.y.len() + places.start, places.len(), block) };
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y = Y::from_f32(*sum));
    }
}
