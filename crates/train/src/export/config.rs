//! `config.json`: a model's sizes under the names that `transformers` gave them.

use super::keys::{COMMON, GPT2, Keys, LLAMA, ROTARY, Rule, rule};
use super::{CONFIG, read_json, weights};
use crate::models::{Family, ModelConfig};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A model's sizes, as a `config.json` states them.
pub(super) fn sizes_json(config: &ModelConfig) -> Map<String, Value> {
    let mut settings = match config.family {
        Family::Gpt2 => gpt2_sizes(config),
        Family::Llama => llama_sizes(config),
    };
    settings["vocab_size"] = json!(config.vocabulary);
    settings["tie_word_embeddings"] = json!(config.tie_embeddings);
    let Value::Object(settings) = settings else { unreachable!("settings are an object") };
    settings
}

fn gpt2_sizes(config: &ModelConfig) -> Value {
    json!({
        "model_type": "gpt2",
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_inner": config.feed_forward,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": decimal(config.norm_epsilon),
    })
}

fn llama_sizes(config: &ModelConfig) -> Value {
    json!({
        "model_type": "llama",
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size(),
        "intermediate_size": config.feed_forward,
        "max_position_embeddings": config.context,
        "rms_norm_eps": decimal(config.norm_epsilon),
        "rope_theta": decimal(config.rope_theta),
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
    })
}

/// The f64 of the shortest decimal that is this f32: 1e-5 and not 9.999999747378752e-6.
fn decimal(number: f32) -> f64 {
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
    let config = match settings.text("model_type", "")? {
        "gpt2" => settings.gpt2()?,
        "llama" => settings.llama()?,
        other => return Err(settings.refuse(format!("models of type {other:?} are not known, only gpt2 and llama"))),
    };
    match config.validate() {
        Ok(()) => Ok(config),
        Err(problem) => Err(Error::checkpoint(path, format!("impossible sizes: {problem}"))),
    }
}

/// What is left of a `config.json` without the keys that state what is computed.
pub(super) fn without_sizes(mut values: Map<String, Value>) -> Map<String, Value> {
    let states_sizes = |key: &str| !matches!(rule(&[COMMON, GPT2, LLAMA], key), Some(Rule::Any) | None);
    values.retain(|key, _| !states_sizes(key));
    values
}

/// The keys of a `config.json`, or of an object in it. One that is missing has the value that `transformers` takes then.
struct Settings {
    path: PathBuf,
    /// The key of the object that these lie in, with a dot after it.
    within: &'static str,
    values: Map<String, Value>,
}

impl Settings {
    fn gpt2(&self) -> Result<ModelConfig> {
        self.check_keys(&[COMMON, GPT2])?;
        let width = self.size_by_names(["hidden_size", "n_embd"], 768)?;
        let heads = self.size_by_names(["num_attention_heads", "n_head"], 12)?;
        Ok(ModelConfig {
            family: Family::Gpt2,
            vocabulary: self.size("vocab_size", 50_257)?,
            width,
            layers: self.size_by_names(["num_hidden_layers", "n_layer"], 12)?,
            heads,
            kv_heads: heads,
            feed_forward: self.size_or_null("n_inner", width.saturating_mul(4))?,
            context: self.size_by_names(["max_position_embeddings", "n_positions"], 1024)?,
            tie_embeddings: self.flag("tie_word_embeddings", true)?,
            norm_epsilon: self.number("layer_norm_epsilon", 1e-5)?,
            rope_theta: 10_000.0,
        })
    }

    fn llama(&self) -> Result<ModelConfig> {
        self.check_keys(&[COMMON, LLAMA])?;
        let width = self.size("hidden_size", 4096)?;
        let heads = self.size("num_attention_heads", 32)?;
        let head_size = width / heads.max(1);
        let stated = self.size_or_null("head_dim", head_size)?;
        if stated != head_size {
            return Err(self.refuse(format!("head_dim {stated} is not hidden_size / num_attention_heads, {head_size}")));
        }
        Ok(ModelConfig {
            family: Family::Llama,
            vocabulary: self.size("vocab_size", 32_000)?,
            width,
            layers: self.size("num_hidden_layers", 32)?,
            heads,
            kv_heads: self.size_or_null("num_key_value_heads", heads)?,
            feed_forward: self.size("intermediate_size", 11_008)?,
            context: self.size("max_position_embeddings", 2048)?,
            tie_embeddings: self.flag("tie_word_embeddings", false)?,
            norm_epsilon: self.number("rms_norm_eps", 1e-6)?,
            rope_theta: self.rope_theta()?,
        })
    }

    /// The base of the rotary angles: in `rope_scaling`, else in `rope_parameters`, else by itself. Angles that are
    /// scaled in any way are refused.
    fn rope_theta(&self) -> Result<f32> {
        let stated = self.number("rope_theta", 10_000.0)?;
        for (key, within) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
            match self.values.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Object(values)) if values.is_empty() => {}
                Some(Value::Object(values)) => {
                    let rotary = Settings { path: self.path.clone(), within, values: values.clone() };
                    return rotary.unscaled_theta(stated);
                }
                Some(value) => return Err(self.wrong(key, value, "an object")),
            }
        }
        Ok(stated)
    }

    fn unscaled_theta(&self, default: f32) -> Result<f32> {
        let kind = self.text("rope_type", self.text("type", "default")?)?;
        if kind != "default" {
            return Err(self.refuse(format!("{}rope_type {kind:?} is not supported, only \"default\"", self.within)));
        }
        self.check_keys(&[ROTARY])?;
        self.number("rope_theta", default)
    }

    /// Refuses a key that is in none of the lists, or that has a value which it may not have.
    fn check_keys(&self, lists: &[Keys]) -> Result<()> {
        for (key, value) in &self.values {
            let named = format!("{}{}", self.within, key.escape_debug());
            match rule(lists, key) {
                Some(Rule::Read | Rule::Any) => {}
                Some(Rule::Only(values)) if values.contains(&&value.to_string()[..]) => {}
                Some(Rule::Only(values)) => {
                    let problem = format!("{named} {value} is not supported, only {}", values[0]);
                    return Err(self.refuse(problem));
                }
                None => {
                    let advice = "take it out if the model is the same without it, or choose another model";
                    return Err(Error::checkpoint(&self.path, format!("{named} is not understood; {advice}")));
                }
            }
        }
        Ok(())
    }

    fn size(&self, key: &str, default: usize) -> Result<usize> {
        let size = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.read(key, default, "a whole number", size)
    }

    /// A size that null stands for the default of.
    fn size_or_null(&self, key: &str, default: usize) -> Result<usize> {
        if self.values.get(key).is_some_and(Value::is_null) { Ok(default) } else { self.size(key, default) }
    }

    /// A size that goes by two names, which must not contradict each other.
    fn size_by_names(&self, [general, own]: [&str; 2], default: usize) -> Result<usize> {
        let size = self.size(own, self.size(general, default)?)?;
        match self.size(general, size)? {
            other if other != size => Err(self.refuse(format!("{general} is {other} and {own} is {size}"))),
            _ => Ok(size),
        }
    }

    fn number(&self, key: &str, default: f32) -> Result<f32> {
        self.read(key, default, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        self.read(key, default, "true or false", Value::as_bool)
    }

    fn text<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        self.read(key, default, "text", Value::as_str)
    }

    fn read<'a, T>(&'a self, key: &str, default: T, kind: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        let Some(value) = self.values.get(key) else { return Ok(default) };
        of(value).ok_or_else(|| self.wrong(key, value, kind))
    }

    fn wrong(&self, key: &str, value: &Value, kind: &str) -> Error {
        let problem = format!("{}{key} is {value} and should be {kind}; correct it or save it again", self.within);
        Error::checkpoint(&self.path, problem)
    }

    fn refuse(&self, problem: String) -> Error {
        Error::checkpoint(&self.path, format!("{problem}; choose another model to start from"))
    }
}
