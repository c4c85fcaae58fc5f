//! Qwen2: Llama with biases on queries, keys and values; the later layers may have a sliding window.

use super::llama::{self, Defaults, Variant};
use super::{Architecture, Choice, Published};
use crate::Result;
use crate::export::Rule::{Only, Read};
use crate::export::{Keys, Settings};
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::Parameters;
use gradus_engine::Tensor;
use serde_json::{Value, json};

pub(super) struct Qwen2;

/// How Qwen's folders state the sliding window.
pub(super) const WINDOW_KEYS: Keys = &[
    (Read, &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"]),
    (Only(&["false", "null"]), &["use_mrope"]),
];

/// What is taken for sizes that Qwen's folders do not state.
pub(super) const DEFAULTS: Defaults =
    Defaults { vocabulary: 151_936, feed_forward: 22_016, kv_heads: Some(32), context: 32_768 };

impl Architecture for Qwen2 {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        llama::usual(sizes)
    }

    fn choices(&self) -> &'static [Choice] {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window, FullLayers]
    }

    fn validate(&self, config: &ModelConfig) -> Result<()> {
        llama::validate(config)
    }

    #[track_caller]
    fn hidden(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        context: &mut dyn KeyValueContext,
    ) -> Tensor {
        let variant = Variant { qkv_bias: true, output_bias: false, qk_norm: false };
        llama::hidden(config, variant, parameters, tokens, context)
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        llama::token_table(config, parameters)
    }

    fn published(&self) -> Published {
        const OWN: Keys = &[(Read, &["head_dim"])];
        llama::published("Qwen2ForCausalLM", &[llama::KEYS, WINDOW_KEYS, OWN])
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        let config = llama::read(settings, Family::Qwen2, DEFAULTS)?;
        let (window, full_layers) = settings.window_of_later_layers(config.layers)?;
        let head_size = settings.size("head_dim", config.width / config.heads.max(1))?;
        Ok(ModelConfig { window, full_layers, ..config.with_head_size(head_size) })
    }

    fn write(&self, config: &ModelConfig) -> Value {
        let mut settings = llama::write(config);
        write_window(config, &mut settings);
        settings
    }
}

/// States the sliding window as Qwen's folders do.
pub(super) fn write_window(config: &ModelConfig, settings: &mut Value) {
    settings["use_sliding_window"] = json!(config.window.is_some());
    settings["sliding_window"] = json!(config.window);
    settings["max_window_layers"] = json!(if config.window.is_some() { config.full_layers } else { config.layers });
}
