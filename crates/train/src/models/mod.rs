//! Models, written once on tensors.

mod config;
mod gpt2;
mod llama;
mod presets;
mod weights;

pub(crate) use config::MOST_LAYERS;
pub use config::{Family, ModelConfig};
pub use presets::{PRESETS, Preset};
pub use weights::Weights;

use crate::config::Precision;
pub use crate::parameters::{Initializer, Parameter};
use gradus_engine::ops::ProductTypes;
use gradus_engine::{DType, Tensor};

/// The target that does not count in the loss.
pub const IGNORED_TARGET: i32 = -100;

/// A model of either family over weights in a trace.
pub struct Model<'a> {
    config: &'a ModelConfig,
    weights: &'a Weights,
    /// What matrix products and attention are computed in; all else is in f32.
    precision: DType,
    dropout: Option<Dropout>,
}

struct Dropout {
    rate: f32,
    key: Tensor,
}

/// What comes after a product, which decides the precision of its result.
#[derive(Clone, Copy)]
enum Next {
    /// Further products or attention: the precision of products.
    Products,
    /// The residual stream or the loss: f32.
    Residual,
}

/// Where activations are dropped.
enum DropoutSite {
    Embeddings,
    Attention { layer: usize },
    FeedForward { layer: usize },
}

impl DropoutSite {
    /// A number of its own for each site, so that no two have the same mask.
    fn stream(&self) -> u32 {
        match self {
            DropoutSite::Embeddings => 0,
            DropoutSite::Attention { layer } => 1 + 2 * *layer as u32,
            DropoutSite::FeedForward { layer } => 2 + 2 * *layer as u32,
        }
    }
}

/// What a pass over tokens depends on besides tokens and weights: where the tokens stand, and what they see.
pub(crate) trait Surroundings {
    /// The rows of a table [context, n] for the places of the tokens: [t, n].
    fn rows(&self, table: &Tensor) -> Tensor;

    /// What queries [b, h, t, d] find, when the tokens' own keys and values are [b, g, t, d]: [b, h, t, d].
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor;
}

/// Whole sequences, each token seeing itself and those before it.
struct WholeSequences {
    sequence: usize,
}

impl Surroundings for WholeSequences {
    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.slice(0, 0..self.sequence)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor {
        queries.attention(keys, values, true)
    }
}

impl<'a> Model<'a> {
    /// The model of these sizes over weights made from its parameters, in f32 and without dropout.
    pub fn new(config: &'a ModelConfig, weights: &'a Weights) -> Model<'a> {
        Model { config, weights, precision: DType::F32, dropout: None }
    }

    /// With matrix products and attention in this precision. Weights, norms, the residual stream and the loss
    /// stay in f32.
    pub fn with_precision(mut self, precision: Precision) -> Model<'a> {
        self.precision = match precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
        };
        self
    }

    /// With activations dropped at this rate after the embeddings, attention and feed-forward parts. `key` holds two
    /// u32 words, such as a seed and the step's number.
    pub fn with_dropout(mut self, rate: f32, key: Tensor) -> Model<'a> {
        self.dropout = Some(Dropout { rate, key });
        self
    }

    /// What the blocks make of the tokens [b, t]: [b, t, c].
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor) -> Tensor {
        self.hidden_in(tokens, &mut WholeSequences { sequence: tokens.size(-1) })
    }

    /// A logit for each token of the vocabulary: [b, t, v].
    #[track_caller]
    pub fn logits(&self, tokens: &Tensor) -> Tensor {
        self.project(&self.hidden(tokens))
    }

    /// The loss of predicting each of `targets` [b, t]; zero of those that are [`IGNORED_TARGET`]. The logits are held
    /// for the gradient if those of one sequence are fewer than the weights, so that every micro-batch computes the
    /// same; else they are computed a block at a time, twice.
    #[track_caller]
    pub fn losses(&self, tokens: &Tensor, targets: &Tensor) -> Tensor {
        let hidden = self.hidden(tokens); // [b, t, c]
        if tokens.size(-1) * self.config.vocabulary <= self.config.parameter_count() {
            return self.project(&hidden).cross_entropy_rows(targets, Some(IGNORED_TARGET));
        }
        self.rounded(&hidden).linear_cross_entropy_rows(self.head(), targets, Some(IGNORED_TARGET))
    }

    /// The mean loss of predicting `targets` [b, t]; those that are [`IGNORED_TARGET`] do not count.
    #[track_caller]
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Tensor {
        self.losses(tokens, targets).mean_loss(targets, Some(IGNORED_TARGET))
    }

    /// As [`Model::hidden`], in any surroundings.
    #[track_caller]
    pub(crate) fn hidden_in(&self, tokens: &Tensor, surroundings: &mut dyn Surroundings) -> Tensor {
        match self.config.family {
            Family::Gpt2 => self.gpt2(tokens, surroundings),
            Family::Llama => self.llama(tokens, surroundings),
        }
    }

    /// Logits [..., v] of what the blocks gave [..., c].
    #[track_caller]
    pub(crate) fn project(&self, hidden: &Tensor) -> Tensor {
        self.linear_transposed(hidden, self.head(), Next::Residual)
    }

    /// The projection to logits: [v, c].
    fn head(&self) -> &Tensor {
        let table = match self.config.family {
            Family::Gpt2 => gpt2::TOKEN_TABLE,
            Family::Llama => llama::TOKEN_TABLE,
        };
        self.weight(if self.config.tie_embeddings { table } else { "lm_head.weight" })
    }

    fn weight(&self, name: &str) -> &Tensor {
        self.weights.get(name)
    }

    /// In the precision of products.
    #[track_caller]
    fn rounded(&self, x: &Tensor) -> Tensor {
        x.cast(self.precision)
    }

    /// Products in the model's precision, for what comes next.
    fn types(&self, next: Next) -> ProductTypes {
        let stored = match next {
            Next::Products => self.precision,
            Next::Residual => DType::F32,
        };
        ProductTypes { computed: self.precision, stored }
    }

    /// `x @ weight + bias` with a weight of [inputs, outputs].
    #[track_caller]
    fn linear(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, next: Next) -> Tensor {
        self.rounded(x).linear_as(weight, Some(bias), self.types(next))
    }

    /// `x @ weight^T` with a weight of [outputs, inputs].
    #[track_caller]
    fn linear_transposed(&self, x: &Tensor, weight: &Tensor, next: Next) -> Tensor {
        self.rounded(x).matmul_as(&weight.transpose(0, 1), self.types(next))
    }

    /// One of the parts of a projection as heads: [b, t, n * d] to [b, n, t, d].
    #[track_caller]
    fn heads(&self, x: &Tensor, count: usize) -> Tensor {
        x.reshape([x.size(0), x.size(1), count, self.config.head_size()]).transpose(1, 2)
    }

    /// Heads side by side again: [b, h, t, d] to [b, t, c].
    #[track_caller]
    fn joined(&self, heads: &Tensor) -> Tensor {
        heads.transpose(1, 2).reshape([heads.size(0), heads.size(2), self.config.width])
    }

    /// Dropped at random, if the model is trained so.
    #[track_caller]
    fn dropped(&self, x: &Tensor, site: DropoutSite) -> Tensor {
        match &self.dropout {
            Some(dropout) => x.dropout(dropout.rate, &dropout.key, site.stream()),
            None => x.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
