//! How often words occur.

use super::word_table::WordTable;
use std::cmp::Reverse;

/// Counts of words.
#[derive(Default)]
pub struct Tally {
    words: WordTable,
    /// By the words' numbers.
    counts: Vec<u32>,
}

impl Tally {
    /// Counts a word so many times more. No more than 2 GB of text are counted, so no count is larger than that.
    pub fn add(&mut self, word: &str, count: u32) {
        let number = self.words.number(word);
        if number == self.counts.len() {
            self.counts.push(0);
        }
        self.counts[number] = self.counts[number].saturating_add(count);
    }

    /// Words and counts, in the order in which the words came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.counts.iter().enumerate().map(|(number, &count)| (self.words.word(number), count))
    }

    /// How many words there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Forgets the rarest words, and of equally rare ones those that came first, until those that are left have half of
    /// the letters and no more than half of the words. The others stay in their order.
    pub fn forget_rarest(&mut self) {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_unstable_by_key(|&number| Reverse((self.counts[number as usize], number)));
        let mut letters = self.words.letters() / 2;
        let fits = |number: &u32| {
            let left = letters.checked_sub(self.words.word(*number as usize).len());
            letters = left.unwrap_or(0);
            left.is_some()
        };
        let kept = order.iter().take(self.len() / 2).copied().take_while(fits);
        let mut kept: Vec<u32> = kept.collect();
        drop(order);
        kept.sort_unstable();
        let mut left = Tally::default();
        for number in kept {
            left.add(self.words.word(number as usize), self.counts[number as usize]);
        }
        *self = left;
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.words.bytes() + self.counts.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn counts_are_those_of_a_map() {
        for round in 0..2 {
            let mut tally = Tally::default();
            let mut expected: HashMap<String, u32> = HashMap::new();
            for index in 0..20_000u32 {
                let word = format!("{}", index as u64 * index as u64 % (3001 + round));
                tally.add(&word, index % 3 + 1);
                *expected.entry(word).or_default() += index % 3 + 1;
            }
            let counted: HashMap<String, u32> = tally.iter().map(|(word, count)| (word.to_string(), count)).collect();
            assert_eq!(counted, expected);
            assert_eq!(tally.iter().count(), expected.len());
            assert_eq!(tally.iter().next().map(|(word, _)| word), Some("0"));
            assert!(tally.bytes() < 200_000, "{} bytes", tally.bytes());
        }
    }

    #[test]
    fn the_rarest_and_the_first_are_forgotten() {
        let mut tally = Tally::default();
        for (word, count) in [("aa", 1), ("bb", 3), ("cc", 1), ("dd", 1), ("ee", 2), ("ff", 1)] {
            tally.add(word, count);
        }
        tally.forget_rarest();
        assert_eq!(tally.iter().collect::<Vec<_>>(), [("bb", 3), ("ee", 2), ("ff", 1)]);
        tally.add("ee", 5);
        tally.add("a word of some length", 1);
        tally.forget_rarest();
        assert_eq!(tally.iter().collect::<Vec<_>>(), [("bb", 3), ("ee", 7)]);
        (0..3).for_each(|_| tally.forget_rarest());
        assert_eq!(tally.len(), 0);
    }
}
