//! Optimizer updates: weights and moments move on in one pass over memory, each in its own place.

use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, bf16, chunk, f16, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// Elements that are held in registers at a time: so results may lie over operands, and loops still become vector
/// code.
const BLOCK: usize = 32;

/// Numbers that the update moves on: what they are, and where the new ones go, which may be the same place.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The numbers before.
    pub from: In<f32>,
    /// The numbers after.
    pub to: Out<f32>,
}

/// The gradient's elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Gradient {
    F32(In<f32>),
    Bf16(In<bf16>),
    F16(In<f16>),
}

/// A gradient that is multiplied by one number as it is read.
#[derive(Clone, Copy, Debug)]
pub struct Scaled {
    /// The gradient.
    pub gradient: Gradient,
    /// One number.
    pub scale: In<f32>,
}

/// How one weight moves, given its gradient and its moments.
pub trait Rule: Send + Sync + 'static {
    /// How many moments each weight has: one or two.
    const MOMENTS: usize;

    /// What is the same for all weights of one step.
    type Factors: Copy;

    /// The factors of the step at hand.
    ///
    /// # Safety
    /// The learning rate and the step that the rule was built with must be alive, and nothing may write to them.
    unsafe fn factors(&self) -> Self::Factors;

    /// The new weight and moments; of two moments, a rule that has one leaves the second alone.
    fn moved(factors: Self::Factors, weight: f32, gradient: f32, moments: [f32; 2]) -> (f32, [f32; 2]);
}

/// Adam with decoupled weight decay:
/// `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w)`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct AdamW {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// One number.
    pub learning_rate: In<f32>,
    /// One whole number: 1 at the first step.
    pub step: In<f32>,
}

/// The factors of [`AdamW`], with the corrections of the moments' bias worked in.
#[derive(Clone, Copy, Debug)]
pub struct AdamWFactors {
    kept1: f32,
    taken1: f32,
    kept2: f32,
    taken2: f32,
    epsilon: f32,
    decay: f32,
    rate: f32,
    root_correction: f32,
}

impl Rule for AdamW {
    const MOMENTS: usize = 2;
    type Factors = AdamWFactors;

    unsafe fn factors(&self) -> AdamWFactors {
        // SAFETY: the caller's promise.
        let (learning_rate, step) = unsafe { (self.learning_rate.slice(0..1)[0], self.step.slice(0..1)[0]) };
        // In f64: with beta2 near 1, the difference from 1 would lose most of its digits in f32.
        let bias = |beta: f32| 1.0 - power(beta as f64, step as u64);
        AdamWFactors {
            kept1: self.beta1,
            taken1: 1.0 - self.beta1,
            kept2: self.beta2,
            taken2: 1.0 - self.beta2,
            epsilon: self.epsilon,
            decay: learning_rate * self.weight_decay,
            rate: (learning_rate as f64 / bias(self.beta1)) as f32,
            root_correction: (1.0 / bias(self.beta2)).sqrt() as f32,
        }
    }

    #[inline(always)]
    fn moved(at: AdamWFactors, weight: f32, gradient: f32, [first, second]: [f32; 2]) -> (f32, [f32; 2]) {
        let first = at.kept1 * first + at.taken1 * gradient;
        let second = at.kept2 * second + at.taken2 * (gradient * gradient);
        let root = second.sqrt() * at.root_correction + at.epsilon;
        (weight - (at.rate * first / root + at.decay * weight), [first, second])
    }
}

/// Stochastic gradient descent with momentum and decoupled weight decay: `b = momentum b + g`,
/// `w = w - lr (b + decay w)`, or with Nesterov's momentum `w = w - lr (g + momentum b + decay w)`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Sgd {
    pub momentum: f32,
    pub weight_decay: f32,
    pub nesterov: bool,
    /// One number.
    pub learning_rate: In<f32>,
}

/// The factors of [`Sgd`].
#[derive(Clone, Copy, Debug)]
pub struct SgdFactors {
    momentum: f32,
    weight_decay: f32,
    learning_rate: f32,
    /// The weight moves along `ahead * g + behind * b`, whether or not the momentum is Nesterov's.
    ahead: f32,
    behind: f32,
}

impl Rule for Sgd {
    const MOMENTS: usize = 1;
    type Factors = SgdFactors;

    unsafe fn factors(&self) -> SgdFactors {
        SgdFactors {
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            // SAFETY: the caller's promise.
            learning_rate: unsafe { self.learning_rate.slice(0..1) }[0],
            ahead: if self.nesterov { 1.0 } else { 0.0 },
            behind: if self.nesterov { self.momentum } else { 1.0 },
        }
    }

    #[inline(always)]
    fn moved(at: SgdFactors, weight: f32, gradient: f32, [buffer, _]: [f32; 2]) -> (f32, [f32; 2]) {
        let buffer = at.momentum * buffer + gradient;
        let direction = at.ahead * gradient + at.behind * buffer;
        (weight - at.learning_rate * (direction + at.weight_decay * weight), [buffer, 0.0])
    }
}

/// Lion: `w = w - lr (sign(b1 m + (1 - b1) g) + decay w)`, `m = b2 m + (1 - b2) g`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Lion {
    pub beta1: f32,
    pub beta2: f32,
    pub weight_decay: f32,
    /// One number.
    pub learning_rate: In<f32>,
}

/// The factors of [`Lion`].
#[derive(Clone, Copy, Debug)]
pub struct LionFactors {
    kept1: f32,
    taken1: f32,
    kept2: f32,
    taken2: f32,
    weight_decay: f32,
    learning_rate: f32,
}

impl Rule for Lion {
    const MOMENTS: usize = 1;
    type Factors = LionFactors;

    unsafe fn factors(&self) -> LionFactors {
        LionFactors {
            kept1: self.beta1,
            taken1: 1.0 - self.beta1,
            kept2: self.beta2,
            taken2: 1.0 - self.beta2,
            weight_decay: self.weight_decay,
            // SAFETY: the caller's promise.
            learning_rate: unsafe { self.learning_rate.slice(0..1) }[0],
        }
    }

    #[inline(always)]
    fn moved(at: LionFactors, weight: f32, gradient: f32, [moment, _]: [f32; 2]) -> (f32, [f32; 2]) {
        let direction = sign(at.kept1 * moment + at.taken1 * gradient);
        let moment = at.kept2 * moment + at.taken2 * gradient;
        (weight - at.learning_rate * (direction + at.weight_decay * weight), [moment, 0.0])
    }
}

/// 1 above zero, -1 below it, 0 at it; a NaN stays one, so that a weight does not stand still without a word.
#[inline(always)]
fn sign(x: f32) -> f32 {
    let positive = if x > 0.0 { 1.0 } else { x * 0.0 };
    if x < 0.0 { -1.0 } else { positive }
}

/// `base^exponent` by squaring: the same bits everywhere.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// One step of a rule for all weights of a tensor.
pub struct Update<R> {
    rule: R,
    weight: Moved,
    gradient: Scaled,
    moments: Vec<Moved>,
    body: unsafe fn(&Update<R>, usize),
}

impl<R: Rule> Update<R> {
    /// A step for dense operands of one size.
    pub fn new(isa: Isa, rule: R, weight: Moved, gradient: Scaled, moments: &[Moved]) -> Update<R> {
        assert_eq!(moments.len(), R::MOMENTS, "moments of an update");
        Update { rule, weight, gradient, moments: moments.to_vec(), body: part_of::select(isa) }
    }
}

impl<R: Rule> Job for Update<R> {
    fn parts(&self) -> usize {
        parts_of(self.weight.to.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges, and the machine has the level, since whoever
        // built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// A part. The gradient's type is told apart here, outside of the loops.
    fn part_of<R: Rule>(job: &Update<R>, part: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match job.gradient.gradient {
                Gradient::F32(gradient) => blocks_of(job, gradient, part),
                Gradient::Bf16(gradient) => blocks_of(job, gradient, part),
                Gradient::F16(gradient) => blocks_of(job, gradient, part),
            }
        }
    }
}

/// A part, block after block; the last block of all may be shorter.
///
/// # Safety
/// As for [`Job::run`].
#[inline(always)]
unsafe fn blocks_of<R: Rule, G: Element>(job: &Update<R>, gradient: In<G>, part: usize) {
    let range = chunk(part, PART_ELEMENTS, job.weight.to.len());
    let whole = range.start + (range.len() - range.len() % BLOCK);
    // SAFETY: the caller's promise; the blocks are inside this part.
    unsafe {
        let factors = (job.rule.factors(), job.gradient.scale.slice(0..1)[0]);
        for start in (range.start..whole).step_by(BLOCK) {
            block(job, factors, gradient, start, BLOCK);
        }
        if range.end > whole {
            block(job, factors, gradient, whole, range.end - whole);
        }
    }
}

/// Moves `length` weights on, from `start`, by the rule's factors and the gradient's scale.
///
/// # Safety
/// As for [`Job::run`]; the weights must belong to the part at hand.
#[inline(always)]
unsafe fn block<R: Rule, G: Element>(
    job: &Update<R>,
    (factors, scale): (R::Factors, f32),
    gradient: In<G>,
    start: usize,
    length: usize,
) {
    // SAFETY: every operand has the size of the weights. Borrows for reading end with each load, before the stores.
    unsafe {
        let mut weights = load(job.weight.from, start, length);
        let gradients = load(gradient, start, length);
        let mut first = load(job.moments[0].from, start, length);
        let mut second = [0.0; BLOCK];
        if R::MOMENTS == 2 {
            second = load(job.moments[1].from, start, length);
        }
        for i in 0..BLOCK {
            let (gradient, moments) = (gradients[i] * scale, [first[i], second[i]]);
            (weights[i], [first[i], second[i]]) = R::moved(factors, weights[i], gradient, moments);
        }
        store(job.weight.to, start, length, &weights);
        store(job.moments[0].to, start, length, &first);
        if R::MOMENTS == 2 {
            store(job.moments[1].to, start, length, &second);
        }
    }
}

/// # Safety
/// As for [`In::slice`].
#[inline(always)]
unsafe fn load<T: Element>(from: In<T>, start: usize, length: usize) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    // SAFETY: the caller's promise.
    for (to, from) in block.iter_mut().zip(unsafe { from.slice(start..start + length) }) {
        *to = from.to_f32();
    }
    block
}

/// # Safety
/// As for [`Out::slice`].
#[inline(always)]
unsafe fn store(to: Out<f32>, start: usize, length: usize, block: &[f32; BLOCK]) {
    // SAFETY: the caller's promise.
    unsafe { to.slice(start..start + length) }.copy_from_slice(&block[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_alone;

    const LEARNING_RATE: f32 = 0.125;
    const SCALE: f32 = 0.5;

    fn numbers(count: usize, step: usize, low: f32) -> Vec<f32> {
        (0..count).map(|i| (i * step % 257) as f32 / 128.0 + low).collect()
    }

    fn one(number: &f32) -> In<f32> {
        In::new(number, 1)
    }

    /// One step of a rule on `count` weights; the results, weights first.
    fn step<R: Rule + Copy>(isa: Isa, rule: R, count: usize, bf16_gradient: bool, in_place: bool) -> Vec<Vec<f32>> {
        let mut operands = start(count);
        let gradient = operands.remove(1);
        operands.truncate(1 + R::MOMENTS);
        let halves: Vec<bf16> = gradient.iter().map(|&x| <bf16 as Element>::from_f32(x)).collect();
        let gradient = match bf16_gradient {
            true => Gradient::Bf16(In::new(halves.as_ptr(), count)),
            false => Gradient::F32(In::new(gradient.as_ptr(), count)),
        };
        let gradient = Scaled { gradient, scale: one(&SCALE) };
        let mut results = vec![vec![9.0; count]; operands.len()];
        let moved = |(from, to): (&mut Vec<f32>, &mut Vec<f32>)| {
            let from = from.as_mut_ptr();
            let to = if in_place { from } else { to.as_mut_ptr() };
            Moved { from: In::new(from, count), to: Out::new(to, count) }
        };
        let all: Vec<Moved> = operands.iter_mut().zip(&mut results).map(moved).collect();
        run_alone(&Update::new(isa, rule, all[0], gradient, &all[1..]));
        if in_place { operands } else { results }
    }

    /// Weight, gradient (such that bf16 holds it), first and second moment.
    fn start(count: usize) -> Vec<Vec<f32>> {
        vec![numbers(count, 37, -1.0), numbers(count, 53, -0.5), numbers(count, 71, -1.0), numbers(count, 91, 0.0)]
    }

    /// Compares every way to run a rule with its formula in f64, which takes weight, scaled gradient and moments.
    fn check<R: Rule + Copy>(rule: R, formula: impl Fn(f64, f64, f64, f64) -> [f64; 3]) {
        for count in [0, 1, 33, 2 * PART_ELEMENTS + 5] {
            let of = start(count);
            let expected = |i: usize| {
                let gradient = <bf16 as Element>::from_f32(of[1][i]).to_f32() * SCALE;
                formula(of[0][i] as f64, gradient as f64, of[2][i] as f64, of[3][i] as f64)
            };
            let baseline = step(Isa::Baseline, rule, count, true, false);
            for (which, numbers) in baseline.iter().enumerate() {
                for (i, &number) in numbers.iter().enumerate() {
                    let expected = expected(i)[which];
                    let error = (number as f64 - expected).abs();
                    assert!(
                        error < 1e-6 * expected.abs().max(1.0),
                        "result {which}, element {i}: {number} not {expected}"
                    );
                }
            }
            for isa in Isa::available() {
                assert_eq!(step(isa, rule, count, true, false), baseline, "{isa} gives other bits");
                assert_eq!(step(isa, rule, count, true, true), baseline, "{isa} gives other bits in place");
                let (apart, in_place) = (step(isa, rule, count, false, false), step(isa, rule, count, false, true));
                assert_eq!(apart, in_place, "{isa} gives other bits in place");
                assert_eq!(apart, step(Isa::Baseline, rule, count, false, false), "{isa} gives other bits");
            }
        }
    }

    #[test]
    fn adamw_follows_its_formula() {
        for t in [1.0f32, 7.0, 100_000.0] {
            let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.999, 1e-3, 0.1);
            let (learning_rate, step) = (one(&LEARNING_RATE), one(&t));
            let [b1, b2, e, decay] = [beta1, beta2, epsilon, weight_decay].map(f64::from);
            check(AdamW { beta1, beta2, epsilon, weight_decay, learning_rate, step }, |w, g, m, v| {
                let m = b1 * m + (1.0 - b1) * g;
                let v = b2 * v + (1.0 - b2) * g * g;
                let (m_fair, v_fair) = (m / (1.0 - b1.powf(t as f64)), v / (1.0 - b2.powf(t as f64)));
                [w - LEARNING_RATE as f64 * (m_fair / (v_fair.sqrt() + e) + decay * w), m, v]
            });
        }
    }

    #[test]
    fn sgd_follows_its_formula() {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let (weight_decay, learning_rate) = (0.1, one(&LEARNING_RATE));
            let [kept, decay, rate] = [momentum, weight_decay, LEARNING_RATE].map(f64::from);
            check(Sgd { momentum, weight_decay, nesterov, learning_rate }, |w, g, b, _| {
                let b = kept * b + g;
                let direction = if nesterov { g + kept * b } else { b };
                [w - rate * (direction + decay * w), b, 0.0]
            });
        }
    }

    #[test]
    fn lion_follows_its_formula() {
        // Halves and quarters, so that the sum under the sign is exact and zero is zero.
        let (beta1, beta2, weight_decay, learning_rate) = (0.5, 0.75, 0.1, one(&LEARNING_RATE));
        let (decay, rate) = (weight_decay as f64, LEARNING_RATE as f64);
        check(Lion { beta1, beta2, weight_decay, learning_rate }, |w, g, m, _| {
            let mixed = 0.5 * m + 0.5 * g;
            let sign = if mixed == 0.0 { 0.0 } else { mixed.signum() };
            [w - rate * (sign + decay * w), 0.75 * m + 0.25 * g, 0.0]
        });
    }
}
