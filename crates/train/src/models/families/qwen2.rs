//! Qwen2: Llama with biases on queries, keys and values; the later layers may have a sliding window.

use super::Choice;
use super::llama::{Defaults, KEYS, LlamaLike, Variant};
use crate::Result;
use crate::export::Rule::{Only, Read};
use crate::export::{Keys, Settings};
use crate::models::{Family, ModelConfig};
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

impl LlamaLike for Qwen2 {
    const FAMILY: Family = Family::Qwen2;
    const CLASS: &'static str = "Qwen2ForCausalLM";
    const CHOICES: &'static [Choice] = {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window, FullLayers]
    };
    const KEYS: &'static [Keys] = &[KEYS, WINDOW_KEYS, &[(Read, &["head_dim"])]];
    const DEFAULTS: Defaults = DEFAULTS;

    fn variant(_config: &ModelConfig) -> Variant {
        Variant { qkv_bias: true, output_bias: false, qk_norm: false }
    }

    fn read_own(settings: &Settings, config: ModelConfig) -> Result<ModelConfig> {
        let (window, full_layers) = settings.window_of_later_layers(config.layers)?;
        let head_size = settings.size("head_dim", config.width / config.heads.max(1))?;
        Ok(ModelConfig { window, full_layers, ..config.with_head_size(head_size) })
    }

    fn write_own(config: &ModelConfig, settings: &mut Value) {
        write_window(config, settings);
    }
}

/// States the sliding window as Qwen's folders do.
pub(super) fn write_window(config: &ModelConfig, settings: &mut Value) {
    settings["use_sliding_window"] = json!(config.window.is_some());
    settings["sliding_window"] = json!(config.window);
    settings["max_window_layers"] = json!(if config.window.is_some() { config.full_layers } else { config.layers });
}
