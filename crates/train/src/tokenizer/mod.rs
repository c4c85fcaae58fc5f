//! How text becomes tokens and tokens text: bytes, characters, byte pairs trained here, or any `tokenizer.json`.
//!
//! Whatever it was made of, a tokenizer is a `tokenizer.json` that gives the same ids in other tools.

mod checks;
mod encode;
mod make;
mod merges;
mod report;
mod special;
mod stream;
mod tally;
mod texts;
mod train;
mod word_table;

pub use report::{Report, tokenize_report};
pub use stream::TextStream;
pub use texts::TokenTexts;
pub use train::LEARNING_BYTES_MIN;

pub(crate) use special::token_ids;

use crate::files::atomic;
use crate::{Error, Result};
use encode::Scheme;
use serde_json::{Value, json};
use special::Template;
use std::path::Path;

/// The token that ends a document, in the tokenizers made here.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// The file that states a tokenizer.
const FILE_NAME: &str = "tokenizer.json";

/// The file beside it that names its special tokens.
const NAMES: &str = "tokenizer_config.json";

/// Text to tokens and back.
pub struct Tokenizer {
    library: tokenizers::Tokenizer,
    scheme: Scheme,
    name: String,
    json: String,
    vocabulary: usize,
    end_of_text: Option<u32>,
    template: Template,
    words_forgotten: u64,
}

impl Tokenizer {
    /// The tokenizer of a file, or of a folder with a `tokenizer.json`. Files beside it may say which token ends a
    /// document.
    pub fn open(path: &Path) -> Result<Tokenizer> {
        let path = if path.is_dir() { path.join(FILE_NAME) } else { path.to_path_buf() };
        let bytes = checks::read(&path)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            problem(&path.display(), format!("it is not JSON ({error}): name a whole tokenizer.json"))
        })?;
        let mut tokenizer = Tokenizer::from_json(value, &path.display().to_string())?;
        let is_of_folder = path.file_name().is_some_and(|name| name == FILE_NAME);
        if let Some(folder) = path.parent().filter(|_| is_of_folder)
            && let Some(end) = special::stated_end_of_text(&tokenizer.library, folder)?
        {
            tokenizer.end_of_text = Some(end);
        }
        Ok(tokenizer)
    }

    /// The tokenizer that the value of a `tokenizer.json` states.
    fn from_json(mut value: Value, name: &str) -> Result<Tokenizer> {
        checks::ids(&value).map_err(|error| problem(&name, error))?;
        checks::template(&value["post_processor"]).map_err(|error| problem(&name, error))?;
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
        let template = Template::of(&library).map_err(|error| problem(&name, error))?;
        let end_of_text = special::usual_end_of_text(&library);
        let scheme = Scheme::recognize(&library, &json);
        if let Scheme::BytePairs(_) = scheme {
            // Words are remembered by the scheme, which knows to forget them.
            let mut model = library.get_model().clone();
            model.resize_cache(0);
            library.with_model(model);
        }
        let (name, words_forgotten) = (name.to_string(), 0);
        Ok(Tokenizer { scheme, name, json, vocabulary, end_of_text, template, words_forgotten, library })
    }

    /// Words of the corpus that were forgotten while it was learned, because they did not fit into the memory.
    pub fn words_forgotten(&self) -> u64 {
        self.words_forgotten
    }

    /// The ids of a text, those that the `tokenizers` library gives; no special tokens are added to it. But where byte
    /// pairs within words are used, a stretch of more than 4 KiB without a space is encoded in parts.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.scheme.encode(&self.library, text).map_err(|error| problem(&self.name, error))
    }

    /// The most bytes that encoding a piece of a corpus holds, besides the words that are remembered.
    pub fn encoding_bytes(&self) -> u64 {
        self.scheme.bytes_held()
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
        self.decode_with(ids, false)
    }

    /// The text of ids, special tokens left out.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, true)
    }

    fn decode_with(&self, ids: &[u32], leave_out_special: bool) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| !self.knows(id)) {
            return Err(texts::no_token(&self.name, *id, self.vocabulary));
        }
        let decoded = self.library.decode(ids, leave_out_special);
        decoded.map_err(|error| problem(&self.name, format!("cannot decode: {error}")))
    }

    /// Whether there is a token of this id.
    pub fn knows(&self, id: u32) -> bool {
        self.library.id_to_token(id).is_some()
    }

    /// How many ids a model needs room for: one more than the largest.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// What it was made from: its file, or its kind.
    pub fn name(&self) -> &str {
        &self.name
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

    /// Writes the tokenizer to a folder that [`Tokenizer::open`] takes, with the token that ends a document.
    pub fn save_in(&self, folder: &Path) -> Result<()> {
        let end = self.end_of_text.and_then(|id| self.library.id_to_token(id));
        let names = json!({ "eos_token": end }).to_string();
        atomic::write_file(&folder.join(NAMES), names.as_bytes())?;
        // Last, since where it is the other is looked for.
        self.save(&folder.join(FILE_NAME))
    }

    /// The text of a token, if there is one of this id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.library.id_to_token(id)
    }

    /// A token that the other tokenizer has under another id, or has not, if there is one: (id, text here, text there).
    pub(crate) fn first_difference(&self, other: &Tokenizer) -> Option<(u32, String, String)> {
        let differs = |id: u32| {
            let (mine, others) = (self.token(id)?, other.token(id).unwrap_or_else(|| "nothing".to_string()));
            (mine != others).then_some((id, mine, others))
        };
        (0..self.vocabulary as u32).find_map(differs)
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
