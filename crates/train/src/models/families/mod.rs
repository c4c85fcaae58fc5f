//! The families of models: each one file, and a line in the list here.

mod gpt2;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use super::config::ROPE_THETA;
use super::{KeyValueContext, ModelConfig};
use crate::export::{Keys, Settings};
use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;

/// Everything that makes a family: what it computes, and how its model folders state it.
pub(crate) trait Architecture: Sync {
    /// A model of these sizes, given as the GPT-2 of them, with the family's usual choices.
    fn usual(&self, sizes: ModelConfig) -> ModelConfig;

    /// Those of the choices that not every family has which this one has.
    fn choices(&self) -> &'static [Choice];

    /// Says what is impossible in this family, and what to do. Sizes and choices are checked already.
    fn validate(&self, config: &ModelConfig) -> Result<()>;

    /// What the first block sees of the tokens [b, t]: [b, t, c].
    fn embedded(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        context: &mut dyn KeyValueContext,
    ) -> Tensor;

    /// What some of the blocks make of `x`, [b, t, c]: [b, t, c].
    fn through(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        x: &Tensor,
        blocks: Range<usize>,
        context: &mut dyn KeyValueContext,
    ) -> Tensor;

    /// What the last block gave, [b, t, c], as the projection to logits takes it: [b, t, c].
    fn normed(&self, config: &ModelConfig, parameters: &Parameters, x: &Tensor) -> Tensor;

    /// The table of tokens: [v, c].
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor;

    /// How others know it.
    fn published(&self) -> Published;

    /// The model that a `config.json` states, whose keys are checked already.
    fn read(&self, settings: &Settings) -> Result<ModelConfig>;

    /// What a `config.json` states of a model besides what every model's does.
    fn write(&self, config: &ModelConfig) -> Value;
}

/// A choice that not every family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    KvHeads,
    RopeTheta,
    HeadSize,
    RopeScaling,
    Window,
    FullLayers,
    AttentionBias,
    MlpBias,
}

impl Choice {
    const ALL: [Choice; 8] = [
        Choice::KvHeads,
        Choice::RopeTheta,
        Choice::HeadSize,
        Choice::RopeScaling,
        Choice::Window,
        Choice::FullLayers,
        Choice::AttentionBias,
        Choice::MlpBias,
    ];

    /// The option of the command line that makes it, and what holds in a family without it.
    fn described(self) -> (&'static str, &'static str) {
        match self {
            Choice::KvHeads => ("kv-heads", "has as many heads of keys and values as heads"),
            Choice::RopeTheta => ("rope-theta", "has no rotary angles"),
            Choice::HeadSize => ("head-size", "has heads as wide as its width divided by them"),
            Choice::RopeScaling => ("rope-scaling", "has no rotary angles"),
            Choice::Window => ("window", "has no sliding window"),
            Choice::FullLayers => ("full-layers", "has the same attention in all layers"),
            Choice::AttentionBias => ("attention-bias", "has no choice of biases in attention"),
            Choice::MlpBias => ("mlp-bias", "has no choice of biases in the feed-forward part"),
        }
    }

    fn is_made(self, config: &ModelConfig) -> bool {
        match self {
            Choice::KvHeads => config.kv_heads != config.heads,
            Choice::RopeTheta => config.rope_theta != ROPE_THETA,
            Choice::HeadSize => config.head_size.is_some(),
            Choice::RopeScaling => config.rope_scaling.is_some(),
            Choice::Window => config.window.is_some(),
            Choice::FullLayers => config.full_layers != 0,
            Choice::AttentionBias => config.attention_bias,
            Choice::MlpBias => config.mlp_bias,
        }
    }
}

/// How a family is known in the folders of `transformers`.
pub(crate) struct Published {
    /// The name of its class.
    pub class: &'static str,
    /// What the names of all weights but the projection to logits begin with, and lack where only the blocks were saved.
    pub prefix: &'static str,
    /// How the names of tensors end that files may hold besides the weights, as masks and tables of angles.
    pub buffers: &'static [&'static str],
    /// The keys of its `config.json` that not every model has.
    pub keys: &'static [Keys],
    /// The keys that state how much is dropped in training.
    pub dropouts: &'static [&'static str],
}

macro_rules! families {
    ($($(#[$about:meta])* $family:ident = $name:literal in $module:ident;)*) => {
        /// The families of models.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Family {
            $($(#[$about])* $family,)*
        }

        impl Family {
            /// Every family.
            pub const ALL: &'static [Family] = &[$(Family::$family),*];

            /// Its name in configurations, here and as a `model_type` elsewhere.
            pub fn name(self) -> &'static str {
                match self {
                    $(Family::$family => $name,)*
                }
            }

            pub(crate) fn architecture(self) -> &'static dyn Architecture {
                match self {
                    $(Family::$family => &$module::$family,)*
                }
            }
        }
    };
}

families! {
    /// Learned positions, layer norm, GELU.
    Gpt2 = "gpt2" in gpt2;
    /// Rotary positions, RMS norm, SwiGLU, grouped heads.
    Llama = "llama" in llama;
    /// As Llama, with a sliding window.
    Mistral = "mistral" in mistral;
    /// As Llama, with biases on queries, keys and values, and a sliding window in the later layers.
    Qwen2 = "qwen2" in qwen2;
    /// As Llama, with norms of queries and keys, and a sliding window in the later layers.
    Qwen3 = "qwen3" in qwen3;
}

impl Family {
    /// The family of this name, if there is one.
    pub fn of_name(name: &str) -> Option<Family> {
        Family::ALL.iter().copied().find(|family| family.name() == name)
    }

    /// Options of the command line that the family has no use for, each with the reason.
    pub fn idle_options(self) -> Vec<(&'static str, String)> {
        let idle = |choice: Choice| (choice.described().0, self.without(choice));
        self.missing().map(idle).collect()
    }

    /// Refuses a choice that the family does not have.
    pub(super) fn validate_choices(self, config: &ModelConfig) -> Result<()> {
        match self.missing().find(|choice| choice.is_made(config)) {
            None => Ok(()),
            Some(choice) => {
                let (option, _) = choice.described();
                Err(Error::Config(format!("{option} cannot be chosen: {}; leave it out", self.without(choice))))
            }
        }
    }

    fn missing(self) -> impl Iterator<Item = Choice> {
        Choice::ALL.into_iter().filter(move |choice| !self.architecture().choices().contains(choice))
    }

    /// What holds without a choice, and who has it.
    fn without(self, choice: Choice) -> String {
        let has = |family: &&Family| family.architecture().choices().contains(&choice);
        let others: Vec<&str> = Family::ALL.iter().filter(has).map(|family| family.name()).collect();
        format!("{} {} (unlike {})", self.name(), choice.described().1, others.join(", "))
    }
}
