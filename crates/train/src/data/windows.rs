//! The order in which training visits a corpus: computed from a position, never stored.

use super::{TokenFile, mix};

/// Rounds of the permutation; each mixes one half of the bits into the other.
const ROUNDS: u64 = 6;

/// Windows of `sequence + 1` tokens. Each epoch visits each once, in an order of its own, and with boundaries of
/// its own, so that the same tokens meet other neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    sequence: u64,
    count: u64,
    /// How far the first window may begin after the first token.
    largest_shift: u64,
    /// Bits of half a number of a window.
    half_bits: u32,
    seed: u32,
}

impl Windows {
    /// The windows of so many tokens, which must be more than `sequence`.
    pub fn new(tokens: u64, sequence: usize, seed: u32) -> Windows {
        let sequence = sequence as u64;
        assert!(sequence > 0 && tokens > sequence, "{tokens} tokens hold no window of {sequence} and one more");
        // One window fewer than fit leaves room to shift them all by up to a window.
        let count = ((tokens - 1) / sequence - 1).max(1);
        let largest_shift = (tokens - 1 - count * sequence).min(sequence - 1);
        let bits = u64::BITS - (count - 1).leading_zeros();
        Windows { sequence, count, largest_shift, half_bits: bits.div_ceil(2), seed }
    }

    /// Windows in an epoch.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Tokens of a sequence.
    pub fn sequence(&self) -> usize {
        self.sequence as usize
    }

    /// The token at which the window of this position begins, counted over all epochs.
    pub fn start(&self, position: u64) -> u64 {
        let epoch = position / self.count;
        let key = mix(epoch ^ (u64::from(self.seed) << 32));
        let shift = mix(key) % (self.largest_shift + 1);
        self.permute(position % self.count, key) * self.sequence + shift
    }

    /// A permutation of the numbers below `count`: one of a power of four that is at least as large, applied until
    /// the number is below `count` again, which it must be in the end since it began there.
    fn permute(&self, mut number: u64, key: u64) -> u64 {
        loop {
            number = self.permute_power(number, key);
            if number < self.count {
                return number;
            }
        }
    }

    /// A Feistel network: whatever the rounds compute, each can be undone, so no two numbers meet.
    fn permute_power(&self, number: u64, key: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let mixed = mix(key ^ mix(right ^ (round << 56))) & mask;
            (left, right) = (right, left ^ mixed);
        }
        (left << self.half_bits) | right
    }
}

/// Where the windows of an evaluation begin: one after the other, in order.
pub fn validation_windows(file: &TokenFile, sequence: usize) -> impl ExactSizeIterator<Item = u64> + Clone + use<> {
    let count = file.len().saturating_sub(1) / sequence as u64;
    (0..count as usize).map(move |window| window as u64 * sequence as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(windows: &Windows, epoch: u64) -> Vec<u64> {
        (0..windows.count()).map(|index| windows.start(epoch * windows.count() + index)).collect()
    }

    #[test]
    fn each_epoch_visits_each_window_once_and_in_range() {
        for sequence in [1, 2, 7, 64] {
            for tokens in (sequence as u64 + 1..300).chain([1000, 4096, 4097, 70_001]) {
                let windows = Windows::new(tokens, sequence, 3);
                for number in 0..3 {
                    let mut starts = epoch(&windows, number);
                    starts.sort_unstable();
                    let first = starts[0];
                    let expected: Vec<u64> =
                        (0..windows.count()).map(|index| first + index * sequence as u64).collect();
                    assert_eq!(starts, expected, "{tokens} tokens, sequences of {sequence}");
                    assert!(first < sequence as u64);
                    assert!(starts[starts.len() - 1] + (sequence as u64) < tokens);
                }
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let windows = Windows::new(100_000, 64, 1);
        let (first, second) = (epoch(&windows, 0), epoch(&windows, 1));
        let other = epoch(&Windows::new(100_000, 64, 2), 0);
        let place = |starts: &[u64]| starts.iter().map(|start| start / 64).collect::<Vec<_>>();
        assert_ne!(place(&first), place(&second));
        assert_ne!(place(&first), place(&other));
        let shifts: std::collections::HashSet<u64> =
            (0..50).map(|epoch| windows.start(epoch * windows.count()) % 64).collect();
        assert!(shifts.len() > 20, "boundaries move: {shifts:?}");
        let neighbours = first.windows(2).filter(|pair| pair[1] == pair[0] + 64).count();
        assert!(neighbours < 10, "shuffled: {neighbours} pairs in order");
    }

    #[test]
    fn a_large_corpus_is_in_range() {
        let windows = Windows::new(1 << 50, 1024, 9);
        let starts: std::collections::HashSet<u64> = (0..10_000).map(|position| windows.start(position)).collect();
        assert_eq!(starts.len(), 10_000);
        assert!(starts.iter().all(|start| start + 1025 <= 1 << 50));
    }
}
