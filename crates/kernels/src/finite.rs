//! A copy that reports the first element that is NaN or infinite.

use crate::isa::multiversion;
use crate::{Element, Fault, In, Isa, Job, Out, chunk, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * 1024;
/// Elements that are looked at before asking whether one was not finite.
const BLOCK: usize = 1024;

/// `y = x`; raises the fault with the index of the first element that is not finite.
pub struct CheckFinite<T> {
    x: In<T>,
    y: Out<T>,
    fault: Fault,
    body: unsafe fn(&CheckFinite<T>, usize),
}

impl<T: Element> CheckFinite<T> {
    /// The check of dense elements. `y` may be `x`, and is then not written.
    pub fn new(isa: Isa, x: In<T>, y: Out<T>, fault: Fault) -> CheckFinite<T> {
        CheckFinite { x, y, fault, body: elements_of::select(isa) }
    }
}

impl<T: Element> Job for CheckFinite<T> {
    fn parts(&self) -> usize {
        parts_of(self.x.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise, which covers the fault's cell; parts are disjoint ranges, and the machine
        // has the level, since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The elements of a part.
    fn elements_of<T: Element>(job: &CheckFinite<T>, part: usize) {
        let range = chunk(part, PART_ELEMENTS, job.x.len());
        // SAFETY: the part's elements; where `y` lies over them it is not borrowed.
        let x = unsafe { job.x.slice(range.clone()) };
        if let Some(first) = first_not_finite(x) {
            let index = u32::try_from(range.start + first).unwrap_or(u32::MAX);
            // SAFETY: the cell lives as long as the program that the job is part of.
            unsafe { job.fault.raise(index) };
        }
        if job.x.as_ptr() != job.y.as_ptr().cast_const() {
            // SAFETY: the part's own elements, in another buffer.
            unsafe { job.y.slice(range) }.copy_from_slice(x);
        }
    }
}

/// The place of the first element that is NaN or infinite.
#[inline(always)]
fn first_not_finite<T: Element>(x: &[T]) -> Option<usize> {
    for (index, block) in x.chunks(BLOCK).enumerate() {
        let mut found = false;
        for x in block {
            found |= !x.to_f32().is_finite();
        }
        if found {
            return block.iter().position(|x| !x.to_f32().is_finite()).map(|at| index * BLOCK + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCell, bf16, run_alone};

    fn check<T: Element>(count: usize, bad: &[(usize, f32)], in_place: bool) {
        let mut x: Vec<T> = (0..count).map(|index| T::from_f32(index as f32)).collect();
        bad.iter().for_each(|&(index, number)| x[index] = T::from_f32(number));
        let first = bad.iter().map(|&(index, _)| index as u32).min();
        for isa in Isa::available() {
            let cell = FaultCell::default();
            let mut y = if in_place { x.clone() } else { vec![T::from_f32(-1.0); count] };
            let from = if in_place { y.as_ptr() } else { x.as_ptr() };
            let to = Out::new(y.as_mut_ptr(), count);
            run_alone(&CheckFinite::new(isa, In::new(from, count), to, Fault::new(&cell, 4)));
            assert_eq!(cell.take(), first.map(|index| (4, index)), "{count} elements, {bad:?}");
            assert_eq!(bytemuck::cast_slice::<T, u8>(&y), bytemuck::cast_slice::<T, u8>(&x), "a copy to the bit");
        }
    }

    #[test]
    fn the_first_element_that_is_not_finite_is_reported() {
        for in_place in [false, true] {
            for count in [0, 1, 1025, 70_001] {
                check::<f32>(count, &[], in_place);
                check::<bf16>(count, &[], in_place);
            }
            check::<f32>(1, &[(0, f32::NAN)], in_place);
            let two_parts = [(69_999, f32::INFINITY), (33_333, f32::NEG_INFINITY), (33_334, f32::NAN)];
            check::<f32>(70_000, &two_parts, in_place);
            check::<bf16>(70_000, &two_parts, in_place);
        }
    }
}
