//! Byte pairs, trained on a corpus of any size.

use super::encode::pieces;
use super::merges::{self, Learned};
use super::tally::Tally;
use super::{END_OF_TEXT, Tokenizer, problem};
use crate::Result;
use crate::memory::{self, heap};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// Tokens without any merge: the bytes and the end of text.
const VOCABULARY_MIN: usize = 257;

/// The text that is looked at. Counts then stay below those at which other trainers of byte pairs overflow.
const BYTES_MAX: u64 = i32::MAX as u64;

impl Tokenizer {
    /// Byte pairs, the most frequent of the texts (of their first 2 GB), up to `vocab_size` tokens with the end of
    /// text, which comes last. `progress` gets the bytes read. Words that do not fit into `limit` bytes are an error.
    pub fn train_bpe<T: AsRef<str>>(
        vocab_size: usize,
        texts: impl IntoIterator<Item = Result<T>>,
        limit: Option<u64>,
        mut progress: impl FnMut(u64),
    ) -> Result<Tokenizer> {
        if vocab_size < VOCABULARY_MIN {
            let least = format!("--vocab-size {vocab_size} is too small: give {VOCABULARY_MIN} or more");
            return Err(problem(&"bpe", format!("{least} (256 bytes and the end of text)")));
        }
        let mut words = WordCounts::within(limit);
        let mut bytes = 0;
        for text in texts {
            let text = text?;
            bytes += text.as_ref().len() as u64;
            if bytes > BYTES_MAX {
                break;
            }
            words.add(text.as_ref()).map_err(failed)?;
            check_limit(words.training_bytes(), limit)?;
            progress(bytes);
        }
        let words = words.finish().map_err(failed)?;
        check_limit(training_bytes(&words), limit)?;
        let learned = merges::learn(&letters(), &words, vocab_size - 1);
        drop(words);
        heap::give_back();
        Tokenizer::from_library(library(learned).map_err(failed)?, "bpe")
    }
}

fn failed(error: tokenizers::Error) -> crate::Error {
    problem(&"bpe", format!("cannot train it: {error}"))
}

/// How words are cut: as GPT-2 does, with no space put before the first.
fn byte_level() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

/// The letters of words that are cut so: one for each byte, in the order of their code points.
fn letters() -> Vec<char> {
    let mut letters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    letters.sort_unstable();
    letters
}

fn check_limit(needed: u64, limit: Option<u64>) -> Result<()> {
    match limit.filter(|limit| needed > *limit) {
        None => Ok(()),
        Some(limit) => {
            let needed = memory::Size(needed);
            let advice = "give more --memory, less text, or --tokenizer byte";
            Err(problem(
                &"bpe",
                format!("training it takes {needed} or more, and {} are left: {advice}", memory::Size(limit)),
            ))
        }
    }
}

/// The most bytes that training takes once these words are counted: each letter as a token and in a pair that lists its
/// word, in vectors that have grown to up to twice their content.
fn training_bytes(words: &Tally) -> u64 {
    3 * words.bytes() as u64
}

/// How often each word occurs. To cut text into words takes long, so it is first cut at spaces, which does not, and
/// then only the distinct pieces into words.
struct WordCounts {
    words: Tally,
    pieces: Tally,
    /// Bytes of distinct pieces held; more are cut into words, of which there are fewer.
    piece_bytes_max: u64,
}

impl WordCounts {
    /// Enough for the distinct pieces of some tens of megabytes of text.
    const PIECE_BYTES_MAX: u64 = 12 << 20;

    fn within(limit: Option<u64>) -> WordCounts {
        // A third: vectors that grow take half as much again for a while.
        let piece_bytes_max = limit.map_or(u64::MAX, |limit| limit / 3).min(WordCounts::PIECE_BYTES_MAX);
        WordCounts { words: Tally::default(), pieces: Tally::default(), piece_bytes_max }
    }

    /// Counts the words of a text. The end of text is none.
    fn add(&mut self, text: &str) -> tokenizers::Result<()> {
        for piece in text.split(END_OF_TEXT).flat_map(|part| pieces(part, 1)) {
            self.pieces.add(piece, 1);
            if self.pieces.bytes() as u64 > self.piece_bytes_max {
                self.cut_pieces()?;
            }
        }
        Ok(())
    }

    fn cut_pieces(&mut self) -> tokenizers::Result<()> {
        for (piece, count) in std::mem::take(&mut self.pieces).iter() {
            let mut cut = PreTokenizedString::from(piece);
            byte_level().pre_tokenize(&mut cut)?;
            for (word, _, _) in cut.get_splits(OffsetReferential::Original, OffsetType::None) {
                self.words.add(word, count);
            }
        }
        Ok(())
    }

    /// The most bytes that are needed for what was counted so far.
    fn training_bytes(&self) -> u64 {
        training_bytes(&self.words).max((self.words.bytes() + self.pieces.bytes()) as u64)
    }

    fn finish(mut self) -> tokenizers::Result<Tally> {
        self.cut_pieces()?;
        Ok(self.words)
    }
}

/// The tokenizer of what was learned.
fn library(learned: Learned) -> tokenizers::Result<tokenizers::Tokenizer> {
    let Learned { tokens, merges } = learned;
    let text = |token: u32| tokens[token as usize].clone();
    let merges = merges.into_iter().map(|(first, second)| (text(first), text(second))).collect();
    let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build()?;
    let mut library = tokenizers::Tokenizer::new(model);
    library.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
    library.add_special_tokens([AddedToken::from(END_OF_TEXT, true)])?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use tokenizers::models::bpe::BpeTrainer;

    #[test]
    fn counts_do_not_depend_on_when_pieces_are_cut_into_words() {
        let texts = ["It's one, and  one\n\nmore; it's", "one more one, that's it.", " one one"];
        let mut at_once = WordCounts::within(None);
        let mut often = WordCounts::within(None);
        for text in texts {
            at_once.add(text).unwrap();
            often.add(text).unwrap();
            often.cut_pieces().unwrap();
        }
        let counts = |words: WordCounts| -> HashMap<String, u64> {
            words.finish().unwrap().iter().map(|(word, count)| (word.to_string(), count)).collect()
        };
        let at_once = counts(at_once);
        assert_eq!(at_once, counts(often));
        assert_eq!((at_once["\u{120}one"], at_once["'s"], at_once["one"]), (5, 3, 1));
    }

    /// Words of few letters, so that pairs repeat, overlap, tie, and give the same text in several ways.
    fn words(seed: u64, letters: u64) -> Tally {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut words = Tally::default();
        for _ in 0..300 {
            let length = random(9) + 1;
            let word: String = (0..length).map(|_| (b'a' + random(letters) as u8) as char).collect();
            words.add(&word, random(4) + 1);
        }
        words
    }

    #[test]
    fn what_is_learned_is_what_the_library_learns() {
        for (seed, letters, vocabulary) in (0..12).flat_map(|seed| [(seed, 1, 280), (seed, 2, 500), (seed, 7, 900)]) {
            let words = words(seed, letters);
            let ours = library(merges::learn(&super::letters(), &words, vocabulary)).unwrap();
            let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
            let trainer =
                BpeTrainer::builder().show_progress(false).vocab_size(vocabulary).initial_alphabet(alphabet).build();
            let mut model = BPE::default();
            trainer.do_train(&words.iter().map(|(word, count)| (word.into(), count)).collect(), &mut model).unwrap();
            let mut theirs = tokenizers::Tokenizer::new(model);
            theirs.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
            theirs.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]).unwrap();
            let text = |library: tokenizers::Tokenizer| library.to_string(true).unwrap();
            assert_eq!(text(ours), text(theirs), "seed {seed}, {letters} letters");
        }
    }

    #[test]
    fn words_that_do_not_fit_are_refused_with_what_they_need() {
        let text: String = (0..20_000).map(|number| format!(" word{number}")).collect();
        let train = |limit| Tokenizer::train_bpe(300, [Ok(&text)], limit, |_| ());
        let problem = train(Some(1 << 20)).err().expect("too little").to_string();
        assert!(problem.contains("1.0 MB are left") && problem.contains("--memory"), "{problem}");
        assert!(train(Some(64 << 20)).is_ok());
    }
}
