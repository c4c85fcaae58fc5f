//! The largest numbers, with their places.

use super::sparse::{entry_bytes, spread, take};
use super::{Compressor, WORD, add, write};
use std::cmp::Reverse;

/// A stated number of the largest numbers; of equal ones the first.
#[derive(Clone, Debug)]
pub struct TopK {
    kept: usize,
    /// All places, the chosen ones first once they are found.
    places: Vec<u32>,
}

impl TopK {
    /// Of so many numbers, so many are sent, at least one.
    ///
    /// # Panics
    /// If there are more numbers than 32 bits can count.
    pub fn new(numbers: usize, kept: usize) -> TopK {
        let numbers = u32::try_from(numbers).expect("places have 32 bits");
        TopK { kept: kept.clamp(1, numbers.max(1) as usize).min(numbers as usize), places: (0..numbers).collect() }
    }

    fn choose(&mut self, error: &[f32]) -> &[u32] {
        // Found from the same order each time, so that the outcome depends on nothing else.
        self.places.iter_mut().zip(0..).for_each(|(place, at)| *place = at);
        let order = |place: &u32| (Reverse(error[*place as usize].abs().to_bits()), *place);
        if self.kept < self.places.len() {
            self.places.select_nth_unstable_by_key(self.kept, order);
        }
        let chosen = &mut self.places[..self.kept];
        chosen.sort_unstable();
        chosen
    }
}

impl Compressor for TopK {
    fn numbers(&self) -> usize {
        self.places.len()
    }

    fn most_bytes(&self) -> usize {
        self.kept * entry_bytes(self.places.len())
    }

    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize {
        let message = &mut message[..self.most_bytes()];
        if add(gradient, state) {
            take(self.choose(state).iter().copied(), state, message);
        } else {
            message.fill(0);
            let entry = entry_bytes(self.places.len());
            message
                .chunks_exact_mut(entry)
                .for_each(|entry| write(entry.last_chunk_mut::<WORD>().expect("a number"), f32::NAN));
        }
        message.len()
    }

    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]) {
        spread(message, gradient);
    }
}
