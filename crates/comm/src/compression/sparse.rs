//! A few numbers with their places: what messages of chosen numbers are made of.

use super::{WORD, read, write};

/// A place and a number.
pub const ENTRY: usize = 2 * WORD;

/// Moves the numbers at these places into a message.
pub fn take(places: impl Iterator<Item = u32>, error: &mut [f32], message: &mut [u8]) {
    for (place, entry) in places.zip(message.chunks_exact_mut(ENTRY)) {
        let (at, number) = entry.split_at_mut(WORD);
        at.copy_from_slice(&place.to_le_bytes());
        write(number, std::mem::take(&mut error[place as usize]));
    }
}

/// The numbers of a message at their places, and zeros elsewhere.
pub fn spread(message: &[u8], gradient: &mut [f32]) {
    gradient.fill(0.0);
    for entry in message.chunks_exact(ENTRY) {
        let (at, number) = entry.split_at(WORD);
        // A place beyond the gradient is not ours: the message is another's, and nothing is to be made of it.
        if let Some(place) = gradient.get_mut(u32::from_le_bytes(at.try_into().expect("four bytes")) as usize) {
            *place = read(number);
        }
    }
}
