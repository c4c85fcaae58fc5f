//! Byte pairs, trained on a corpus of any size.

use super::encode::{CHUNK_BYTES, pieces};
use super::{END_OF_TEXT, Tokenizer, problem};
use crate::{Error, Result};
use std::collections::HashSet;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer};

/// Tokens without any merge: the bytes and the end of text.
const VOCABULARY_MIN: usize = 257;

/// The text that is looked at. The library counts pairs in 31 bits, and a text has fewer pairs than bytes.
const BYTES_MAX: u64 = i32::MAX as u64;

impl Tokenizer {
    /// Byte pairs, the most frequent of the texts (of their first 2 GB), up to `vocab_size` tokens with the end of text,
    /// which comes last. Texts are taken by several threads, one each at a time; `progress` gets the bytes taken.
    pub fn train_bpe<T: AsRef<str> + Send>(
        vocab_size: usize,
        texts: impl Iterator<Item = Result<T>> + Send,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<Tokenizer> {
        if vocab_size < VOCABULARY_MIN {
            let least = format!("--vocab-size {vocab_size} is too small: give {VOCABULARY_MIN} or more");
            return Err(problem(&"bpe", format!("{least} (256 bytes and the end of text)")));
        }
        let alphabet: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
        let mut trainer =
            BpeTrainer::builder().show_progress(false).vocab_size(vocab_size - 1).initial_alphabet(alphabet).build();
        let mut stopped_by = None;
        let mut bytes = 0;
        let readable = texts.map_while(|text| {
            let text = text.map_err(|error| stopped_by = Some(error)).ok()?;
            bytes += text.as_ref().len() as u64;
            progress(bytes.min(BYTES_MAX));
            (bytes <= BYTES_MAX).then_some(text)
        });
        trainer.feed(readable, words_of).map_err(failed)?;
        stopped_by.map_or(Ok(()), Err)?;
        Tokenizer::from_library(trained(&trainer).map_err(failed)?, "bpe")
    }
}

fn failed(error: tokenizers::Error) -> Error {
    problem(&"bpe", format!("cannot train it: {error}"))
}

/// How words are cut: as GPT-2 does, with no space put before the first.
fn byte_level() -> ByteLevel {
    ByteLevel::new(false, true, true)
}

/// The words of a text, each byte as its visible character. The end of text is no word.
fn words_of(text: &str) -> tokenizers::Result<Vec<String>> {
    let mut words = Vec::new();
    for chunk in text.split(END_OF_TEXT).flat_map(|part| pieces(part, CHUNK_BYTES)) {
        let mut cut = PreTokenizedString::from(chunk);
        byte_level().pre_tokenize(&mut cut)?;
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::None);
        words.extend(splits.into_iter().map(|(word, _, _)| word.to_string()));
    }
    Ok(words)
}

fn trained(trainer: &BpeTrainer) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut model = BPE::default();
    trainer.train(&mut model)?;
    let mut library = tokenizers::Tokenizer::new(model);
    library.with_pre_tokenizer(Some(byte_level())).with_decoder(Some(byte_level()));
    library.add_special_tokens([AddedToken::from(END_OF_TEXT, true)])?;
    Ok(library)
}
