//! Model folders as Hugging Face tools read and write them.
//!
//! [`Export::write`] makes one from a trained model; [`read_model_config`] and [`read_model_weights`] take one in,
//! whoever wrote it. What a folder holds besides its weights goes with a model that is trained further: see
//! [`keep_companions`].

mod companions;
mod config;
#[cfg(test)]
mod image_tests;
mod images;
mod keys;
mod processor;
mod settings;
mod tokens;
mod weights;

pub(crate) use config::decimal;
pub(crate) use keys::{Keys, Rule};
pub(crate) use settings::Settings;

pub use companions::{COMPANIONS_FOLDER, keep_companions};
pub use config::read_model_config;
pub use images::{
    Labelled, Layout, check_layout, image_tensors, read_image_config, read_image_weights, write_image_model,
};
pub use tokens::{USE_ITS_OWN_TOKENIZER, check_vocabulary, start_tokens, stop_tokens};
pub use weights::{read_model_weights, stored_dtype};

use crate::Result;
use crate::config::ExportDtype;
use crate::files::atomic;
use crate::files::json::{read_object as read_json, read_object_if_there};
use crate::files::tensors::{self, Entry, Tensors};
use crate::models::{CausalModel, ModelConfig};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// What a model folder is made of.
pub struct Export<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// What has its weights in f32, by their published names.
    pub weights: &'a dyn Tensors,
    /// The element type to store weights in.
    pub dtype: ExportDtype,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// What [`keep_companions`] kept of the model that this one was trained from: all of it stays as it came, but for
    /// what has changed.
    pub origin: Option<&'a Path>,
}

impl Export<'_> {
    /// Writes the folder, or replaces it: whole, or not at all.
    pub fn write(&self, folder: &Path) -> Result<()> {
        atomic::write_folder(folder, |beside| {
            let entries = Entry::of_parameters(&self.config.parameters());
            tensors::write_as(&beside.join(WEIGHTS), self.dtype.dtype(), &entries, self.weights)?;
            self.write_settings(beside)
        })
    }

    /// Writes all but the weights into a folder: the model's settings and its tokenizer.
    pub fn write_settings(&self, folder: &Path) -> Result<()> {
        write_json(&folder.join(CONFIG), &self.model_config()?)?;
        if let Some(generation) = self.generation_config()? {
            write_json(&folder.join(GENERATION), &generation)?;
        }
        match self.origin.filter(|_| self.keeps_tokenizer()) {
            Some(origin) => companions::copy(&companions::OF_TOKENIZERS, origin, folder),
            None => {
                self.tokenizer.save(&folder.join(TOKENIZER))?;
                write_json(&folder.join("tokenizer_config.json"), &self.tokenizer_config())
            }
        }
    }

    /// Whether the tokenizer is that of the model that this one was trained from.
    fn keeps_tokenizer(&self) -> bool {
        self.origin.is_some_and(|origin| origin.join(TOKENIZER).exists())
    }

    fn model_config(&self) -> Result<Value> {
        let mut settings = match self.origin {
            Some(origin) => self.updated_config(&origin.join(CONFIG))?,
            None => self.new_config(),
        };
        settings.insert("architectures".into(), json!([self.config.family.architecture().published().class]));
        let dtype_key = if settings.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        settings.insert(dtype_key.into(), json!(self.dtype.published_name()));
        if !self.keeps_tokenizer() {
            self.state_tokens(&mut settings);
        }
        Ok(Value::Object(settings))
    }

    fn new_config(&self) -> Map<String, Value> {
        let mut settings = config::sizes_json(self.config);
        let dropouts = self.config.family.architecture().published().dropouts;
        settings.extend(dropouts.iter().map(|key| (key.to_string(), json!(0.0))));
        settings.insert("initializer_range".into(), json!(0.02));
        settings.insert("use_cache".into(), json!(true));
        settings
    }

    /// The configuration that the model came with; if it states other sizes than the model has, with these.
    fn updated_config(&self, path: &Path) -> Result<Map<String, Value>> {
        let settings = read_json(path)?;
        if config::stated_config(path).is_ok_and(|stated| stated == *self.config) {
            return Ok(settings);
        }
        let mut settings = config::without_sizes(settings);
        settings.extend(config::sizes_json(self.config));
        Ok(settings)
    }

    /// How others sample from the model. A model that came without such settings has them in its `config.json`.
    fn generation_config(&self) -> Result<Option<Value>> {
        let mut settings = match self.origin.map(|origin| origin.join(GENERATION)) {
            Some(path) if path.exists() => read_json(&path)?,
            Some(_) => return Ok(None),
            None => self.new_generation_config(),
        };
        if !self.keeps_tokenizer() {
            self.state_tokens(&mut settings);
        }
        Ok(Some(Value::Object(settings)))
    }

    fn new_generation_config(&self) -> Map<String, Value> {
        let padding = self.tokenizer.end_of_text().map(|end| ("pad_token_id".to_string(), json!(end)));
        [("do_sample".to_string(), json!(true))].into_iter().chain(padding).collect()
    }

    /// States the special tokens of a tokenizer that is new to the model: null where there is none, since some tools
    /// take the ids of published models where nothing is said.
    fn state_tokens(&self, settings: &mut Map<String, Value>) {
        let end = self.tokenizer.end_of_text();
        let start = self.tokenizer.document_start().first().copied().or(end);
        settings.insert("bos_token_id".into(), json!(start));
        settings.insert("eos_token_id".into(), json!(end));
    }

    fn tokenizer_config(&self) -> Value {
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.config.context,
            "clean_up_tokenization_spaces": false,
        });
        let text = |id: Option<u32>| id.and_then(|id| self.tokenizer.token(id));
        let end = text(self.tokenizer.end_of_text());
        let start = text(self.tokenizer.document_start().first().copied()).or(end.clone());
        for (key, token) in [("bos_token", start), ("eos_token", end.clone()), ("pad_token", end)] {
            if let Some(token) = token {
                settings[key] = json!(token);
            }
        }
        settings
    }
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("a value is valid JSON") + "\n";
    fs::write(path, text).map_err(atomic::failed("write", path))
}

#[cfg(test)]
mod tests;
