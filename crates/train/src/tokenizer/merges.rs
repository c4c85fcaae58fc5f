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
    start: u32,
    length: u32,
    count: i64,
}

/// A pair that may be joined. Of those with the highest count, the one of the lowest tokens comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    count: i64,
    pair: Reverse<Pair>,
    /// The words that had it when this was noted, in order.
    words: Box<[u32]>,
}

/// What is known of pairs.
#[derive(Default)]
struct Pairs {
    counts: HashMap<Pair, i64>,
    candidates: BinaryHeap<Candidate>,
    /// Words that the candidates list.
    listed: usize,
}

impl Pairs {
    /// Bytes of a pair's count, in a table that is a quarter full when it has just grown and is still there as it was.
    const COUNT_BYTES: usize = 58;
    /// Bytes of a candidate, in a vector half of which may be empty, and of what surrounds its list.
    const CANDIDATE_BYTES: usize = 2 * size_of::<Candidate>() + 32;
    /// Bytes of a word in a list.
    const LISTED_BYTES: usize = size_of::<u32>();

    /// The most bytes that are held.
    fn bytes(&self) -> usize {
        self.counts.len() * Pairs::COUNT_BYTES
            + self.candidates.len() * Pairs::CANDIDATE_BYTES
            + self.listed * Pairs::LISTED_BYTES
    }

    fn pop(&mut self) -> Option<Candidate> {
        let candidate = self.candidates.pop()?;
        self.listed -= candidate.words.len();
        Some(candidate)
    }

    fn push(&mut self, candidate: Candidate) {
        self.listed += candidate.words.len();
        self.candidates.push(candidate);
    }

    /// Takes up pairs that were found and occur.
    fn take_up(&mut self, found: Found) {
        for (pair, words) in found.0 {
            let count = self.counts[&pair];
            if count > 0 {
                self.push(Candidate { count, pair: Reverse(pair), words: words.into_boxed_slice() });
            }
        }
    }
}

/// Joins pairs until there are `vocabulary` tokens or no pairs. The words are made of the letters, which become the
/// first tokens. The result is that of the `tokenizers` library, in a fraction of its memory. Nothing, if more than
/// `bytes_max` bytes would be held: what is counted does not depend on chance, so that the same words always fit or not.
pub fn learn(letters: &[char], words: &Tally, vocabulary: usize, bytes_max: usize) -> Option<Learned> {
    if Words::bytes_needed(words) > bytes_max {
        return None;
    }
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut numbers: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
    let mut merges = vec![];
    let mut words = Words::new(letters, words);
    let mut pairs = words.pairs();
    while tokens.len() < vocabulary {
        if words.bytes() + pairs.bytes() > bytes_max {
            return None;
        }
        let Some(mut candidate) = pairs.pop() else { break };
        let Reverse(pair) = candidate.pair;
        if candidate.count != pairs.counts[&pair] {
            candidate.count = pairs.counts[&pair];
            pairs.push(candidate);
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
        words.join(pair, token, &candidate.words, &mut pairs);
    }
    Some(Learned { tokens, merges })
}

impl Words {
    /// Bytes that are needed to begin with these words: each letter as a token, and each pair with its word in a list.
    fn bytes_needed(words: &Tally) -> usize {
        let letters: usize = words.iter().map(|(word, _)| word.chars().count()).sum();
        letters * (size_of::<u32>() + Pairs::LISTED_BYTES) + words.iter().count() * size_of::<Span>()
    }

    fn new(letters: &[char], words: &Tally) -> Words {
        let numbers: HashMap<char, u32> = letters.iter().copied().zip(0..).collect();
        let letters_in_all = words.iter().map(|(word, _)| word.chars().count()).sum();
        let spans = Vec::with_capacity(words.iter().count());
        let mut made = Words { tokens: Vec::with_capacity(letters_in_all), spans };
        for (word, count) in words.iter() {
            let start = made.tokens.len();
            made.tokens.extend(word.chars().filter_map(|letter| numbers.get(&letter)));
            let length = (made.tokens.len() - start) as u32;
            let start = u32::try_from(start).expect("fewer letters than bytes of text");
            made.spans.push(Span { start, length, count: count as i64 });
        }
        made
    }

    fn bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<u32>() + self.spans.capacity() * size_of::<Span>()
    }

    /// All pairs as they are at first, and how often each occurs.
    fn pairs(&self) -> Pairs {
        let (mut pairs, mut found) = (Pairs::default(), Found::default());
        // First how long each list will be: there are few pairs of letters, and their lists are long.
        let mut lengths: HashMap<Pair, (u32, usize)> = HashMap::new();
        for (number, span, pair) in self.each_pair() {
            *pairs.counts.entry(pair).or_default() += span.count;
            let (last, length) = lengths.entry(pair).or_insert((u32::MAX, 0));
            *length += usize::from(*last != number);
            *last = number;
        }
        for (pair, (_, length)) in lengths {
            found.0.insert(pair, Vec::with_capacity(length));
        }
        for (number, _, pair) in self.each_pair() {
            found.note(pair, number);
        }
        pairs.take_up(found);
        pairs
    }

    /// The number of a word, the word, and a pair in it.
    fn each_pair(&self) -> impl Iterator<Item = (u32, &Span, Pair)> {
        (0..).zip(&self.spans).flat_map(|(number, span)| {
            self.tokens[span.range()].windows(2).map(move |pair| (number, span, (pair[0], pair[1])))
        })
    }

    /// Makes one token of a pair in these words, and takes up the pairs that come of it.
    fn join(&mut self, pair: Pair, token: u32, words: &[u32], pairs: &mut Pairs) {
        let mut found = Found::default();
        for &number in words {
            let span = &mut self.spans[number as usize];
            let length = join_in_word(&mut self.tokens[span.range()], pair, token, |pair, change| {
                *pairs.counts.entry(pair).or_default() += change * span.count;
                if change > 0 {
                    found.note(pair, number);
                }
            });
            span.length = length as u32;
        }
        pairs.take_up(found);
    }
}

impl Span {
    fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
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
}
