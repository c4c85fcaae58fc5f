//! The families of models: each one file, and a line in the list here.

mod gpt2;
mod llama;

use super::{KeyValueContext, ModelConfig};
use crate::Result;
use crate::export::{Keys, Settings};
use crate::parameters::Parameters;
use gradus_engine::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything that makes a family: what it computes, and how its model folders state it.
pub(crate) trait Architecture: Sync {
    /// A model of these sizes, given as the GPT-2 of them, with the family's usual choices.
    fn usual(&self, sizes: ModelConfig) -> ModelConfig;

    /// Says which choice the family does not have, and what to do. Sizes are checked already.
    fn validate(&self, config: &ModelConfig) -> Result<()>;

    /// What the blocks make of the tokens [b, t]: [b, t, c].
    fn hidden(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        context: &mut dyn KeyValueContext,
    ) -> Tensor;

    /// The table of tokens: [v, c].
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor;

    /// How others know it.
    fn published(&self) -> Published;

    /// The model that a `config.json` states, whose keys are checked already.
    fn read(&self, settings: &Settings) -> Result<ModelConfig>;

    /// What a `config.json` states of a model besides what every model's does.
    fn write(&self, config: &ModelConfig) -> Value;

    /// Options of the command line that the family has no use for, each with the reason.
    fn idle_options(&self) -> &'static [(&'static str, &'static str)];
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
    pub keys: Keys,
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
}

impl Family {
    /// The family of this name, if there is one.
    pub fn of_name(name: &str) -> Option<Family> {
        Family::ALL.iter().copied().find(|family| family.name() == name)
    }

    /// Options of the command line that the family has no use for, each with the reason.
    pub fn idle_options(self) -> &'static [(&'static str, &'static str)] {
        self.architecture().idle_options()
    }
}
