//! Text from the model as it stands.

use super::setup::Session;
use crate::Result;
use crate::generate::Sampling;

/// Tokens of a sample.
const SAMPLE_TOKENS: usize = 160;
/// Documents that a model must see to learn how one begins after another has ended.
const DOCUMENTS_TO_LEARN_STARTS: u64 = 16;

impl Session {
    /// A sample from the start of a document.
    pub fn sample(&mut self) -> Result<String> {
        let prompt = self.sample_prompt()?;
        let settings = Sampling { temperature: 0.8, top_k: Some(50), top_p: 1.0, seed: self.config.seed };
        let tokenizer = &self.tokenizer;
        let tokens = self.training.sample(&prompt, &settings, SAMPLE_TOKENS, |token| tokenizer.knows(token))?;
        let ids = prompt.into_iter().chain(tokens).map(|token| token as u32);
        self.tokenizer.decode_text(&self.first_document(ids))
    }

    /// The tokens up to the end of the first document that is not empty.
    fn first_document(&self, tokens: impl Iterator<Item = u32>) -> Vec<u32> {
        match self.tokenizer.end_of_text() {
            Some(end) => tokens.skip_while(|&token| token == end).take_while(|&token| token != end).collect(),
            None => tokens.collect(),
        }
    }

    /// What every document begins with; or the end of one, after which another begins; or how the held-out or training
    /// text begins.
    fn sample_prompt(&self) -> Result<Vec<i32>> {
        let start = self.tokenizer.document_start();
        if !start.is_empty() {
            return Ok(start.iter().map(|&token| token as i32).collect());
        }
        let learns_starts = self.train.documents() >= DOCUMENTS_TO_LEARN_STARTS;
        if let Some(token) = self.tokenizer.end_of_text().filter(|_| learns_starts) {
            return Ok(vec![token as i32]);
        }
        let mut first = [0];
        self.validation.as_ref().unwrap_or(&self.train).read(0, &mut first)?;
        Ok(first.to_vec())
    }
}
