//! How text becomes tokens and tokens text: bytes, characters, byte pairs trained here, or any `tokenizer.json`.
//!
//! Whatever it was made of, a tokenizer is a `tokenizer.json` that gives the same ids in other tools.

mod encode;
mod make;
mod merges;
mod report;
mod tally;
mod train;
mod word_table;

pub use report::{Report, tokenize_report};

use crate::files::atomic;
use crate::{Error, Result};
use encode::Scheme;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The token that ends a document, in the tokenizers made here.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Tokens that end a document in the tokenizers of others, the likeliest first.
const ENDS_OF_TEXT: [&str; 4] = [END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>"];

/// The file that states a tokenizer.
const FILE_NAME: &str = "tokenizer.json";

/// Text to tokens and back.
pub struct Tokenizer {
    library: tokenizers::Tokenizer,
    scheme: Scheme,
    name: String,
    json: String,
    vocabulary: usize,
    end_of_text: Option<u32>,
}

impl Tokenizer {
    /// The tokenizer of a file, or of a folder with a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Tokenizer> {
        let path = if path.is_dir() { path.join(FILE_NAME) } else { path.to_path_buf() };
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => problem(
                &path.display(),
                "there is no such file: name a tokenizer.json, a folder with one, byte, char or bpe",
            ),
            _ => Error::io("read", &path)(error),
        })?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            problem(&path.display(), format!("it is not JSON ({error}): name a whole tokenizer.json"))
        })?;
        Tokenizer::from_json(value, &path.display().to_string())
    }

    /// The tokenizer that the value of a `tokenizer.json` states.
    fn from_json(mut value: Value, name: &str) -> Result<Tokenizer> {
        make_exact(&mut value);
        let library = tokenizers::Tokenizer::from_bytes(value.to_string()).map_err(|error| {
            problem(&name, format!("it states no tokenizer ({error}): name another tokenizer.json"))
        })?;
        Tokenizer::from_library(library, name)
    }

    fn from_library(mut library: tokenizers::Tokenizer, name: &str) -> Result<Tokenizer> {
        let json = library.to_string(true).map_err(|error| problem(&name, format!("it has no JSON form ({error})")))?;
        let ids = library.get_vocab(true);
        let vocabulary = ids.values().max().map_or(0, |&id| id as usize + 1);
        if vocabulary == 0 {
            return Err(problem(&name, "its vocabulary is empty: name another tokenizer.json"));
        }
        let added = library.get_added_tokens_decoder();
        let id_of = |content: &&str| added.iter().find(|(_, token)| token.content == *content).map(|(&id, _)| id);
        let end_of_text = ENDS_OF_TEXT.iter().find_map(id_of);
        let scheme = Scheme::recognise(&library, &json);
        if let Scheme::BytePairs(_) = scheme {
            // Words are remembered by the scheme, which knows to forget them.
            let mut model = library.get_model().clone();
            model.resize_cache(0);
            library.with_model(model);
        }
        Ok(Tokenizer { scheme, name: name.to_string(), json, vocabulary, end_of_text, library })
    }

    /// The ids of a text; no special tokens are added to it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.scheme.encode(&self.library, text).map_err(|error| problem(&self.name, error))
    }

    /// From now on, remembers only as many words for encoding as fit into so many bytes.
    pub fn limit_memory(&self, bytes: u64) {
        if let Scheme::BytePairs(words) = &self.scheme {
            words.limit(bytes as usize);
        }
    }

    /// Forgets what was remembered to encode faster.
    pub fn forget_words(&self) {
        if let Scheme::BytePairs(words) = &self.scheme {
            words.forget();
        }
    }

    /// The text of ids. Bytes that are no text (a character cut in two) become the replacement character.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| !self.knows(id)) {
            let advice = "decode ids of a model that was trained with this tokenizer";
            return Err(problem(
                &self.name,
                format!("it has no token {id} (it has {} tokens): {advice}", self.vocabulary),
            ));
        }
        self.library.decode(ids, false).map_err(|error| problem(&self.name, format!("cannot decode: {error}")))
    }

    /// The text of ids that may stop within a character, which is then left out.
    pub fn decode_unfinished(&self, ids: &[u32]) -> Result<String> {
        let mut text = self.decode(ids)?;
        text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        Ok(text)
    }

    /// Whether there is a token of this id.
    pub fn knows(&self, id: u32) -> bool {
        self.library.id_to_token(id).is_some()
    }

    /// How many ids a model needs room for: one more than the largest.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The token that ends a document, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }

    /// What it is: `byte`, `char`, `bpe` or, for a tokenizer of another kind, `file`.
    pub fn kind(&self) -> &'static str {
        self.scheme.name()
    }

    /// A number that changes when the JSON does (its FNV-1a hash, the same on every machine).
    pub fn fingerprint(&self) -> u64 {
        self.json.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3))
    }

    /// Writes the `tokenizer.json` to a path: whole or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        atomic::write_file(path, self.json.as_bytes())
    }
}

/// Takes out what would give other ids than those of the text: cutting, filling up, and merging by chance.
fn make_exact(value: &mut Value) {
    let Some(settings) = value.as_object_mut() else { return };
    settings.insert("truncation".into(), Value::Null);
    settings.insert("padding".into(), Value::Null);
    if let Some(model) = settings.get_mut("model").and_then(Value::as_object_mut) {
        model.remove("dropout");
    }
}

/// A tokenizer that cannot be used, on one line whatever a library said.
fn problem(name: &dyn std::fmt::Display, problem: impl Into<String>) -> Error {
    Error::Tokenizer { name: name.to_string(), problem: problem.into().replace('\n', " ") }
}
