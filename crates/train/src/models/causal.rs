//! What a causal language model is: all that training, evaluation and generation know of one.

use super::{Family, ModelConfig};
use crate::parameters::{Parameter, Parameters};
use crate::{Error, Result};
use gradus_engine::ops::AttentionOptions;
use gradus_engine::{DType, Tensor, Trace};
use std::ops::Range;

/// The target that does not count in the loss.
pub const IGNORED_TARGET: i32 = -100;

/// A model that predicts each token from those before it. Training, evaluation and generation take any, one's own too.
pub trait CausalModel {
    /// Number of tokens (v).
    fn vocabulary(&self) -> usize;

    /// Longest sequence.
    fn context(&self) -> usize;

    /// What the blocks make of the tokens [b, t]: [b, t, c]. Where the tokens stand and what they see of those before
    /// them is asked of `context`: so the same function is traced for whole sequences and for one token more.
    fn hidden(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor;

    /// The blocks that [`CausalModel::hidden`] is made of, by which ranks share out a model; `None`: it cannot be cut.
    fn blocks(&self) -> Option<&dyn Blocks> {
        None
    }

    /// A logit for each token of the vocabulary, [..., v], from what [`CausalModel::hidden`] gave, [..., c].
    fn logits(&self, parameters: &Parameters, hidden: &Tensor) -> Tensor;

    /// The loss of predicting each of `targets` [b, t] from what [`CausalModel::hidden`] gave, [b, t, c]; zero of those
    /// that are [`IGNORED_TARGET`].
    #[track_caller]
    fn losses(&self, parameters: &Parameters, hidden: &Tensor, targets: &Tensor) -> Tensor {
        self.logits(parameters, hidden).cross_entropy_rows(targets, Some(IGNORED_TARGET))
    }

    /// Whether tokens see others only through [`KeyValueContext::attend`], so that a text goes on from the keys and
    /// values that are kept of it. Of a model that mixes tokens in another way too, as a convolution or a recurrence over
    /// places does, say no: then each new token is computed from the whole text.
    fn attends_only(&self) -> bool {
        true
    }

    /// Refuses sizes that no model can have, and so many sequences of so many tokens that not even the cost of computing
    /// them can be reckoned.
    fn check(&self, sequences: usize, sequence: usize) -> Result<()> {
        check_work(self.parameter_count(), [sequences, sequence], 0.0, self.vocabulary())
    }

    /// A model of the same kind that is as small as it can be: doing the same with it tells how much memory a process
    /// takes besides the numbers of a model.
    fn smallest(&self) -> Box<dyn CausalModel> {
        Box::new(ModelConfig::smallest_of(Family::Gpt2))
    }

    /// Every weight, in the order of first use.
    fn parameters(&self) -> Vec<Parameter> {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        self.forward(&parameters, &trace.input("tokens", DType::I32, [1, 1]));
        parameters.list()
    }

    /// Logits [b, t, v] of whole sequences [b, t].
    #[track_caller]
    fn forward(&self, parameters: &Parameters, tokens: &Tensor) -> Tensor {
        let hidden = self.hidden(parameters, tokens, &mut WholeSequences::of(tokens)); // [b, t, c]
        self.logits(parameters, &hidden)
    }

    /// The loss of predicting each of `targets` [b, t] in whole sequences of tokens [b, t].
    #[track_caller]
    fn token_losses(&self, parameters: &Parameters, tokens: &Tensor, targets: &Tensor) -> Tensor {
        let hidden = self.hidden(parameters, tokens, &mut WholeSequences::of(tokens)); // [b, t, c]
        self.losses(parameters, &hidden, targets)
    }

    /// The mean loss of predicting `targets` [b, t]; those that are [`IGNORED_TARGET`] do not count.
    #[track_caller]
    fn loss(&self, parameters: &Parameters, tokens: &Tensor, targets: &Tensor) -> Tensor {
        self.token_losses(parameters, tokens, targets).mean_loss(targets, Some(IGNORED_TARGET))
    }

    /// How many numbers all weights hold together.
    fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|parameter| parameter.shape.elements()).sum()
    }

    /// The weights as states of a trace, all before anything that uses them.
    #[track_caller]
    fn declare(&self, trace: &Trace) -> Parameters {
        let parameters = Parameters::new(trace);
        parameters.declare(&self.parameters());
        parameters
    }
}

/// A model as blocks one after another, on numbers in f32 that are as many before each as after it.
pub trait Blocks {
    /// How many there are.
    fn count(&self) -> usize;

    /// Numbers of a token between them (c).
    fn width(&self) -> usize;

    /// What the first block sees of the tokens [b, t]: [b, t, c].
    fn embedded(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor;

    /// What some of the blocks make of `x`, [b, t, c]: [b, t, c].
    fn through(
        &self,
        parameters: &Parameters,
        x: &Tensor,
        blocks: Range<usize>,
        context: &mut dyn KeyValueContext,
    ) -> Tensor;

    /// What the last block gave, [b, t, c], as [`CausalModel::losses`] takes it.
    fn normed(&self, parameters: &Parameters, x: &Tensor) -> Tensor;
}

/// Weights whose bytes, with gradients and moments, can be added up.
const MOST_WEIGHTS: usize = 10_000_000_000_000;
/// Multiplications of a pass that can be counted.
const MOST_WORK: f64 = 1e18;
/// Elements of one tensor whose bytes a process can address.
const LARGEST_TENSOR: f64 = (1u64 << 44) as f64;

/// Refuses work that cannot be reckoned: so many weights on so many sequences of so many tokens, each of which takes so
/// many multiplications of attention besides, and has so many numbers at the widest place.
pub(super) fn check_work(
    weights: usize,
    [sequences, sequence]: [usize; 2],
    attention: f64,
    widest: usize,
) -> Result<()> {
    let tokens = sequences as f64 * sequence as f64;
    let too_much = tokens * (weights as f64 + attention) > MOST_WORK || tokens * widest as f64 > LARGEST_TENSOR;
    if weights <= MOST_WEIGHTS && !too_much {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{weights} weights on {sequences} sequences of {sequence} tokens are beyond any machine; choose a smaller model, batch or sequence"
    )))
}

/// Where the tokens of a pass stand, and the keys and values that they see.
pub trait KeyValueContext {
    /// How many places there may be: rows of a table that is computed, to take [`KeyValueContext::rows`] of.
    fn places(&self) -> usize;

    /// The rows of a table [places or more, n] for the places of the tokens: [t, n].
    fn rows(&self, table: &Tensor) -> Tensor;

    /// What queries [b, h, t, d] find among the tokens' own keys and values [b, g, t, d] and those of the tokens before
    /// them: [b, h, t, d]. Each token sees itself and those before it; with a window, so many at most. Asked once for
    /// each layer, in the same order in every pass.
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor;
}

/// Whole sequences, from their first tokens on.
pub struct WholeSequences {
    sequence: usize,
}

impl WholeSequences {
    /// For tokens [b, t].
    pub fn of(tokens: &Tensor) -> WholeSequences {
        WholeSequences { sequence: tokens.size(-1) }
    }
}

impl KeyValueContext for WholeSequences {
    fn places(&self) -> usize {
        self.sequence
    }

    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.slice(0, 0..self.sequence)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor {
        queries.attention_with(keys, values, AttentionOptions { causal: true, window, scale: None })
    }
}
