//! A few numbers with their places: what messages of chosen numbers are made of.

use super::{WORD, read, write};

/// Bytes of a place among so many numbers: two where they can count all.
fn place_bytes(numbers: usize) -> usize {
    if numbers <= 1 << 16 { 2 } else { 4 }
}

/// Bytes of a place among so many numbers and its number.
pub fn entry_bytes(numbers: usize) -> usize {
    place_bytes(numbers) + WORD
}

/// Moves the numbers at these places into a message.
pub fn take(places: impl Iterator<Item = u32>, error: &mut [f32], message: &mut [u8]) {
    let bytes = place_bytes(error.len());
    for (place, entry) in places.zip(message.chunks_exact_mut(bytes + WORD)) {
        let (at, number) = entry.split_at_mut(bytes);
        at.copy_from_slice(&place.to_le_bytes()[..bytes]);
        write(number, std::mem::take(&mut error[place as usize]));
    }
}

/// The numbers of a message at their places, and zeros elsewhere.
pub fn spread(message: &[u8], gradient: &mut [f32]) {
    let bytes = place_bytes(gradient.len());
    gradient.fill(0.0);
    for entry in message.chunks_exact(bytes + WORD) {
        let (at, number) = entry.split_at(bytes);
        let mut place = [0; WORD];
        place[..bytes].copy_from_slice(at);
        // A place beyond the gradient is not ours: the message is another's, and nothing is to be made of it.
        if let Some(place) = gradient.get_mut(u32::from_le_bytes(place) as usize) {
            *place = read(number);
        }
    }
}
