//! Mistral: Llama without biases, with a sliding window in every layer.

use super::Choice;
use super::llama::{Defaults, KEYS, LlamaLike, Variant};
use crate::Result;
use crate::export::Rule::Read;
use crate::export::{Keys, Settings};
use crate::models::{Family, ModelConfig};
use serde_json::{Value, json};

pub(super) struct Mistral;

impl LlamaLike for Mistral {
    const FAMILY: Family = Family::Mistral;
    const CLASS: &'static str = "MistralForCausalLM";
    const CHOICES: &'static [Choice] = {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window]
    };
    const KEYS: &'static [Keys] = &[KEYS, &[(Read, &["head_dim", "sliding_window"])]];
    const DEFAULTS: Defaults =
        Defaults { vocabulary: 32_000, feed_forward: 14_336, kv_heads: Some(8), context: 131_072 };

    fn variant(_config: &ModelConfig) -> Variant {
        Variant { qkv_bias: false, output_bias: false, qk_norm: false }
    }

    fn read_own(settings: &Settings, config: ModelConfig) -> Result<ModelConfig> {
        let window = settings.size_unless_null("sliding_window", 4096)?;
        let head_size = settings.size_or_null("head_dim", config.width / config.heads.max(1))?;
        Ok(ModelConfig { window, ..config.with_head_size(head_size) })
    }

    fn write_own(config: &ModelConfig, settings: &mut Value) {
        settings["sliding_window"] = json!(config.window);
    }
}
