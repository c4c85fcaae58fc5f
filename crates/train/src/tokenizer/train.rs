//! Byte pairs, trained on a corpus of any size.

use super::encode::pieces;
use super::{END_OF_TEXT, Tokenizer, problem};
use crate::Result;
use std::collections::{HashMap, HashSet};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// Tokens without any merge: the bytes and the end of text.
const VOCABULARY_MIN: usize = 257;

/// The text that is looked at. The library counts pairs in 31 bits, and a text has fewer pairs than bytes.
const BYTES_MAX: u64 = i32::MAX as u64;

impl Tokenizer {
    /// Byte pairs, the most frequent of the texts (of their first 2 GB), up to `vocab_size` tokens with the end of
    /// text, which comes last. `progress` gets the bytes read.
    pub fn train_bpe<T: AsRef<str>>(
        vocab_size: usize,
        texts: impl IntoIterator<Item = Result<T>>,
        mut progress: impl FnMut(u64),
    ) -> Result<Tokenizer> {
        if vocab_size < VOCABULARY_MIN {
            let least = format!("--vocab-size {vocab_size} is too small: give {VOCABULARY_MIN} or more");
            return Err(problem(&"bpe", format!("{least} (256 bytes and the end of text)")));
        }
        let mut words = WordCounts::default();
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
        let library = words.finish().and_then(|counts| train(vocab_size, counts)).map_err(failed)?;
        Tokenizer::from_library(library, "bpe")
    }
}

fn failed(error: tokenizers::Error) -> crate::Error {
    problem(&"bpe", format!("cannot train it: {error}"))
}

/// How words are cut: as GPT-2 does, with no space put before the first.
fn byte_level() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

/// How often each word occurs. To cut text into words takes long, so it is first cut at spaces, which does not, and
/// then only the distinct pieces into words.
#[derive(Default)]
struct WordCounts {
    words: HashMap<String, u64>,
    pieces: HashMap<String, u64>,
    piece_bytes: usize,
}

impl WordCounts {
    /// Bytes of distinct pieces held; more are cut into words, of which there are fewer.
    const PIECE_BYTES_MAX: usize = 1 << 24;

    /// Counts the words of a text. The end of text is none.
    fn add(&mut self, text: &str) -> tokenizers::Result<()> {
        for piece in text.split(END_OF_TEXT).flat_map(|part| pieces(part, 1)) {
            if let Some(count) = self.pieces.get_mut(piece) {
                *count += 1;
                continue;
            }
            self.pieces.insert(piece.to_string(), 1);
            self.piece_bytes += piece.len();
            if self.piece_bytes > WordCounts::PIECE_BYTES_MAX {
                self.cut_pieces()?;
            }
        }
        Ok(())
    }

    fn cut_pieces(&mut self) -> tokenizers::Result<()> {
        for (piece, count) in self.pieces.drain() {
            let mut cut = PreTokenizedString::from(piece);
            byte_level().pre_tokenize(&mut cut)?;
            for (word, _, _) in cut.get_splits(OffsetReferential::Original, OffsetType::None) {
                *self.words.entry(word.to_string()).or_default() += count;
            }
        }
        self.piece_bytes = 0;
        Ok(())
    }

    fn finish(mut self) -> tokenizers::Result<HashMap<String, u64>> {
        self.cut_pieces()?;
        Ok(self.words)
    }
}

/// Byte pairs for words that occur so often.
fn train(vocab_size: usize, counts: HashMap<String, u64>) -> tokenizers::Result<tokenizers::Tokenizer> {
    let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
    let trainer =
        BpeTrainer::builder().show_progress(false).vocab_size(vocab_size - 1).initial_alphabet(alphabet).build();
    let mut model = BPE::default();
    trainer.do_train(&counts.into_iter().map(|(word, count)| (word.into(), count)).collect(), &mut model)?;
    let mut library = tokenizers::Tokenizer::new(model);
    library.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
    library.add_special_tokens([AddedToken::from(END_OF_TEXT, true)])?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_depend_on_when_pieces_are_cut_into_words() {
        let texts = ["It's one, and  one\n\nmore; it's", "one more one, that's it.", " one one"];
        let mut at_once = WordCounts::default();
        let mut often = WordCounts::default();
        for text in texts {
            at_once.add(text).unwrap();
            often.add(text).unwrap();
            often.cut_pieces().unwrap();
        }
        let counts = at_once.finish().unwrap();
        assert_eq!(counts, often.finish().unwrap());
        assert_eq!((counts["\u{120}one"], counts["'s"], counts["one"]), (5, 3, 1));
    }
}
