//! How often words occur.

use super::word_table::WordTable;

/// Counts of words.
#[derive(Default)]
pub struct Tally {
    words: WordTable,
    /// By the words' numbers.
    counts: Vec<u64>,
}

impl Tally {
    /// Counts a word so many times more.
    pub fn add(&mut self, word: &str, count: u64) {
        let number = self.words.number(word);
        if number == self.counts.len() {
            self.counts.push(0);
        }
        self.counts[number] += count;
    }

    /// Words and counts, in the order in which the words came.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().enumerate().map(|(number, &count)| (self.words.word(number), count))
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.words.bytes() + self.counts.capacity() * size_of::<u64>()
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
            let mut expected: HashMap<String, u64> = HashMap::new();
            for index in 0..20_000u64 {
                let word = format!("{}", index * index % (3001 + round));
                tally.add(&word, index % 3 + 1);
                *expected.entry(word).or_default() += index % 3 + 1;
            }
            let counted: HashMap<String, u64> = tally.iter().map(|(word, count)| (word.to_string(), count)).collect();
            assert_eq!(counted, expected);
            assert_eq!(tally.iter().count(), expected.len());
            assert_eq!(tally.iter().next().map(|(word, _)| word), Some("0"));
            assert!(tally.bytes() < 200_000, "{} bytes", tally.bytes());
        }
    }
}
