//! `config.json`: a model's sizes under the names that `transformers` gave them.

use super::CONFIG;
use crate::models::{Family, ModelConfig};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The `config.json` of a model.
pub(super) fn to_json(config: &ModelConfig, end_of_text: Option<u32>) -> Value {
    let mut settings = match config.family {
        Family::Gpt2 => gpt2_settings(config),
        Family::Llama => llama_settings(config),
    };
    settings["vocab_size"] = json!(config.vocabulary);
    settings["tie_word_embeddings"] = json!(config.tie_embeddings);
    settings["bos_token_id"] = json!(end_of_text);
    settings["eos_token_id"] = json!(end_of_text);
    settings["initializer_range"] = json!(0.02);
    settings["use_cache"] = json!(true);
    settings["torch_dtype"] = json!("float32");
    settings
}

fn gpt2_settings(config: &ModelConfig) -> Value {
    json!({
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_inner": config.feed_forward,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": decimal(config.norm_epsilon),
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    })
}

fn llama_settings(config: &ModelConfig) -> Value {
    json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
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
        "attention_dropout": 0.0,
        "mlp_bias": false,
    })
}

/// The f64 of the shortest decimal that is this f32: 1e-5 and not 9.999999747378752e-6.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().expect("a number's text is a number")
}

/// The sizes of the model in a folder, from its `config.json`. What the models here cannot compute is refused.
pub fn read_model_config(folder: &Path) -> Result<ModelConfig> {
    let path = folder.join(CONFIG);
    if !path.exists() {
        let problem = "holds no config.json; give a model folder as Hugging Face tools or a run's `model/` have it";
        return Err(Error::checkpoint(folder, problem));
    }
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let parsed: Value = serde_json::from_str(&text)
        .map_err(|error| Error::checkpoint(&path, format!("broken JSON ({error}); copy or save it again")))?;
    let Value::Object(values) = parsed else {
        return Err(Error::checkpoint(&path, "not a model's configuration; copy or save it again"));
    };
    let settings = Settings { path, values };
    settings.refuse_given("quantization_config")?;
    let config = match settings.text("model_type", "")? {
        "gpt2" => settings.gpt2()?,
        "llama" => settings.llama()?,
        other => return Err(settings.refuse(format!("models of type {other:?} are not known, only gpt2 and llama"))),
    };
    match config.validate() {
        Ok(()) => Ok(config),
        Err(problem) => Err(Error::checkpoint(&settings.path, format!("impossible sizes: {problem}"))),
    }
}

/// The keys of a `config.json`. One that is missing or null has the value that `transformers` takes then.
struct Settings {
    path: PathBuf,
    values: Map<String, Value>,
}

impl Settings {
    fn gpt2(&self) -> Result<ModelConfig> {
        self.require_text("activation_function", "gelu_new", &["gelu_new", "gelu_pytorch_tanh"])?;
        self.require("scale_attn_weights", true, true)?;
        self.require("scale_attn_by_inverse_layer_idx", false, false)?;
        self.require("add_cross_attention", false, false)?;
        let width = self.size("n_embd", 768)?;
        let heads = self.size("n_head", 12)?;
        Ok(ModelConfig {
            family: Family::Gpt2,
            vocabulary: self.size("vocab_size", 50_257)?,
            width,
            layers: self.size("n_layer", 12)?,
            heads,
            kv_heads: heads,
            feed_forward: self.size("n_inner", width.saturating_mul(4))?,
            context: self.size("n_positions", 1024)?,
            tie_embeddings: self.flag("tie_word_embeddings", true)?,
            norm_epsilon: self.number("layer_norm_epsilon", 1e-5)?,
            rope_theta: 10_000.0,
        })
    }

    fn llama(&self) -> Result<ModelConfig> {
        self.require_text("hidden_act", "silu", &["silu", "swish"])?;
        self.require("attention_bias", false, false)?;
        self.require("mlp_bias", false, false)?;
        self.refuse_given("rope_scaling")?;
        self.refuse_given("sliding_window")?;
        let width = self.size("hidden_size", 4096)?;
        let heads = self.size("num_attention_heads", 32)?;
        let head_size = width / heads.max(1);
        let stated = self.size("head_dim", head_size)?;
        if stated != head_size {
            return Err(self.refuse(format!("head_dim {stated} is not hidden_size / num_attention_heads, {head_size}")));
        }
        Ok(ModelConfig {
            family: Family::Llama,
            vocabulary: self.size("vocab_size", 32_000)?,
            width,
            layers: self.size("num_hidden_layers", 32)?,
            heads,
            kv_heads: self.size("num_key_value_heads", heads)?,
            feed_forward: self.size("intermediate_size", 11_008)?,
            context: self.size("max_position_embeddings", 2048)?,
            tie_embeddings: self.flag("tie_word_embeddings", false)?,
            norm_epsilon: self.number("rms_norm_eps", 1e-6)?,
            rope_theta: self.rope_theta()?,
        })
    }

    /// The base of the rotary angles. It lies in `rope_parameters` since version 5 of `transformers`.
    fn rope_theta(&self) -> Result<f32> {
        let Some(Value::Object(values)) = self.given("rope_parameters") else {
            return self.number("rope_theta", 10_000.0);
        };
        let rotary = Settings { path: self.path.clone(), values: values.clone() };
        rotary.require_text("rope_type", "default", &["default"])?;
        rotary.number("rope_theta", 10_000.0)
    }

    fn given(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn size(&self, key: &str, default: usize) -> Result<usize> {
        let size = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.read(key, default, "a whole number", size)
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
        let Some(value) = self.given(key) else { return Ok(default) };
        of(value).ok_or_else(|| {
            Error::checkpoint(&self.path, format!("{key} is {value} and should be {kind}; correct it or save it again"))
        })
    }

    fn require(&self, key: &str, default: bool, required: bool) -> Result<()> {
        if self.flag(key, default)? == required {
            return Ok(());
        }
        Err(self.refuse(format!("{key} {} is not supported", !required)))
    }

    fn require_text(&self, key: &str, default: &str, supported: &[&str]) -> Result<()> {
        let value = self.text(key, default)?;
        if supported.contains(&value) {
            return Ok(());
        }
        Err(self.refuse(format!("{key} {value:?} is not supported, only {:?}", supported[0])))
    }

    fn refuse_given(&self, key: &str) -> Result<()> {
        match self.given(key) {
            Some(_) => Err(self.refuse(format!("{key} is not supported"))),
            None => Ok(()),
        }
    }

    fn refuse(&self, problem: String) -> Error {
        Error::checkpoint(&self.path, format!("{problem}; choose another model to start from"))
    }
}
