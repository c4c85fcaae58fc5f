//! Random numbers by count: the same for the same example, whenever it comes.

use gradus_kernels::random::philox;

/// Random numbers of one example.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    number: u64,
    words: [u32; 4],
    taken: u32,
}

impl Draws {
    /// Those of this example, for this use of them.
    pub fn new(seed: u32, purpose: u32, number: u64) -> Draws {
        Draws { key: [seed, purpose], number, words: [0; 4], taken: 0 }
    }

    /// A random word.
    pub fn word(&mut self) -> u32 {
        if self.taken.is_multiple_of(4) {
            let counter = [self.number as u32, (self.number >> 32) as u32, self.taken / 4, 0];
            self.words = philox(counter, self.key);
        }
        self.taken += 1;
        self.words[(self.taken as usize - 1) % 4]
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 24) as f32
    }

    /// From one number to below another.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// One of so many numbers from 0.
    pub fn below(&mut self, count: usize) -> usize {
        let word = u64::from(self.word()) << 32 | u64::from(self.word());
        ((u128::from(word) * count as u128) >> 64) as usize
    }
}
