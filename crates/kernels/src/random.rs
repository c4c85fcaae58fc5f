//! Random bits that are a function of a key, a stream and an index: whoever asks for the same gets the same, on
//! any thread and any number of times. The generator is Philox4x32-10.

/// What the two halves of a counter are multiplied by in each round.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// What is added to the key after each round.
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Counters that are worked on side by side.
const COUNTERS: usize = 16;
/// Words that [`words`] gives at once: four for each counter.
pub const GROUP: usize = 4 * COUNTERS;

/// Four random words for a counter, under a key.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    // Words are held in the low halves of u64, whatever is in the high halves: a vector multiplication takes them
    // as they are, so that nothing has to be moved between rounds.
    const LOW: u64 = u32::MAX as u64;
    let ([mut a, mut b, mut c, mut d], [mut left, mut right]) = (counter.map(u64::from), key);
    for _ in 0..ROUNDS {
        let first = (a & LOW) * MULTIPLIERS[0] as u64;
        let second = (c & LOW) * MULTIPLIERS[1] as u64;
        (a, b) = ((second >> 32) ^ b ^ left as u64, second);
        (c, d) = ((first >> 32) ^ d ^ right as u64, first);
        left = left.wrapping_add(KEY_STEPS[0]);
        right = right.wrapping_add(KEY_STEPS[1]);
    }
    [a as u32, b as u32, c as u32, d as u32]
}

/// The random word at an index of a stream.
///
/// Within each group of 64 indices, the first words of sixteen counters come first, then their second words and
/// so on: so that counters worked on side by side give words that lie side by side.
pub fn word(index: u64, stream: u32, key: [u32; 2]) -> u32 {
    let (group, within) = (index / GROUP as u64, index as usize % GROUP);
    let block = group * COUNTERS as u64 + (within % COUNTERS) as u64;
    philox([block as u32, (block >> 32) as u32, stream, 0], key)[within / COUNTERS]
}

/// The words at all indices of a group.
#[inline(always)]
pub fn words(group: u64, stream: u32, key: [u32; 2]) -> [u32; GROUP] {
    // The first block of a group is a multiple of sixteen, so that counting on never carries to the high word.
    let block = group * COUNTERS as u64;
    let (low, high) = (block as u32, (block >> 32) as u32);
    let mut words = [0; GROUP];
    for counter in 0..COUNTERS {
        let four = philox([low + counter as u32, high, stream, 0], key);
        for (place, word) in four.into_iter().enumerate() {
            words[place * COUNTERS + counter] = word;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the generator was published with.
    #[test]
    fn philox_gives_the_published_answers() {
        let zeros = philox([0; 4], [0; 2]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn groups_are_made_of_the_words_at_their_indices() {
        // The second group's blocks end at the last low word; those of the third begin a new high word.
        for group in [0, (1 << 28) - 1, 1 << 28] {
            let words = words(group, 7, [3, 9]);
            for (within, &expected) in words.iter().enumerate() {
                assert_eq!(word(group * GROUP as u64 + within as u64, 7, [3, 9]), expected);
            }
        }
        assert_ne!(words(0, 7, [3, 9]), words(0, 8, [3, 9]), "streams differ");
        assert_ne!(words(0, 7, [3, 9]), words(0, 7, [3, 10]), "keys differ");
    }
}
