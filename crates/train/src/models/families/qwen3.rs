//! Qwen3: Llama with norms of queries and keys, and heads of any size; the later layers may have a sliding window.

use super::Choice;
use super::llama::{Defaults, KEYS, LlamaLike, Variant};
use super::qwen2::{DEFAULTS, WINDOW_KEYS, write_window};
use crate::Result;
use crate::export::Rule::Read;
use crate::export::{Keys, Settings};
use crate::models::{Family, ModelConfig};
use serde_json::{Value, json};

pub(super) struct Qwen3;

impl LlamaLike for Qwen3 {
    const FAMILY: Family = Family::Qwen3;
    const CLASS: &'static str = "Qwen3ForCausalLM";
    const CHOICES: &'static [Choice] = {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window, FullLayers, AttentionBias]
    };
    const KEYS: &'static [Keys] = &[KEYS, WINDOW_KEYS, &[(Read, &["head_dim", "attention_bias"])]];
    const DEFAULTS: Defaults = DEFAULTS;

    fn variant(config: &ModelConfig) -> Variant {
        let bias = config.attention_bias;
        Variant { qkv_bias: bias, output_bias: bias, qk_norm: true }
    }

    fn read_own(settings: &Settings, config: ModelConfig) -> Result<ModelConfig> {
        let (window, full_layers) = settings.window_of_later_layers(config.layers)?;
        let attention_bias = settings.flag("attention_bias", false)?;
        let head_size = settings.size("head_dim", 128)?;
        Ok(ModelConfig { window, full_layers, attention_bias, ..config.with_head_size(head_size) })
    }

    fn write_own(config: &ModelConfig, settings: &mut Value) {
        write_window(config, settings);
        settings["attention_bias"] = json!(config.attention_bias);
    }
}
