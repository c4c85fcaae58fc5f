//! Text from ids as they come.

use super::TokenTexts;
use crate::Result;

/// The text of ids that come one after another, given out as soon as nothing that follows can change it. All that is
/// given out, together, is the text of all ids together, special tokens left out.
pub struct TextStream<'a> {
    tokens: &'a TokenTexts,
    ids: Vec<u32>,
    /// Where the ids begin that the next text depends on: a decoder may treat the first of them in its own way.
    context: usize,
    /// Ids before this one were given out.
    given: usize,
}

impl<'a> TextStream<'a> {
    /// The text that goes on from these ids.
    pub fn after(tokens: &'a TokenTexts, prompt: &[u32]) -> TextStream<'a> {
        TextStream { tokens, ids: prompt.to_vec(), context: 0, given: prompt.len() }
    }

    /// One more id; gives the text that is certain by now.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        if self.may_change(id) { Ok(String::new()) } else { self.give(true) }
    }

    /// The text that is left when no more ids come.
    pub fn finish(&mut self) -> Result<String> {
        self.give(false)
    }

    fn give(&mut self, goes_on: bool) -> Result<String> {
        let before = self.tokens.decode_text(&self.ids[self.context..self.given])?;
        let text = self.tokens.decode_text(&self.ids[self.context..])?;
        if goes_on && text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let new = text.get(before.len()..).unwrap_or_default().to_string();
        // Ids without a text of their own stay with what follows them.
        if !new.is_empty() {
            (self.context, self.given) = (self.given, self.ids.len());
        }
        Ok(new)
    }

    /// Whether the bytes of a token are decoded together with those of the tokens after it.
    fn may_change(&self, id: u32) -> bool {
        let token = self.tokens.token(id);
        token.is_some_and(|token| token.len() == 6 && token.starts_with("<0x") && token.ends_with('>'))
    }
}
