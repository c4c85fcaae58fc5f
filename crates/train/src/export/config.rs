//! `config.json`: a model's sizes under the names that `transformers` gave them.

use super::keys::{COMMON, Keys, Rule, rule};
use super::settings::Settings;
use super::{CONFIG, read_json, weights};
use crate::models::{Family, ModelConfig};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// A model's sizes, as a `config.json` states them.
pub(super) fn sizes_json(config: &ModelConfig) -> Map<String, Value> {
    let mut settings = config.family.architecture().write(config);
    settings["model_type"] = json!(config.family.name());
    settings["vocab_size"] = json!(config.vocabulary);
    settings["tie_word_embeddings"] = json!(config.tie_embeddings);
    let Value::Object(settings) = settings else { unreachable!("settings are an object") };
    settings
}

/// The f64 of the shortest decimal that is this f32: 1e-5 and not 9.999999747378752e-6.
pub(crate) fn decimal(number: f32) -> f64 {
    number.to_string().parse().expect("a number's text is a number")
}

/// The sizes of the model in a folder, from its `config.json`. What the models here cannot compute is refused, and so
/// is every key that is not understood.
pub fn read_model_config(folder: &Path) -> Result<ModelConfig> {
    let path = folder.join(CONFIG);
    if !path.exists() {
        let problem = "holds no config.json; give a model folder as Hugging Face tools or a run's `model/` have it";
        return Err(Error::checkpoint(folder, problem));
    }
    let stated = stated_config(&path)?;
    // A projection that is stored counts more than the word that there is none, as in `transformers`.
    let tie_embeddings = stated.tie_embeddings && !weights::has_head_of_its_own(folder, &stated)?;
    Ok(ModelConfig { tie_embeddings, ..stated })
}

/// The sizes that a `config.json` states.
pub(super) fn stated_config(path: &Path) -> Result<ModelConfig> {
    let settings = Settings { path: path.to_path_buf(), within: "", values: read_json(path)? };
    let name = settings.text("model_type", "")?;
    let Some(family) = Family::of_name(name) else {
        let known: Vec<&str> = Family::ALL.iter().map(|family| family.name()).collect();
        let is_of_images = settings.values.contains_key("architecture") || ["vit", "resnet"].contains(&name);
        let problem = match is_of_images {
            true => "a model of images, which `gradus classify` takes".to_string(),
            false => format!("models of type {name:?} are not known, only {}", known.join(", ")),
        };
        return Err(settings.refuse(problem));
    };
    settings.check_keys(&[&[COMMON], family.architecture().published().keys].concat())?;
    let config = family.architecture().read(&settings)?;
    match config.validate() {
        Ok(()) => Ok(config),
        Err(problem) => Err(Error::checkpoint(path, format!("impossible sizes: {problem}"))),
    }
}

/// What is left of a `config.json` without the keys that state what is computed, in any family.
pub(super) fn without_sizes(mut values: Map<String, Value>) -> Map<String, Value> {
    let families = Family::ALL.iter().flat_map(|family| family.architecture().published().keys);
    let lists: Vec<Keys> = [&COMMON].into_iter().chain(families).copied().collect();
    values.retain(|key, _| matches!(rule(&lists, key), Some(Rule::Any) | None));
    values
}
