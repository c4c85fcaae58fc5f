//! The texts of tokens: all of a tokenizer that writing takes.

use super::{Tokenizer, problem};
use crate::Result;
use crate::memory::heap;
use tokenizers::{Decoder, DecoderWrapper};

/// What ids stand for, without what it takes to encode a text: a few bytes a token, where a [`Tokenizer`] takes hundreds.
pub struct TokenTexts {
    name: String,
    /// The texts of all tokens, one after another, where the one of each id ends, and what it is.
    texts: String,
    ends: Vec<u32>,
    uses: Vec<Use>,
    decoder: Option<DecoderWrapper>,
}

/// What an id is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// No token has it.
    Nothing,
    Text,
    /// It says something about the text, and is left out of it.
    Special,
}

impl Tokenizer {
    /// Keeps only the texts of tokens, and gives the memory of all else back to the system.
    pub fn into_texts(self) -> TokenTexts {
        let texts = TokenTexts::of(&self);
        drop(self);
        heap::give_back();
        texts
    }
}

impl TokenTexts {
    fn of(tokenizer: &Tokenizer) -> TokenTexts {
        let added = tokenizer.library.get_added_vocabulary();
        let (mut texts, mut ends, mut uses) = (String::new(), vec![], vec![]);
        for id in 0..tokenizer.vocabulary as u32 {
            let token = tokenizer.token(id);
            texts.push_str(token.as_deref().unwrap_or_default());
            // A file of tokens is not larger than 64 MiB.
            ends.push(texts.len() as u32);
            uses.push(match token {
                None => Use::Nothing,
                Some(token) if added.is_special_token(&token) => Use::Special,
                Some(_) => Use::Text,
            });
        }
        texts.shrink_to_fit();
        TokenTexts {
            name: tokenizer.name.clone(),
            texts,
            ends,
            uses,
            decoder: tokenizer.library.get_decoder().cloned(),
        }
    }

    /// Whether there is a token of this id.
    pub fn knows(&self, id: u32) -> bool {
        self.uses.get(id as usize).is_some_and(|use_| *use_ != Use::Nothing)
    }

    /// The text of a token, if there is one of this id.
    pub fn token(&self, id: u32) -> Option<&str> {
        let id = self.knows(id).then_some(id as usize)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.texts[start as usize..self.ends[id] as usize])
    }

    /// The text of ids, special tokens left out: what [`Tokenizer::decode_text`] gives.
    pub fn decode_text(&self, ids: &[u32]) -> Result<String> {
        let mut tokens = Vec::with_capacity(ids.len());
        for &id in ids {
            let token = self.token(id).ok_or_else(|| no_token(&self.name, id, self.uses.len()))?;
            if self.uses[id as usize] == Use::Text {
                tokens.push(token.to_string());
            }
        }
        let Some(decoder) = &self.decoder else { return Ok(tokens.join(" ")) };
        decoder.decode(tokens).map_err(|error| problem(&self.name, format!("cannot decode: {error}")))
    }
}

/// An id that no token has.
pub(super) fn no_token(name: &str, id: u32, vocabulary: usize) -> crate::Error {
    let advice = "decode ids of a model that was trained with this tokenizer";
    problem(&name, format!("it has no token {id} (it has {vocabulary} tokens): {advice}"))
}
