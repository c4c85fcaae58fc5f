//! Text from the model as it stands.

use super::setup::Session;
use crate::generate::{Generator, Sampling};
use crate::{Error, Result};

/// Tokens of a sample.
const SAMPLE_TOKENS: usize = 160;
/// Documents that a model must see to learn how one begins after another has ended.
const DOCUMENTS_TO_LEARN_STARTS: usize = 16;

impl Session {
    /// A sample from the start of a document; `None` if there is no memory for a second copy of the weights.
    pub fn sample(&mut self) -> Result<Option<String>> {
        let prompt = self.sample_prompt()?;
        let mut generator = match Generator::without_weights(&self.config.model, &self.backend, 1, prompt.len()) {
            Err(Error::Engine(gradus_engine::Error::TooLarge { .. })) => return Ok(None),
            generator => generator?,
        };
        generator.allow_only(|token| self.tokenizer.knows(token))?;
        for parameter in self.training.parameters() {
            let numbers = self.training.program().read(&parameter.name)?.to_vec::<f32>()?;
            generator.set_weight(&parameter.name, &numbers)?;
        }
        let settings = Sampling { temperature: 0.8, top_k: Some(50), top_p: 1.0, seed: self.config.seed };
        let mut texts = generator.generate(&prompt, &settings, SAMPLE_TOKENS, None, &mut |_, _| {})?;
        let tokens = texts.swap_remove(0).into_iter().map(|token| token as u32);
        self.tokenizer.decode_unfinished(&self.first_document(prompt[0] as u32, tokens)).map(Some)
    }

    /// The tokens up to the end of the first document that is not empty.
    fn first_document(&self, prompt: u32, tokens: impl Iterator<Item = u32>) -> Vec<u32> {
        let tokens = std::iter::once(prompt).chain(tokens);
        match self.tokenizer.end_of_text() {
            Some(end) => tokens.skip_while(|&token| token == end).take_while(|&token| token != end).collect(),
            None => tokens.collect(),
        }
    }

    /// The end of a document, after which another begins; or how the held-out or training text begins.
    fn sample_prompt(&self) -> Result<Vec<i32>> {
        let learns_starts = self.train.documents().len() >= DOCUMENTS_TO_LEARN_STARTS;
        if let Some(token) = self.tokenizer.end_of_text().filter(|_| learns_starts) {
            return Ok(vec![token as i32]);
        }
        let mut first = [0];
        self.validation.as_ref().unwrap_or(&self.train).read(0, &mut first)?;
        Ok(first.to_vec())
    }
}
