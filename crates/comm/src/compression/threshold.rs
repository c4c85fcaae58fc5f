//! Numbers from a size on, with their places: few where a gradient is flat, many where it is not.

use super::sparse::{entry_bytes, spread, take};
use super::{Compressor, WORD, add, read, write};

/// Numbers of at least a stated size. Where their places would make that more than all of them, all are sent, without places.
#[derive(Clone, Debug)]
pub struct Threshold {
    numbers: usize,
    threshold: f32,
}

/// What a message begins with.
const CHOSEN: u32 = 0;
const ALL: u32 = 1;

impl Threshold {
    /// Of so many numbers, those of at least this size are sent.
    ///
    /// # Panics
    /// If there are more numbers than 32 bits can count.
    pub fn new(numbers: usize, threshold: f32) -> Threshold {
        assert!(u32::try_from(numbers).is_ok(), "places have 32 bits");
        Threshold { numbers, threshold }
    }

    /// Writes all numbers.
    fn all<'a>(numbers: impl Iterator<Item = &'a f32>, message: &mut [u8]) -> usize {
        let (kind, rest) = message.split_at_mut(WORD);
        kind.copy_from_slice(&ALL.to_le_bytes());
        numbers.zip(rest.chunks_exact_mut(WORD)).for_each(|(number, at)| write(at, *number));
        message.len()
    }
}

impl Compressor for Threshold {
    fn numbers(&self) -> usize {
        self.numbers
    }

    fn most_bytes(&self) -> usize {
        WORD + self.numbers * WORD
    }

    fn is_of_fixed_size(&self) -> bool {
        false
    }

    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize {
        let message = &mut message[..self.most_bytes()];
        if !add(gradient, state) {
            return Threshold::all([f32::NAN].iter().cycle().take(self.numbers), message);
        }
        let entry = entry_bytes(self.numbers);
        let is_chosen = |number: &f32| number.abs() >= self.threshold;
        let chosen = state.iter().filter(|number| is_chosen(number)).count();
        if chosen * entry > self.numbers * WORD {
            let bytes = Threshold::all(state.iter(), message);
            state.fill(0.0);
            return bytes;
        }
        let (kind, rest) = message.split_at_mut(WORD);
        kind.copy_from_slice(&CHOSEN.to_le_bytes());
        let mut entries = rest.chunks_exact_mut(entry);
        for place in 0..state.len() {
            if is_chosen(&state[place]) {
                take([place as u32].into_iter(), state, entries.next().expect("there is room where all take more"));
            }
        }
        WORD + chosen * entry
    }

    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]) {
        let (kind, rest) = message.split_at(WORD);
        match u32::from_le_bytes(kind.try_into().expect("four bytes")) {
            ALL => gradient.iter_mut().zip(rest.chunks_exact(WORD)).for_each(|(number, at)| *number = read(at)),
            _ => spread(rest, gradient),
        }
    }
}
