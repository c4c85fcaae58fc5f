//! The ways to encode: tables for bytes and characters, remembered words for byte pairs, the library for the rest.

use super::END_OF_TEXT;
use super::make::{bytes_json, characters_json};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokenizers::parallelism::MaybeParallelIterator;
use tokenizers::{AddedToken, PreTokenizerWrapper};

/// Bytes that one thread encodes at a time.
pub const CHUNK_BYTES: usize = 1 << 16;

/// How a tokenizer's text is encoded. The result is the library's in each case; ways of our own are only faster.
pub enum Scheme {
    /// The tokenizer of bytes.
    Bytes,
    /// A tokenizer of characters, with their ids.
    Characters(HashMap<char, u32>),
    /// Byte pairs within words that begin with their space.
    BytePairs(Words),
    /// Something else.
    Other,
}

impl Scheme {
    /// The way for a tokenizer of which this is the JSON.
    pub fn recognise(library: &tokenizers::Tokenizer, json: &str) -> Scheme {
        if states(bytes_json(), json) {
            return Scheme::Bytes;
        }
        if let Some(ids) = character_ids(library, json) {
            return Scheme::Characters(ids);
        }
        if words_begin_with_space(library) { Scheme::BytePairs(Words::default()) } else { Scheme::Other }
    }

    /// As a user names it.
    pub fn name(&self) -> &'static str {
        match self {
            Scheme::Bytes => "byte",
            Scheme::Characters(_) => "char",
            Scheme::BytePairs(_) => "bpe",
            Scheme::Other => "file",
        }
    }

    /// The ids of a text, or what is wrong with it.
    pub fn encode(&self, library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Scheme::Bytes => Ok(encode_bytes(text)),
            Scheme::Characters(ids) => text.chars().map(|character| character_id(ids, character)).collect(),
            Scheme::BytePairs(words) => words.encode(library, text),
            Scheme::Other => encode_whole(library, text),
        }
    }
}

/// Whether the value, as the library writes it, is this JSON.
fn states(value: Value, json: &str) -> bool {
    let library = tokenizers::Tokenizer::from_bytes(value.to_string());
    library.and_then(|library| library.to_string(true)).is_ok_and(|stated| stated == json)
}

/// The characters of a tokenizer that is one of characters.
fn character_ids(library: &tokenizers::Tokenizer, json: &str) -> Option<HashMap<char, u32>> {
    let only = |token: String| token.chars().next().filter(|character| character.len_utf8() == token.len());
    let vocabulary = library.get_vocab(true).into_iter();
    let ids: HashMap<char, u32> = vocabulary.map(|(token, id)| Some((only(token)?, id))).collect::<Option<_>>()?;
    let mut characters: Vec<char> = ids.keys().copied().collect();
    characters.sort_by_key(|character| ids[character]);
    states(characters_json(characters), json).then_some(ids)
}

/// Whether what follows a space never depends on what is before it: words are cut as GPT-2 cuts them, and no token
/// reaches over a space.
fn words_begin_with_space(library: &tokenizers::Tokenizer) -> bool {
    let is_plain = |token: &AddedToken| {
        !token.single_word && !token.lstrip && !token.rstrip && !token.content.contains(char::is_whitespace)
    };
    let Some(PreTokenizerWrapper::ByteLevel(byte_level)) = library.get_pre_tokenizer() else { return false };
    byte_level.use_regex
        && !byte_level.add_prefix_space
        && library.get_normalizer().is_none()
        && library.get_added_tokens_decoder().values().all(is_plain)
}

/// Each byte is its id, but the end of text is one token.
fn encode_bytes(text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    for (index, part) in text.split(END_OF_TEXT).enumerate() {
        if index > 0 {
            ids.push(256);
        }
        ids.extend(part.bytes().map(u32::from));
    }
    ids
}

fn character_id(ids: &HashMap<char, u32>, character: char) -> Result<u32, String> {
    ids.get(&character).copied().ok_or_else(|| {
        let named = format!("the character {character:?} (U+{:04X})", character as u32);
        format!("{named} is not among its {} characters: take it out, or use byte or bpe", ids.len())
    })
}

fn encode_whole(library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    let encoding = library.encode_fast(text, false).map_err(|error| format!("cannot encode: {error}"))?;
    Ok(encoding.get_ids().to_vec())
}

/// The ids of words met before, a set of them for each thread that encodes at the same time.
#[derive(Default)]
pub struct Words(Mutex<Vec<Known>>);

type Known = HashMap<Box<str>, Box<[u32]>>;

impl Words {
    /// Words remembered by a thread; with short ones only, some 20 MB.
    const COUNT_MAX: usize = 1 << 17;
    const BYTES_MAX: usize = 48;

    fn encode(&self, library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
        let chunks: Vec<&str> = pieces(text, CHUNK_BYTES).collect();
        let several = chunks.len() > 1;
        let parts = chunks.into_maybe_par_iter_cond(several).map(|chunk| self.encode_chunk(library, chunk));
        Ok(parts.collect::<Result<Vec<_>, String>>()?.concat())
    }

    fn encode_chunk(&self, library: &tokenizers::Tokenizer, chunk: &str) -> Result<Vec<u32>, String> {
        let mut known = self.sets().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(chunk.len() / 2);
        for word in pieces(chunk, 1) {
            if let Some(word_ids) = known.get(word) {
                ids.extend_from_slice(word_ids);
                continue;
            }
            let word_ids = encode_whole(library, word)?;
            ids.extend_from_slice(&word_ids);
            if word.len() <= Words::BYTES_MAX && known.len() < Words::COUNT_MAX {
                known.insert(word.into(), word_ids.into());
            }
        }
        self.sets().push(known);
        Ok(ids)
    }

    fn sets(&self) -> std::sync::MutexGuard<'_, Vec<Known>> {
        // A set is whole whenever it is in the list, so a panic elsewhere does it no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text in pieces of at least so many bytes that are encoded alike alone and together, if words begin with their
/// space: each but the first begins with a space, and what is before it does not end with one.
pub fn pieces(text: &str, bytes_min: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(piece_end(rest, bytes_min));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

fn piece_end(text: &str, bytes_min: usize) -> usize {
    let is_end = |&end: &usize| {
        let begins_with_space = text.as_bytes()[end].is_ascii_whitespace();
        begins_with_space && !text[..end].ends_with(char::is_whitespace)
    };
    (bytes_min..text.len()).find(is_end).unwrap_or(text.len())
}
