//! Mistral: Llama without biases, with a sliding window in every layer.

use super::llama::{self, Defaults, Variant};
use super::{Architecture, Choice, Published};
use crate::Result;
use crate::export::Rule::Read;
use crate::export::{Keys, Settings};
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::Parameters;
use gradus_engine::Tensor;
use serde_json::{Value, json};

pub(super) struct Mistral;

impl Architecture for Mistral {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        llama::usual(sizes)
    }

    fn choices(&self) -> &'static [Choice] {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, Window]
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
        let variant = Variant { qkv_bias: false, output_bias: false, qk_norm: false };
        llama::hidden(config, variant, parameters, tokens, context)
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        llama::token_table(config, parameters)
    }

    fn published(&self) -> Published {
        const OWN: Keys = &[(Read, &["head_dim", "sliding_window"])];
        llama::published("MistralForCausalLM", &[llama::KEYS, OWN])
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        let defaults = Defaults { vocabulary: 32_000, feed_forward: 14_336, kv_heads: Some(8), context: 131_072 };
        let config = llama::read(settings, Family::Mistral, defaults)?;
        let window = settings.size_unless_null("sliding_window", 4096)?;
        let head_size = settings.size_or_null("head_dim", config.width / config.heads.max(1))?;
        Ok(ModelConfig { window, ..config.with_head_size(head_size) })
    }

    fn write(&self, config: &ModelConfig) -> Value {
        let mut settings = llama::write(config);
        settings["sliding_window"] = json!(config.window);
        settings
    }
}
