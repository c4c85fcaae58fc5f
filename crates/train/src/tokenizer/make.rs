//! Tokenizers that need no training.

use super::{END_OF_TEXT, Tokenizer, problem};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

impl Tokenizer {
    /// Each byte a token, its value the id, and the end of text after them.
    pub fn bytes() -> Tokenizer {
        Tokenizer::from_json(bytes_json(), "byte").expect("the byte tokenizer is stated well")
    }

    /// Each character of the texts a token, in the order of their code points.
    pub fn characters<T: AsRef<str>>(texts: impl IntoIterator<Item = Result<T>>) -> Result<Tokenizer> {
        let mut characters = BTreeSet::new();
        for text in texts {
            characters.extend(text?.as_ref().chars());
        }
        if characters.is_empty() {
            return Err(problem(&"char", "the corpus has no characters: name one that has"));
        }
        Tokenizer::from_json(characters_json(characters), "char")
    }
}

/// The character that stands for a byte in a byte-level vocabulary: itself if it can be seen, else one of those
/// after the 256th, in order.
fn visible(byte: u8) -> char {
    let can_be_seen = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if can_be_seen(&byte) {
        return byte as char;
    }
    let unseen_before = (0..byte).filter(|other| !can_be_seen(other)).count();
    char::from_u32(256 + unseen_before as u32).expect("a letter of the extended Latin alphabet")
}

/// The `tokenizer.json` of bytes.
pub fn bytes_json() -> Value {
    let alphabet = (0..=255).map(visible).enumerate();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 256, "content": END_OF_TEXT, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": unmerged(alphabet),
    })
}

/// The `tokenizer.json` of characters, their ids in the order given.
pub fn characters_json(characters: impl IntoIterator<Item = char>) -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": { "type": "Fuse" },
        "model": unmerged(characters.into_iter().enumerate()),
    })
}

/// Byte-pair encoding without pairs: each character is its own token.
fn unmerged(characters: impl Iterator<Item = (usize, char)>) -> Value {
    let vocabulary: Map<String, Value> = characters.map(|(id, character)| (character.to_string(), json!(id))).collect();
    json!({ "type": "BPE", "vocab": vocabulary, "merges": [] })
}
