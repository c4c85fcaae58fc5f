//! Which pairs of tokens become tokens: the most frequent one first, again and again.

use super::tally::Tally;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Two tokens side by side.
pub type Pair = (u32, u32);

/// What was learned: tokens, of which the first are the letters, and which pairs were joined, in order.
pub struct Learned {
    /// The tokens' texts, by number.
    pub tokens: Vec<String>,
    /// The pairs, in the order in which they are to be joined.
    pub merges: Vec<Pair>,
}

/// Words as tokens that lie side by side, each word where it was although it gets shorter.
struct Words {
    tokens: Vec<u32>,
    spans: Vec<Span>,
}

struct Span {
    start: usize,
    length: usize,
    count: i64,
}

/// A pair that may be joined. Of those with the highest count, the one of the lowest tokens comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    count: i64,
    pair: Reverse<Pair>,
    /// The words that had it when this was noted, in order.
    words: Vec<u32>,
}

/// Joins pairs until there are `vocabulary` tokens or no pairs. The words are made of the letters, which become the
/// first tokens. The result is that of the `tokenizers` library, in a fraction of its memory.
pub fn learn(letters: &[char], words: &Tally, vocabulary: usize) -> Learned {
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut numbers: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
    let mut merges = vec![];
    let mut words = Words::new(letters, words);
    let mut counts = HashMap::new();
    let mut candidates = words.pairs(&mut counts);
    while tokens.len() < vocabulary
        && let Some(mut candidate) = candidates.pop()
    {
        let Reverse(pair) = candidate.pair;
        if candidate.count != counts[&pair] {
            candidate.count = counts[&pair];
            candidates.push(candidate);
            continue;
        }
        if candidate.count < 1 {
            break;
        }
        let joined = format!("{}{}", tokens[pair.0 as usize], tokens[pair.1 as usize]);
        // Another pair may have given the same text before.
        let token = *numbers.entry(joined).or_insert_with_key(|joined| {
            tokens.push(joined.clone());
            tokens.len() as u32 - 1
        });
        merges.push(pair);
        candidates.extend(words.join(pair, token, &candidate.words, &mut counts));
    }
    Learned { tokens, merges }
}

impl Words {
    fn new(letters: &[char], words: &Tally) -> Words {
        let numbers: HashMap<char, u32> = letters.iter().copied().zip(0..).collect();
        let letters_in_all = words.iter().map(|(word, _)| word.chars().count()).sum();
        let mut made = Words { tokens: Vec::with_capacity(letters_in_all), spans: vec![] };
        for (word, count) in words.iter() {
            let start = made.tokens.len();
            made.tokens.extend(word.chars().filter_map(|letter| numbers.get(&letter)));
            made.spans.push(Span { start, length: made.tokens.len() - start, count: count as i64 });
        }
        made
    }

    /// All pairs as they are at first, and how often each occurs.
    fn pairs(&self, counts: &mut HashMap<Pair, i64>) -> BinaryHeap<Candidate> {
        let mut found = Found::default();
        for (number, span) in self.spans.iter().enumerate() {
            for pair in self.tokens[span.start..span.start + span.length].windows(2) {
                let pair = (pair[0], pair[1]);
                *counts.entry(pair).or_default() += span.count;
                found.note(pair, number as u32);
            }
        }
        found.candidates(counts).collect()
    }

    /// Makes one token of a pair in these words, and gives the pairs that come of it.
    fn join(
        &mut self,
        pair: Pair,
        token: u32,
        words: &[u32],
        counts: &mut HashMap<Pair, i64>,
    ) -> impl Iterator<Item = Candidate> {
        let mut found = Found::default();
        for &number in words {
            let span = &mut self.spans[number as usize];
            let tokens = &mut self.tokens[span.start..span.start + span.length];
            span.length = join_in_word(tokens, pair, token, |pair, change| {
                *counts.entry(pair).or_default() += change * span.count;
                if change > 0 {
                    found.note(pair, number);
                }
            });
        }
        found.candidates(counts)
    }
}

/// Makes one token of each occurrence of a pair, from left to right, tells the pairs around it that go (-1) and come
/// (+1), and gives the number of tokens that are left.
fn join_in_word(tokens: &mut [u32], pair: Pair, token: u32, mut changed: impl FnMut(Pair, i64)) -> usize {
    let (mut read, mut written) = (0, 0);
    while read < tokens.len() {
        if read + 1 == tokens.len() || (tokens[read], tokens[read + 1]) != pair {
            tokens[written] = tokens[read];
            (read, written) = (read + 1, written + 1);
            continue;
        }
        if written > 0 {
            changed((tokens[written - 1], pair.0), -1);
            changed((tokens[written - 1], token), 1);
        }
        if let Some(&after) = tokens.get(read + 2) {
            changed((pair.1, after), -1);
            changed((token, after), 1);
        }
        tokens[written] = token;
        (read, written) = (read + 2, written + 1);
    }
    written
}

/// Pairs and the words in which they were found.
#[derive(Default)]
struct Found(HashMap<Pair, Vec<u32>>);

impl Found {
    /// Notes a pair in a word; words come in order.
    fn note(&mut self, pair: Pair, word: u32) {
        let words = self.0.entry(pair).or_default();
        if words.last() != Some(&word) {
            words.push(word);
        }
    }

    fn candidates(self, counts: &HashMap<Pair, i64>) -> impl Iterator<Item = Candidate> + use<> {
        let counted = |(pair, words)| Candidate { count: counts[&pair], pair: Reverse(pair), words };
        let all: Vec<Candidate> = self.0.into_iter().map(counted).filter(|candidate| candidate.count > 0).collect();
        all.into_iter()
    }
}
