//! The tokens around a document: those that a tokenizer's template puts there, and the one that ends it.

use super::{END_OF_TEXT, Tokenizer};
use crate::Result;
use crate::files::json::read_object_if_there;
use serde_json::{Map, Value};
use std::path::Path;
use tokenizers::{Encoding, PostProcessor, Token};

/// Tokens that end a document where nothing says which does, the likeliest first.
const ENDS_OF_TEXT: [&str; 4] = [END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>"];

/// The files beside a `tokenizer.json` that name its special tokens, the one that counts most first.
const NAMING_FILES: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];

/// Token ids that a tokenizer puts around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    /// Those before it.
    pub before: Vec<u32>,
    /// Those after it.
    pub after: Vec<u32>,
}

impl Template {
    /// What the library puts around a text, or what is wrong with that.
    pub fn of(library: &tokenizers::Tokenizer) -> Result<Template, String> {
        let Some(processor) = library.get_post_processor() else { return Ok(Template::default()) };
        let one = Encoding::from_tokens(vec![Token::new(0, "text".to_string(), (0, 4))], 0);
        let told = |error| format!("its template cannot be used ({error}): name another tokenizer.json");
        let around = processor.process(one, None, true).map_err(told)?;
        let place = around.get_special_tokens_mask().iter().position(|is_special| *is_special == 0);
        let place = place.ok_or("its template leaves out the text: name another tokenizer.json")?;
        let ids = around.get_ids();
        match ids.iter().enumerate().find(|(index, id)| *index != place && library.id_to_token(**id).is_none()) {
            Some((_, id)) => {
                Err(format!("its template adds token {id}, which it has not: name another tokenizer.json"))
            }
            None => Ok(Template { before: ids[..place].to_vec(), after: ids[place + 1..].to_vec() }),
        }
    }
}

/// The token that ends a document, if nothing beside the tokenizer says which.
pub(super) fn usual_end_of_text(library: &tokenizers::Tokenizer) -> Option<u32> {
    let added = library.get_added_tokens_decoder();
    let id_of = |content: &&str| added.iter().find(|(_, token)| token.content == *content).map(|(&id, _)| id);
    ENDS_OF_TEXT.iter().find_map(id_of)
}

/// The token that files beside a `tokenizer.json` say ends a document: by its text, or by its id in a model's
/// `config.json`.
pub(super) fn stated_end_of_text(library: &tokenizers::Tokenizer, folder: &Path) -> Result<Option<u32>> {
    for file in NAMING_FILES {
        let named = read_object_if_there(&folder.join(file))?;
        if let Some(id) = token_text(&named, "eos_token").and_then(|text| library.token_to_id(text)) {
            return Ok(Some(id));
        }
    }
    let model = read_object_if_there(&folder.join("config.json"))?;
    Ok(token_ids(&model, "eos_token_id").into_iter().find(|id| library.id_to_token(*id).is_some()))
}

/// The text of a special token, which may lie in an object with more about it.
fn token_text<'a>(named: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    let token = named.get(key)?;
    token.get("content").unwrap_or(token).as_str()
}

/// The ids that a key states, by a number or a list of them.
pub(crate) fn token_ids(settings: &Map<String, Value>, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match settings.get(key) {
        Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => vec![],
    }
}

impl Tokenizer {
    /// The ids of a prompt, with the special tokens of the tokenizer's template around them.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        Ok([&self.template.before[..], &self.encode(text)?, &self.template.after].concat())
    }

    /// What a document begins with.
    pub fn document_start(&self) -> &[u32] {
        &self.template.before
    }

    /// What a document ends with: what the template says, and the end of text, once.
    pub fn document_end(&self) -> Vec<u32> {
        let missing = self.end_of_text.filter(|end| self.template.after.last() != Some(end));
        self.template.after.iter().copied().chain(missing).collect()
    }

    /// The token that ends a document, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }
}
