//! The sizes of a model: what they mean, what they give, and which are impossible.

use super::causal::check_work;
use super::products::{Next, linear, rounded};
use super::{Blocks, CausalModel, Family, IGNORED_TARGET, KeyValueContext, RopeScaling};
use crate::config::Precision;
use crate::parameters::{Initializer, Parameter, Parameters};
use crate::{Error, Result};
use gradus_engine::ops::LinearCrossEntropyOptions;
use gradus_engine::{DType, Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModelConfig {
    /// Which family.
    pub family: Family,
    /// Number of tokens (v); 0 until the tokenizer is known.
    pub vocabulary: usize,
    /// Numbers that stand for a token inside the model (c).
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads of a block (h); must divide the width, unless the head's size is stated.
    pub heads: usize,
    /// Heads of keys and values (g); must divide the heads. As many as heads in GPT-2.
    pub kv_heads: usize,
    /// Width of the feed-forward part (f).
    pub feed_forward: usize,
    /// Longest sequence.
    pub context: usize,
    /// Whether the table of tokens is also the projection to logits.
    pub tie_embeddings: bool,
    /// Added to variances.
    pub norm_epsilon: f32,
    /// Base of the rotary angles; of no use in GPT-2.
    pub rope_theta: f32,
    /// Numbers of a head (d), if not the width divided by the heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_size: Option<usize>,
    /// How rotary angles are scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Tokens that a token sees at most, its own and those before it, where attention has a sliding window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Blocks, from the first on, that have no window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub full_layers: usize,
    /// Whether the projections of attention have biases, in families that have the choice.
    #[serde(default, skip_serializing_if = "is_false")]
    pub attention_bias: bool,
    /// Whether those of the feed-forward part have biases, in families that have the choice.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// Share of activations dropped in training, which is no part of what a model is: it is not saved with it.
    #[serde(skip)]
    pub dropout: f32,
}

/// Sizes up to this keep every product of two far from overflow, and positions exact in f32.
const LARGEST_SIZE: usize = 1 << 24;
/// Far more blocks than any model has.
pub(crate) const MOST_LAYERS: usize = 4096;
/// The usual base of rotary angles.
pub(super) const ROPE_THETA: f32 = 10_000.0;

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_false(choice: &bool) -> bool {
    !choice
}

impl ModelConfig {
    /// A model of these sizes with its family's usual choices.
    pub fn new(
        family: Family,
        vocabulary: usize,
        width: usize,
        layers: usize,
        heads: usize,
        context: usize,
    ) -> ModelConfig {
        family.architecture().usual(ModelConfig {
            family,
            vocabulary,
            width,
            layers,
            heads,
            kv_heads: heads,
            feed_forward: width.saturating_mul(4),
            context,
            tie_embeddings: true,
            norm_epsilon: 1e-5,
            rope_theta: ROPE_THETA,
            head_size: None,
            rope_scaling: None,
            window: None,
            full_layers: 0,
            attention_bias: false,
            mlp_bias: false,
            dropout: 0.0,
        })
    }

    /// A GPT-2 of these sizes, with tied embeddings.
    pub fn gpt2(vocabulary: usize, width: usize, layers: usize, heads: usize, context: usize) -> ModelConfig {
        ModelConfig::new(Family::Gpt2, vocabulary, width, layers, heads, context)
    }

    /// A Llama of these sizes, with a projection to logits of its own and as many heads of keys and values as heads.
    pub fn llama(vocabulary: usize, width: usize, layers: usize, heads: usize, context: usize) -> ModelConfig {
        ModelConfig::new(Family::Llama, vocabulary, width, layers, heads, context)
    }

    /// The size of a head (d). The sizes must be possible: see [`ModelConfig::validate`].
    pub fn head_size(&self) -> usize {
        self.head_size.unwrap_or(self.width / self.heads)
    }

    /// The model with this size of heads, which is not stated where it follows from the width.
    pub fn with_head_size(self, size: usize) -> ModelConfig {
        let follows = self.heads > 0 && self.width.is_multiple_of(self.heads) && self.width / self.heads == size;
        ModelConfig { head_size: (!follows).then_some(size), ..self }
    }

    /// The sliding window of a block, if it has one.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| layer >= self.full_layers)
    }

    /// Says which size is impossible, and what to do.
    pub fn validate(&self) -> Result<()> {
        within("vocab-size", self.vocabulary, LARGEST_SIZE)?;
        self.validate_without_vocabulary()
    }

    /// As [`ModelConfig::validate`], for a model whose tokenizer is not known yet.
    pub fn validate_without_vocabulary(&self) -> Result<()> {
        within("width", self.width, LARGEST_SIZE)?;
        within("layers", self.layers, MOST_LAYERS)?;
        within("heads", self.heads, LARGEST_SIZE)?;
        within("kv-heads", self.kv_heads, LARGEST_SIZE)?;
        within("feed-forward", self.feed_forward, LARGEST_SIZE)?;
        within("sequence", self.context, LARGEST_SIZE)?;
        match self.head_size {
            Some(size) => within("head-size", size, LARGEST_SIZE)?,
            None => divides(["heads", "width"], self.heads, self.width)?,
        }
        divides(["kv-heads", "heads"], self.kv_heads, self.heads)?;
        above_zero("norm epsilon", self.norm_epsilon)?;
        self.validate_window()?;
        self.rope_scaling.map_or(Ok(()), |scaling| scaling.validate())?;
        self.family.validate_choices(self)?;
        self.family.architecture().validate(self)
    }

    fn validate_window(&self) -> Result<()> {
        match self.window {
            Some(window) => within("window", window, LARGEST_SIZE)?,
            None if self.full_layers > 0 => {
                return Err(Error::Config("full-layers needs a window; state that too, or leave it out".to_string()));
            }
            None => {}
        }
        if self.full_layers < self.layers {
            return Ok(());
        }
        Err(Error::Config(format!(
            "full-layers is {} of {} layers, which leaves none with a window; choose fewer, or leave the window out",
            self.full_layers, self.layers
        )))
    }

    /// Refuses to compute so many sequences of so many tokens where not even the cost of it can be reckoned.
    pub fn validate_work(&self, sequences: usize, sequence: usize) -> Result<()> {
        let joint = self.heads.saturating_mul(self.head_size());
        let attention = 4.0 * self.layers as f64 * joint as f64 * sequence as f64;
        let widest = [3 * self.width, 3 * joint, self.feed_forward, self.vocabulary].into_iter().max().unwrap_or(0);
        check_work(self.parameter_count(), [sequences, sequence], attention, widest)
    }

    /// The smallest model of the same kind of computation.
    pub(crate) fn small(&self) -> ModelConfig {
        ModelConfig {
            tie_embeddings: self.tie_embeddings,
            window: self.window.map(|_| 4),
            attention_bias: self.attention_bias,
            mlp_bias: self.mlp_bias,
            ..ModelConfig::smallest_of(self.family)
        }
    }

    /// The smallest model of a family.
    pub(crate) fn smallest_of(family: Family) -> ModelConfig {
        const CONTEXT: usize = 16;
        ModelConfig::new(family, 2 * CONTEXT, 32, 1, 2, CONTEXT)
    }

    /// The projection to logits: [v, c].
    #[track_caller]
    fn head(&self, parameters: &Parameters) -> Tensor {
        match self.tie_embeddings {
            true => self.family.architecture().token_table(self, parameters),
            false => parameters.get("lm_head.weight", [self.vocabulary, self.width], HEAD),
        }
    }
}

/// What a projection to logits starts from, in every family.
const HEAD: Initializer = Initializer::Normal { deviation: 0.02 };

impl CausalModel for ModelConfig {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn context(&self) -> usize {
        self.context
    }

    fn check(&self, sequences: usize, sequence: usize) -> Result<()> {
        self.validate()?;
        self.validate_work(sequences, sequence)
    }

    /// Names and shapes alone: after an error operations leave nothing in a trace, however many blocks there are.
    fn parameters(&self) -> Vec<Parameter> {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let no_tokens = trace.input("tokens", DType::I32, [1, 1]).reshape([0]);
        self.forward(&parameters, &no_tokens);
        parameters.list()
    }

    fn smallest(&self) -> Box<dyn CausalModel> {
        Box::new(self.small())
    }

    #[track_caller]
    fn hidden(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let embedded = self.embedded(parameters, tokens, context); // [b, t, c]
        let x = self.through(parameters, &embedded, 0..self.layers, context); // [b, t, c]
        self.normed(parameters, &x)
    }

    fn blocks(&self) -> Option<&dyn Blocks> {
        Some(self)
    }

    #[track_caller]
    fn logits(&self, parameters: &Parameters, hidden: &Tensor) -> Tensor {
        let head = self.head(parameters).transpose(0, 1); // [c, v]
        linear(parameters, hidden, (&head, None), Next::Residual)
    }

    /// The logits are held for the gradient if those of one sequence are fewer than the weights, so that every
    /// micro-batch computes the same, and the machine does not do better otherwise; else they are computed a block at a time.
    #[track_caller]
    fn losses(&self, parameters: &Parameters, hidden: &Tensor, targets: &Tensor) -> Tensor {
        let head = self.head(parameters); // [v, c]
        let traced: usize = parameters.list().iter().map(|weight| weight.shape.elements()).sum();
        // All of the model's, also where only its last blocks are traced.
        let weights = traced.max(self.parameter_count());
        if parameters.holds_logits() && targets.size(-1).saturating_mul(self.vocabulary) <= weights {
            return self.logits(parameters, hidden).cross_entropy_rows(targets, Some(IGNORED_TARGET));
        }
        let allow_tf32 = parameters.precision() == Precision::Tf32;
        let options = LinearCrossEntropyOptions { ignored: Some(IGNORED_TARGET), allow_tf32 };
        rounded(parameters, hidden).linear_cross_entropy_rows_with(&head, targets, options)
    }
}

impl Blocks for ModelConfig {
    fn count(&self) -> usize {
        self.layers
    }

    fn width(&self) -> usize {
        self.width
    }

    #[track_caller]
    fn embedded(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        self.family.architecture().embedded(self, parameters, tokens, context)
    }

    #[track_caller]
    fn through(
        &self,
        parameters: &Parameters,
        x: &Tensor,
        blocks: Range<usize>,
        context: &mut dyn KeyValueContext,
    ) -> Tensor {
        self.family.architecture().through(self, parameters, x, blocks, context)
    }

    #[track_caller]
    fn normed(&self, parameters: &Parameters, x: &Tensor) -> Tensor {
        self.family.architecture().normed(self, parameters, x)
    }
}

fn within(name: &str, size: usize, largest: usize) -> Result<()> {
    if (1..=largest).contains(&size) {
        return Ok(());
    }
    Err(Error::Config(format!("{name} is {size}, which no model can have; choose from 1 to {largest}")))
}

pub(super) fn divides([name, of_name]: [&str; 2], size: usize, of: usize) -> Result<()> {
    if of.is_multiple_of(size) {
        return Ok(());
    }
    let below = (1..=size.min(of)).rev().find(|&smaller| of.is_multiple_of(smaller)).unwrap_or(1);
    Err(Error::Config(format!(
        "{of_name} {of} is not divisible by {name} {size}; choose a divisor as {name}, such as {below}, or another {of_name}"
    )))
}

pub(super) fn above_zero(name: &str, number: f32) -> Result<()> {
    if number > 0.0 && number.is_finite() {
        return Ok(());
    }
    Err(Error::Config(format!("the {name} is {number}; it must be a number above zero")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(config: ModelConfig) -> String {
        let text = config.validate().expect_err("an impossible size").to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text
    }

    #[test]
    fn possible_sizes_are_accepted() {
        ModelConfig::gpt2(65, 36, 2, 3, 17).validate().unwrap();
        ModelConfig { kv_heads: 1, ..ModelConfig::llama(53, 40, 2, 5, 17) }.validate().unwrap();
        let undecided = ModelConfig::gpt2(0, 36, 2, 3, 17);
        undecided.validate_without_vocabulary().unwrap();
        assert!(problem(undecided).starts_with("vocab-size is 0"));
    }

    #[test]
    fn each_impossible_size_is_named() {
        let gpt2 = || ModelConfig::gpt2(65, 36, 2, 3, 17);
        let llama = || ModelConfig::llama(65, 36, 2, 6, 17);
        let mistral = || ModelConfig::new(Family::Mistral, 65, 36, 2, 6, 17);
        for (config, name) in [
            (ModelConfig { width: 0, ..gpt2() }, "width is 0"),
            (ModelConfig { layers: 0, ..gpt2() }, "layers is 0"),
            (ModelConfig { layers: usize::MAX, ..gpt2() }, "layers is 18446744073709551615"),
            (ModelConfig { heads: 0, ..gpt2() }, "heads is 0"),
            (ModelConfig { kv_heads: 0, ..llama() }, "kv-heads is 0"),
            (ModelConfig { feed_forward: 0, ..llama() }, "feed-forward is 0"),
            (ModelConfig { context: 0, ..llama() }, "sequence is 0"),
            (ModelConfig { context: usize::MAX, ..llama() }, "sequence is 18446744073709551615"),
            (
                ModelConfig { heads: 5, ..gpt2() },
                "width 36 is not divisible by heads 5; choose a divisor as heads, such as 4",
            ),
            (ModelConfig { kv_heads: 4, ..llama() }, "heads 6 is not divisible by kv-heads 4"),
            (ModelConfig { kv_heads: 1, ..gpt2() }, "kv-heads cannot be chosen: gpt2 has as many heads of keys"),
            (ModelConfig { window: Some(3), ..gpt2() }, "window cannot be chosen: gpt2 has no sliding window"),
            (ModelConfig { window: Some(3), ..llama() }, "window cannot be chosen: llama has no sliding window"),
            (ModelConfig { window: Some(0), ..mistral() }, "window is 0"),
            (ModelConfig { full_layers: 1, ..mistral() }, "full-layers needs a window"),
            (ModelConfig { window: Some(3), full_layers: 1, ..mistral() }, "full-layers cannot be chosen: mistral"),
            (ModelConfig { attention_bias: true, ..mistral() }, "attention-bias cannot be chosen: mistral"),
            (
                ModelConfig { family: Family::Qwen3, window: Some(3), full_layers: 2, ..mistral() },
                "full-layers is 2 of 2 layers",
            ),
            (ModelConfig { head_size: Some(0), ..llama() }, "head-size is 0"),
            (ModelConfig { head_size: Some(7), ..llama() }, "head-size is 7, but rotary positions turn pairs"),
            (
                ModelConfig { head_size: Some(4), heads: 5, kv_heads: 1, ..llama() },
                "width 36 is not divisible by heads 5",
            ),
            (ModelConfig { heads: 4, kv_heads: 4, ..llama() }, "width 36 over 4 heads makes heads of 9 numbers"),
            (ModelConfig { norm_epsilon: f32::NAN, ..gpt2() }, "the norm epsilon is NaN"),
            (ModelConfig { rope_theta: 0.0, ..llama() }, "the rope theta is 0"),
        ] {
            let text = problem(config);
            assert!(text.starts_with(name), "{text}");
        }
    }
}
