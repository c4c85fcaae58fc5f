//! Byte pairs, trained on a corpus of any size.

use super::encode::{parts, pieces};
use super::merges::{self, Learned};
use super::tally::Tally;
use super::{END_OF_TEXT, Tokenizer, problem};
use crate::Result;
use crate::memory::{Size, heap};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// Tokens without any merge: the bytes and the end of text.
const VOCABULARY_MIN: usize = 257;

/// The text that is looked at. Counts then stay below those at which other trainers of byte pairs overflow.
const BYTES_MAX: u64 = i32::MAX as u64;

/// The longest stretch without a space that is learned from as it is; a longer one is learned from in parts.
const STRETCH_BYTES_MAX: usize = 1 << 10;

/// The least memory in which byte pairs can be learned.
pub const LEARNING_BYTES_MIN: u64 = 4_000_000;

impl Tokenizer {
    /// Byte pairs, the most frequent of the texts (of their first 2 GB), up to `vocab_size` tokens with the end of
    /// text, which comes last. `progress` gets the bytes read.
    ///
    /// Where `limit` is stated, learning stays within so many bytes, of which [`LEARNING_BYTES_MIN`] are needed: if all
    /// the words of the texts do not fit, the rarest are forgotten ([`Tokenizer::words_forgotten`]). Then what is
    /// learned depends on the limit.
    pub fn train_bpe<T: AsRef<str>>(
        vocab_size: usize,
        texts: impl IntoIterator<Item = Result<T>>,
        limit: Option<u64>,
        mut progress: impl FnMut(u64),
    ) -> Result<Tokenizer> {
        if vocab_size < VOCABULARY_MIN {
            let least = format!("`settings.vocab_size` {vocab_size} is too small: give {VOCABULARY_MIN} or more");
            return Err(problem(&"bpe", format!("{least} (256 bytes and the end of text)")));
        }
        let mut words = WordCounts::within(limit)?;
        let mut bytes = 0;
        for text in texts {
            let text = text?;
            bytes += text.as_ref().len() as u64;
            if bytes > BYTES_MAX {
                break;
            }
            words.add(text.as_ref()).map_err(failed)?;
            progress(bytes);
        }
        let (learned, forgotten) = words.learn(vocab_size - 1).map_err(failed)?;
        heap::give_back();
        let mut tokenizer = Tokenizer::from_library(library(learned).map_err(failed)?, "bpe")?;
        tokenizer.words_forgotten = forgotten;
        Ok(tokenizer)
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

/// How often each word occurs. To cut text into words takes long, so it is first cut at spaces, which does not, and
/// then only the distinct pieces into words.
struct WordCounts {
    words: Tally,
    pieces: Tally,
    /// Bytes that may be held in all.
    bytes_max: usize,
    /// Words that were forgotten.
    forgotten: u64,
}

impl WordCounts {
    /// Enough for the distinct pieces of some tens of megabytes of text.
    const PIECE_BYTES_MAX: usize = 12 << 20;
    /// Enough for any text that people write.
    const BYTES_MAX: usize = 3 << 30;

    fn within(limit: Option<u64>) -> Result<WordCounts> {
        let bytes_max = match limit {
            None => WordCounts::BYTES_MAX,
            Some(limit) if limit < LEARNING_BYTES_MIN => {
                let (needed, left) = (Size(LEARNING_BYTES_MIN), Size(limit));
                let advice = "give more `settings.memory`, or `settings.tokenizer` byte";
                return Err(problem(&"bpe", format!("learning it takes {needed}, and {left} are left: {advice}")));
            }
            Some(limit) => coarse(limit.min(WordCounts::BYTES_MAX as u64) as usize),
        };
        Ok(WordCounts { words: Tally::default(), pieces: Tally::default(), bytes_max, forgotten: 0 })
    }

    /// Counts the words of a text. The end of text is none.
    fn add(&mut self, text: &str) -> tokenizers::Result<()> {
        // Vectors that grow take half as much again for a while.
        let piece_bytes_max = (self.bytes_max / 6).min(WordCounts::PIECE_BYTES_MAX);
        for piece in
            text.split(END_OF_TEXT).flat_map(|part| pieces(part, 1)).flat_map(|piece| parts(piece, STRETCH_BYTES_MAX))
        {
            self.pieces.add(piece, 1);
            if self.pieces.bytes() > piece_bytes_max {
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
            if self.words.bytes() > self.bytes_max / 3 {
                self.forget_rarest();
            }
        }
        Ok(())
    }

    fn forget_rarest(&mut self) {
        let before = self.words.len();
        self.words.forget_rarest();
        self.forgotten += (before - self.words.len()) as u64;
    }

    /// The pairs of the words, and how many words were forgotten.
    fn learn(mut self, vocabulary: usize) -> tokenizers::Result<(Learned, u64)> {
        self.cut_pieces()?;
        loop {
            heap::give_back();
            let left = self.bytes_max.saturating_sub(self.words.bytes());
            if let Some(learned) = merges::learn(&letters(), &self.words, vocabulary, left) {
                return Ok((learned, self.forgotten));
            }
            self.forget_rarest();
        }
    }
}

/// The largest number up to this one of which a table has four to every power of two, so that a little more or less
/// memory gives the same tokens.
fn coarse(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 8).max(1);
    bytes / step * step
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
        let mut at_once = WordCounts::within(None).unwrap();
        let mut often = WordCounts::within(None).unwrap();
        for text in texts {
            at_once.add(text).unwrap();
            often.add(text).unwrap();
            often.cut_pieces().unwrap();
        }
        let counts = |mut words: WordCounts| -> HashMap<String, u32> {
            words.cut_pieces().unwrap();
            words.words.iter().map(|(word, count)| (word.to_string(), count)).collect()
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
            words.add(&word, random(4) as u32 + 1);
        }
        words
    }

    #[test]
    fn what_is_learned_is_what_the_library_learns() {
        for (seed, letters, vocabulary) in (0..12).flat_map(|seed| [(seed, 1, 280), (seed, 2, 500), (seed, 7, 900)]) {
            let words = words(seed, letters);
            let ours = library(merges::learn(&super::letters(), &words, vocabulary, usize::MAX).unwrap()).unwrap();
            let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
            let trainer =
                BpeTrainer::builder().show_progress(false).vocab_size(vocabulary).initial_alphabet(alphabet).build();
            let mut model = BPE::default();
            trainer
                .do_train(&words.iter().map(|(word, count)| (word.into(), count.into())).collect(), &mut model)
                .unwrap();
            let mut theirs = tokenizers::Tokenizer::new(model);
            theirs.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
            theirs.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]).unwrap();
            let text = |library: tokenizers::Tokenizer| library.to_string(true).unwrap();
            assert_eq!(text(ours), text(theirs), "seed {seed}, {letters} letters");
        }
    }

    #[test]
    fn words_that_do_not_fit_are_forgotten_the_rarest_first() {
        let rare = |number: u64| format!(" rare{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let text: String = (0..100_000).map(|number| rare(number) + " often").collect();
        let train = |limit| Tokenizer::train_bpe(600, [Ok(&text)], limit, |_| ());
        let all = train(None).unwrap();
        assert_eq!((all.words_forgotten(), all.fingerprint()), (0, train(Some(1 << 30)).unwrap().fingerprint()));
        let few = train(Some(LEARNING_BYTES_MIN)).unwrap();
        assert!(few.words_forgotten() > 50_000 && few.vocabulary() == 600, "{}", few.words_forgotten());
        assert_eq!(few.encode(" often").unwrap().len(), 1, "what is frequent is learned");
        let little_more = train(Some(LEARNING_BYTES_MIN + 100_000)).unwrap();
        assert_eq!(few.fingerprint(), little_more.fingerprint());
        let problem = train(Some(LEARNING_BYTES_MIN - 1)).err().expect("too little").to_string();
        assert!(problem.contains("4.0 MB are left") && problem.contains("`settings.memory`"), "{problem}");
    }

    #[test]
    fn long_stretches_are_learned_in_parts() {
        let letters = "a".repeat(300_000);
        let tokenizer = Tokenizer::train_bpe(280, [Ok(&letters)], Some(LEARNING_BYTES_MIN), |_| ()).unwrap();
        assert_eq!(tokenizer.words_forgotten(), 0);
        assert_eq!(tokenizer.encode(&letters[..512]).unwrap().len(), 1, "doubled again and again");
    }
}
