//! The generator that Gymnasium's environments draw from, so that a seed starts the same episodes here and there: NumPy's
//! PCG64, seeded by its `SeedSequence`.

/// A permuted congruential generator of 128 bits of state and 64 of result.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
}

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl Pcg64 {
    /// As `numpy.random.default_rng(seed)`.
    pub fn new(seed: u64) -> Pcg64 {
        let [high, low, stream_high, stream_low] = seed_words(seed);
        let joined = |high: u64, low: u64| (high as u128) << 64 | low as u128;
        let mut random = Pcg64 { state: 0, increment: joined(stream_high, stream_low) << 1 | 1 };
        random.advance();
        random.state = random.state.wrapping_add(joined(high, low));
        random.advance();
        random
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.advance();
        ((self.state >> 64) as u64 ^ self.state as u64).rotate_right((self.state >> 122) as u32)
    }

    /// A number of equal likelihood, at least `low` and less than `high`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// A whole number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.bits() as u128 * count as u128) >> 64) as usize
    }

    /// Puts what is there in an order of equal likelihood.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// A hash whose multiplier moves on with every word.
struct Mixer {
    constant: u32,
    factor: u32,
}

impl Mixer {
    fn mixed(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.factor);
        let word = word.wrapping_mul(self.constant);
        word ^ word >> 16
    }
}

/// What a `SeedSequence` of one whole number gives a generator to start from.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut mixer = Mixer { constant: 0x43b0_d7e5, factor: 0x931e_8875 };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| mixer.mixed(word));
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            let other = mixer.mixed(pool[from]);
            let word = pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(other.wrapping_mul(0x4973_f715));
            pool[to] = word ^ word >> 16;
        }
    }
    let mut mixer = Mixer { constant: 0x8b51_f9dd, factor: 0x58f3_8ded };
    let words: [u32; 8] = std::array::from_fn(|index| mixer.mixed(pool[index % 4]));
    std::array::from_fn(|index| words[2 * index] as u64 | (words[2 * index + 1] as u64) << 32)
}
