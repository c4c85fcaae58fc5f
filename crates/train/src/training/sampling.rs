//! Text from the model as it stands.

use super::setup::Session;
use crate::Result;
use crate::generate::{Generator, Sampling};

/// Tokens of a sample.
const SAMPLE_TOKENS: usize = 160;

impl Session {
    /// A sample from the start of a document.
    pub fn sample(&mut self) -> Result<String> {
        let prompt = self.sample_prompt()?;
        let mut generator = Generator::without_weights(&self.config.model, &self.backend, 1, prompt.len())?;
        generator.choose_among(self.tokenizer.vocabulary());
        for parameter in self.training.parameters() {
            let numbers = self.training.program().read(&parameter.name)?.to_vec::<f32>()?;
            generator.set_weight(&parameter.name, &numbers)?;
        }
        let settings = Sampling { temperature: 0.8, top_k: Some(50), top_p: 1.0, seed: self.config.seed };
        let stop = self.tokenizer.end_of_text().map(|token| token as i32);
        let mut texts = generator.generate(&prompt, &settings, SAMPLE_TOKENS, stop, &mut |_, _| {})?;
        let tokens: Vec<u32> = texts.swap_remove(0).into_iter().map(|token| token as u32).collect();
        let shown = self.tokenizer.end_of_text().is_none().then(|| prompt[0] as u32);
        let tokens: Vec<u32> = shown.into_iter().chain(tokens).collect();
        self.tokenizer.decode(&tokens)
    }

    /// The end of a document, after which another begins; or how the held-out or training text begins.
    fn sample_prompt(&self) -> Result<Vec<i32>> {
        if let Some(token) = self.tokenizer.end_of_text() {
            return Ok(vec![token as i32]);
        }
        let mut first = [0];
        self.validation.as_ref().unwrap_or(&self.train).read(0, &mut first)?;
        Ok(first.to_vec())
    }
}
