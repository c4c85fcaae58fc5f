//! The sum of what each image of a batch has found for itself.

use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 4 * 1024;

/// Adds the sums of the images, in their order.
pub struct SumImages<T> {
    partials: In<f32>,
    y: Out<T>,
    accumulate: bool,
    /// Rows and columns of the matrices of sums, if the result has them transposed.
    transposed: Option<[usize; 2]>,
    body: unsafe fn(&SumImages<T>, usize),
}

impl<T: Element> SumImages<T> {
    /// From what [`super::WeightGradient`] wrote to the gradient of the weights.
    pub fn new(isa: Isa, partials: In<f32>, y: Out<T>) -> SumImages<T> {
        SumImages { partials, y, accumulate: false, transposed: None, body: sums_of::select(isa) }
    }

    /// Of matrices of so many rows and columns, which are transposed in the result; it is made of whole ones.
    pub(super) fn transposing(self, sizes: [usize; 2]) -> SumImages<T> {
        assert!(
            self.y.len().is_multiple_of((sizes[0] * sizes[1]).max(1)),
            "{} sums in matrices of {sizes:?}",
            self.y.len()
        );
        SumImages { transposed: Some(sizes), ..self }
    }

    /// Where the result has a sum.
    #[inline(always)]
    fn place(&self, sum: usize) -> usize {
        let Some([rows, columns]) = self.transposed else { return sum };
        let (matrix, sum) = (sum / (rows * columns), sum % (rows * columns));
        matrix * rows * columns + sum % columns * rows + sum / columns
    }

    /// Going on from what the result holds.
    pub fn accumulating(self, accumulate: bool) -> SumImages<T> {
        SumImages { accumulate, ..self }
    }
}

impl<T: Element> Job for SumImages<T> {
    fn parts(&self) -> usize {
        parts_of(self.y.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own elements, and the machine has the level.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The elements of a part, a register's worth after another.
    fn sums_of<T: Element>(job: &SumImages<T>, part: usize) {
        const STRIP: usize = 256;
        let range = chunk(part, PART_ELEMENTS, job.y.len());
        for start in range.clone().step_by(STRIP) {
            let strip = start..(start + STRIP).min(range.end);
            let mut sums = [0.0; STRIP];
            let element = |index: usize| job.y.as_ptr().wrapping_add(job.place(strip.start + index));
            if job.accumulate {
                for (index, sum) in sums.iter_mut().enumerate().take(strip.len()) {
                    // SAFETY: places are a permutation of the result's, which is made of whole matrices, so the elements of these
                    // sums are inside of it, and this part's own.
                    *sum = unsafe { *element(index) }.to_f32();
                }
            }
            for image in (0..job.partials.len()).step_by(job.y.len()) {
                // SAFETY: nothing writes the sums of the images while this job runs.
                let partial = unsafe { job.partials.slice(image + strip.start..image + strip.end) };
                for (sum, partial) in sums.iter_mut().zip(partial) {
                    *sum += partial;
                }
            }
            for (index, &sum) in sums.iter().enumerate().take(strip.len()) {
                // SAFETY: as above.
                unsafe { *element(index) = T::from_f32(sum) };
            }
        }
    }
}
