//! Random numbers of equal likelihood.

use crate::isa::multiversion;
use crate::random::{GROUP, words};
use crate::{In, Isa, Job, Out, chunk, parts_of};

/// Elements of a part: whole groups of random words.
const PART_ELEMENTS: usize = 256 * GROUP;

/// The number of a random word: a multiple of 2^-24, at least 0 and less than 1.
#[inline(always)]
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// A number for every element, by a stream of random words under the two words of a key.
pub struct Uniform {
    key: In<u32>,
    y: Out<f32>,
    stream: u32,
    body: unsafe fn(&Uniform, usize),
}

impl Uniform {
    /// The key is read when the job runs.
    pub fn new(isa: Isa, key: In<u32>, y: Out<f32>, stream: u32) -> Uniform {
        Uniform { key, y, stream, body: numbers_of::select(isa) }
    }
}

impl Job for Uniform {
    fn parts(&self) -> usize {
        parts_of(self.y.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint groups of elements, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The numbers of a part, group by group.
    fn numbers_of(job: &Uniform, part: usize) {
        // SAFETY: the key has two words, and nothing writes to them while the job runs.
        let key = unsafe { job.key.slice(0..2) };
        let key = [key[0], key[1]];
        let range = chunk(part, PART_ELEMENTS, job.y.len());
        let first = range.start / GROUP;
        // SAFETY: the range is this part's own.
        let y = unsafe { job.y.slice(range) };
        for (group, y) in y.chunks_mut(GROUP).enumerate() {
            for (y, word) in y.iter_mut().zip(words((first + group) as u64, job.stream, key)) {
                *y = unit(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::word;
    use crate::run_alone;

    #[test]
    fn numbers_are_those_of_the_words_and_below_one() {
        assert_eq!((unit(0), unit(u32::MAX)), (0.0, 1.0 - 2f32.powi(-24)));
        let (key, mut y) = ([3u32, 4], vec![9.0; 2 * PART_ELEMENTS + 77]);
        for isa in Isa::available() {
            run_alone(&Uniform::new(isa, In::new(key.as_ptr(), 2), Out::new(y.as_mut_ptr(), y.len()), 5));
            assert!(y.iter().enumerate().all(|(index, &y)| y == unit(word(index as u64, 5, key))), "{isa}");
        }
        let mean = y.iter().map(|&y| y as f64).sum::<f64>() / y.len() as f64;
        assert!((mean - 0.5).abs() < 5e-3, "{mean}");
    }
}
