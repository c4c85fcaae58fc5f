//! Repeatable random numbers, and the operands of cases made of them.

use crate::ops::{CaseInput, Fill};

/// A small generator (splitmix64): the tests must not change from run to run.
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// A number in a range.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The numbers of a case's operand. Floats are multiples of 1/64, so that a 16-bit type holds them with little
/// or no rounding.
pub fn fill(input: &CaseInput, random: &mut Random) -> Vec<f64> {
    let count = input.ty.shape.elements();
    let coarse = |x: f64| (x * 64.0).round() / 64.0;
    match &input.fill {
        Fill::Uniform(low, high) => {
            let inside = |x: f64| if x < *low { x + 1.0 / 64.0 } else { x };
            (0..count).map(|_| inside(coarse(random.uniform(*low, *high)))).collect()
        }
        Fill::AwayFromZero(low, high, distance) => {
            let mut number = || loop {
                let x = coarse(random.uniform(*low, *high));
                if x.abs() >= *distance {
                    return x;
                }
            };
            (0..count).map(|_| number()).collect()
        }
        Fill::Distinct => {
            let mut numbers: Vec<f64> = (0..count).map(|i| (i as f64 - count as f64 / 2.0) / 8.0).collect();
            for i in (1..count).rev() {
                numbers.swap(i, random.below(i + 1));
            }
            numbers
        }
        Fill::Below(bound) => (0..count).map(|_| random.below(*bound) as f64).collect(),
        Fill::Numbers(numbers) => numbers.clone(),
    }
}
