//! The ways to encode: tables for bytes and characters, remembered words for byte pairs, the library for the rest.

use super::END_OF_TEXT;
use super::make::{bytes_json, characters_json};
use super::word_table::WordTable;
use crate::data;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use tokenizers::{AddedToken, PreTokenizerWrapper};

/// Bytes that one thread encodes at a time.
const CHUNK_BYTES: usize = 1 << 14;

/// The longest stretch without a space that the library gets at once: it holds some hundred times as much. A longer one
/// is encoded in parts, so that a token that would reach over their ends is not found.
const STRETCH_BYTES_MAX: usize = 1 << 12;

/// Bytes that the library holds for a byte of a text, about: a place for each in the text before and after it was
/// changed, and its token.
const LIBRARY_FACTOR: usize = 200;

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
    pub fn recognize(library: &tokenizers::Tokenizer, json: &str) -> Scheme {
        if states(bytes_json(), json) {
            return Scheme::Bytes;
        }
        if let Some(ids) = character_ids(library, json) {
            return Scheme::Characters(ids);
        }
        if words_begin_with_space(library) { Scheme::BytePairs(Words::default()) } else { Scheme::Other }
    }

    /// The most bytes that encoding a piece of a corpus holds, its ids included; words that are remembered come to that.
    pub fn bytes_held(&self) -> u64 {
        let (piece, id) = (data::PIECE_BYTES, size_of::<u32>());
        let held = match self {
            Scheme::Bytes | Scheme::Characters(_) => piece * id,
            // A vector that grows is there twice, the second time up to twice as large.
            Scheme::BytePairs(_) => 3 * piece * id + threads() * STRETCH_BYTES_MAX * LIBRARY_FACTOR,
            Scheme::Other => piece * LIBRARY_FACTOR,
        };
        held as u64
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
            Scheme::Characters(ids) => encode_characters(ids, text),
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

fn encode_characters(ids: &HashMap<char, u32>, text: &str) -> Result<Vec<u32>, String> {
    let mut encoded = Vec::with_capacity(text.chars().count());
    for character in text.chars() {
        encoded.push(character_id(ids, character)?);
    }
    Ok(encoded)
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
pub struct Words {
    sets: Mutex<Vec<Known>>,
    /// Words that one thread remembers.
    count_max: AtomicUsize,
}

/// Words of which the ids are known.
#[derive(Default)]
struct Known {
    words: WordTable,
    /// The ids of all words, and where those of each end.
    ids: Vec<u32>,
    ends: Vec<usize>,
}

impl Known {
    fn ids(&self, word: &str) -> Option<&[u32]> {
        let number = self.words.find(word)?;
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        Some(&self.ids[start..self.ends[number]])
    }

    fn add(&mut self, word: &str, ids: &[u32]) {
        self.words.number(word);
        self.ids.extend_from_slice(ids);
        self.ends.push(self.ids.len());
    }
}

impl Default for Words {
    fn default() -> Words {
        let words = Words { sets: Mutex::default(), count_max: AtomicUsize::new(0) };
        words.limit(usize::MAX);
        words
    }
}

impl Words {
    /// Words that all threads together remember: more made no text of some tens of MB faster to encode.
    const COUNT_MAX: usize = 1 << 18;
    /// The longest word that is remembered.
    const LENGTH_MAX: usize = 48;
    /// Bytes that a word takes, about: its letters, its ids and the table, in vectors half of which may be empty.
    const WORD_BYTES: usize = 96;

    /// Stays within so many bytes, however much slower.
    pub fn limit(&self, bytes: usize) {
        let words = (bytes / Words::WORD_BYTES).min(Words::COUNT_MAX);
        self.count_max.store(words / threads(), Ordering::Relaxed);
    }

    /// Forgets all words.
    pub fn forget(&self) {
        self.sets().clear();
    }

    fn encode(&self, library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
        let chunks: Vec<&str> = pieces(text, CHUNK_BYTES).collect();
        if chunks.len() <= 1 {
            return self.encode_chunk(library, text);
        }
        let next = AtomicUsize::new(0);
        let encode_some = || {
            let mine = std::iter::from_fn(|| {
                let index = next.fetch_add(1, Ordering::Relaxed);
                Some((index, self.encode_chunk(library, chunks.get(index)?)))
            });
            mine.collect::<Vec<_>>()
        };
        // Threads that end leave nothing in memory, unlike those of a pool.
        let mut parts = thread::scope(|scope| {
            let others: Vec<_> = (1..threads().min(chunks.len())).map(|_| scope.spawn(encode_some)).collect();
            let mut parts = encode_some();
            parts.extend(others.into_iter().flat_map(|other| other.join().expect("encoding does not panic")));
            parts
        });
        parts.sort_unstable_by_key(|(index, _)| *index);
        Ok(parts.into_iter().map(|(_, ids)| ids).collect::<Result<Vec<_>, String>>()?.concat())
    }

    fn encode_chunk(&self, library: &tokenizers::Tokenizer, chunk: &str) -> Result<Vec<u32>, String> {
        let count_max = self.count_max.load(Ordering::Relaxed);
        let mut known = self.sets().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(chunk.len() / 2);
        for word in pieces(chunk, 1).flat_map(|word| parts(word, STRETCH_BYTES_MAX)) {
            if let Some(word_ids) = known.ids(word) {
                ids.extend_from_slice(word_ids);
                continue;
            }
            let word_ids = encode_whole(library, word)?;
            ids.extend_from_slice(&word_ids);
            if word.len() <= Words::LENGTH_MAX && known.words.len() < count_max {
                known.add(word, &word_ids);
            }
        }
        self.sets().push(known);
        Ok(ids)
    }

    fn sets(&self) -> std::sync::MutexGuard<'_, Vec<Known>> {
        // A set is whole whenever it is in the list, so a panic elsewhere does it no harm.
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads that encode at the same time.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
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

/// A stretch of text in parts of at most so many bytes.
pub fn parts(text: &str, bytes_max: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = if rest.len() > bytes_max { data::piece_end(&rest.as_bytes()[..bytes_max]) } else { rest.len() };
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

fn piece_end(text: &str, bytes_min: usize) -> usize {
    let is_end = |&end: &usize| {
        let begins_with_space = text.as_bytes()[end].is_ascii_whitespace();
        begins_with_space && !text[..end].ends_with(char::is_whitespace)
    };
    (bytes_min..text.len()).find(is_end).unwrap_or(text.len())
}
