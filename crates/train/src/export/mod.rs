//! Model folders as Hugging Face tools read and write them.
//!
//! [`Export::write`] makes one from a trained model; [`read_model_config`] and [`read_model_weights`] take one in,
//! whoever wrote it.

mod config;
mod weights;

pub use config::read_model_config;
pub use weights::read_model_weights;

use crate::files::atomic;
use crate::files::tensors::{self, Entry, Tensors};
use crate::models::ModelConfig;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// What a model folder is made of.
pub struct Export<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// What has its weights in f32, by their published names.
    pub weights: &'a dyn Tensors,
    /// Writes the tokenizer's `tokenizer.json` to a path.
    pub save_tokenizer: &'a dyn Fn(&Path) -> Result<()>,
    /// The token that ends a document.
    pub end_of_text: Option<u32>,
}

impl Export<'_> {
    /// Writes the folder, or replaces it: whole, or not at all.
    pub fn write(&self, folder: &Path) -> Result<()> {
        atomic::write_folder(folder, |beside| {
            let entries = Entry::of_parameters(&self.config.parameters());
            tensors::write(&beside.join(WEIGHTS), &entries, self.weights)?;
            write_json(&beside.join(CONFIG), &config::to_json(self.config, self.end_of_text))?;
            write_json(&beside.join("generation_config.json"), &self.generation_config())?;
            let tokenizer = beside.join(TOKENIZER);
            (self.save_tokenizer)(&tokenizer)?;
            write_json(&beside.join("tokenizer_config.json"), &self.tokenizer_config(&tokenizer)?)
        })
    }

    fn generation_config(&self) -> Value {
        let mut generation = json!({ "do_sample": true });
        if let Some(id) = self.end_of_text {
            generation["bos_token_id"] = json!(id);
            generation["eos_token_id"] = json!(id);
            generation["pad_token_id"] = json!(id);
        }
        generation
    }

    fn tokenizer_config(&self, tokenizer: &Path) -> Result<Value> {
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.config.context,
            "clean_up_tokenization_spaces": false,
        });
        let text = fs::read_to_string(tokenizer).map_err(Error::io("read", tokenizer))?;
        if let Some(token) = self.end_of_text.and_then(|id| added_token(&text, id)) {
            settings["bos_token"] = json!(token);
            settings["eos_token"] = json!(token);
            settings["pad_token"] = json!(token);
        }
        Ok(settings)
    }
}

/// The text of an added token of a `tokenizer.json`.
fn added_token(tokenizer: &str, id: u32) -> Option<String> {
    let parsed: Value = serde_json::from_str(tokenizer).ok()?;
    let token = parsed["added_tokens"].as_array()?.iter().find(|token| token["id"] == id)?;
    Some(token["content"].as_str()?.to_string())
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("a value is valid JSON") + "\n";
    fs::write(path, text).map_err(atomic::failed("write", path))
}

#[cfg(test)]
mod tests;
