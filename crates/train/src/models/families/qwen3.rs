//! Qwen3: Llama with norms of queries and keys, and heads of any size; the later layers may have a sliding window.

use super::llama::{self, Variant};
use super::qwen2::{DEFAULTS, WINDOW_KEYS, write_window};
use super::{Architecture, Choice, Published};
use crate::Result;
use crate::export::Rule::Read;
use crate::export::{Keys, Settings};
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::Parameters;
use gradus_engine::Tensor;
use serde_json::{Value, json};

pub(super) struct Qwen3;

impl Architecture for Qwen3 {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        llama::usual(sizes)
    }

    fn choices(&self) -> &'static [Choice] {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window, FullLayers, AttentionBias]
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
        let bias = config.attention_bias;
        let variant = Variant { qkv_bias: bias, output_bias: bias, qk_norm: true };
        llama::hidden(config, variant, parameters, tokens, context)
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        llama::token_table(config, parameters)
    }

    fn published(&self) -> Published {
        const OWN: Keys = &[(Read, &["head_dim", "attention_bias"])];
        llama::published("Qwen3ForCausalLM", &[llama::KEYS, WINDOW_KEYS, OWN])
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        let config = llama::read(settings, Family::Qwen3, DEFAULTS)?;
        let (window, full_layers) = settings.window_of_later_layers(config.layers)?;
        let attention_bias = settings.flag("attention_bias", false)?;
        let head_size = settings.size("head_dim", 128)?;
        Ok(ModelConfig { window, full_layers, attention_bias, ..config.with_head_size(head_size) })
    }

    fn write(&self, config: &ModelConfig) -> Value {
        let mut settings = llama::write(config);
        write_window(config, &mut settings);
        settings["attention_bias"] = json!(config.attention_bias);
        settings
    }
}
