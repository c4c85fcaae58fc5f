//! Dropout: elements set to zero at random, the others scaled up to make good for them.

use crate::isa::multiversion;
use crate::random::{GROUP, words};
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};

/// Elements of a part: whole groups of random words.
const PART_ELEMENTS: usize = 256 * GROUP;

/// The least random word with which an element is kept.
pub fn threshold(rate: f32) -> u32 {
    (rate as f64 * (1u64 << 32) as f64).ceil() as u32
}

/// What kept elements are multiplied by.
pub fn scale(rate: f32) -> f32 {
    (1.0 / (1.0 - rate as f64)) as f32
}

/// `y = x / (1 - rate)` where the element's random word says so, else 0.
pub struct Dropout<T> {
    x: In<T>,
    key: In<u32>,
    y: Out<T>,
    stream: u32,
    threshold: u32,
    scale: f32,
    body: unsafe fn(&Dropout<T>, usize),
}

impl<T: Element> Dropout<T> {
    /// Dropout of dense elements at a rate in 0..1, by a stream of random words under the two words of `key`, which
    /// are read when the job runs. `y` may be `x`.
    pub fn new(isa: Isa, x: In<T>, key: In<u32>, y: Out<T>, rate: f32, stream: u32) -> Dropout<T> {
        Dropout { x, key, y, stream, threshold: threshold(rate), scale: scale(rate), body: elements_of::select(isa) }
    }
}

impl<T: Element> Job for Dropout<T> {
    fn parts(&self) -> usize {
        parts_of(self.x.len(), PART_ELEMENTS)
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
    /// The elements of a part: whole groups, whose length the compiler knows, and what is left.
    fn elements_of<T: Element>(job: &Dropout<T>, part: usize) {
        // SAFETY: the key has two words, and nothing writes to them while the job runs.
        let key = unsafe { job.key.slice(0..2) };
        let key = [key[0], key[1]];
        let range = chunk(part, PART_ELEMENTS, job.x.len());
        let whole = range.end / GROUP;
        // SAFETY: the groups are inside the operands and this part's own.
        unsafe {
            for group in range.start / GROUP..whole {
                keep(job, group, GROUP, key);
            }
            if whole * GROUP < range.end {
                keep(job, whole, range.end - whole * GROUP, key);
            }
        }
    }
}

/// Keeps some of the first `length` elements of a group. They are taken to an array first, so `y` may lie over `x`.
///
/// # Safety
/// The elements must be inside the operands, and nothing else may touch them.
#[inline(always)]
unsafe fn keep<T: Element>(job: &Dropout<T>, group: usize, length: usize, key: [u32; 2]) {
    let range = group * GROUP..group * GROUP + length;
    let mut numbers = [0.0; GROUP];
    // SAFETY: the caller's promise; the borrow ends before `y` is borrowed.
    for (to, from) in numbers.iter_mut().zip(unsafe { job.x.slice(range.clone()) }) {
        *to = from.to_f32();
    }
    for (number, word) in numbers.iter_mut().zip(words(group as u64, job.stream, key)) {
        *number = if word >= job.threshold { *number * job.scale } else { 0.0 };
    }
    // SAFETY: the caller's promise.
    for (to, from) in unsafe { job.y.slice(range) }.iter_mut().zip(&numbers) {
        *to = T::from_f32(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::word;
    use crate::{bf16, run_alone};

    const KEY: [u32; 2] = [11, 12];

    fn dropped<T: Element>(isa: Isa, x: &[T], rate: f32, stream: u32, in_place: bool) -> Vec<T> {
        let mut y = x.to_vec();
        let from = if in_place { y.as_ptr() } else { x.as_ptr() };
        let (key, y_out) = (In::new(KEY.as_ptr(), 2), Out::new(y.as_mut_ptr(), x.len()));
        run_alone(&Dropout::new(isa, In::new(from, x.len()), key, y_out, rate, stream));
        y
    }

    fn check<T: Element>(count: usize, rate: f32) {
        let x: Vec<T> = (0..count).map(|index| T::from_f32((index % 127) as f32 - 63.5)).collect();
        let kept = |index: usize| word(index as u64, 5, KEY) as f64 >= rate as f64 * 4_294_967_296.0;
        for isa in Isa::available() {
            for in_place in [false, true] {
                let y = dropped(isa, &x, rate, 5, in_place);
                for index in 0..count {
                    let scaled = x[index].to_f32() as f64 / (1.0 - rate as f64);
                    let expected = if kept(index) { scaled } else { 0.0 };
                    let error = (y[index].to_f32() as f64 - expected).abs() / scaled.abs();
                    let tolerance = if size_of::<T>() == 2 { 1.0 / 256.0 } else { 1e-6 };
                    assert!(error < tolerance, "element {index} of {count} at rate {rate}");
                }
            }
        }
    }

    #[test]
    fn dropout_equals_its_definition_on_every_instruction_set() {
        for count in [0, 1, 63, 64, 65, 40_003] {
            for rate in [0.0, 0.1, 0.5, 1.0 - f32::EPSILON / 2.0] {
                check::<f32>(count, rate);
                check::<bf16>(count, rate);
            }
        }
    }

    #[test]
    fn the_share_kept_is_as_asked_and_streams_are_independent() {
        let count = 200_000;
        let x = vec![1.0f32; count];
        for rate in [0.1, 0.5, 0.9] {
            let (a, b) = (dropped(Isa::detect(), &x, rate, 1, false), dropped(Isa::detect(), &x, rate, 2, false));
            let share = |kept: &dyn Fn(usize) -> bool| (0..count).filter(|&i| kept(i)).count() as f64 / count as f64;
            let keep = 1.0 - rate as f64;
            // Five standard deviations of a binomial share of this many elements.
            let within = |share: f64, expected: f64| {
                (share - expected).abs() < 5.0 * (expected * (1.0 - expected) / count as f64).sqrt()
            };
            assert!(within(share(&|i| a[i] != 0.0), keep), "rate {rate}");
            assert!(within(share(&|i| a[i] != 0.0 && b[i] != 0.0), keep * keep), "two streams at rate {rate}");
            let neighbours = share(&|i| a[i] != 0.0 && a[(i + 1) % count] != 0.0);
            // Pairs overlap, so their share varies somewhat more.
            assert!((neighbours - keep * keep).abs() < 0.01, "neighbours at rate {rate}");
        }
    }
}
