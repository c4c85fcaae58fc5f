//! Llama: rotary positions, RMS norms before each part of a block, grouped heads, SwiGLU. Families of the same kind
//! ([`LlamaLike`]) say what they do otherwise.

use super::{Architecture, Choice, Published};
use crate::export::Rule::{Any, Only, Read};
use crate::export::{Keys, Settings, decimal};
use crate::models::config::{above_zero, divides};
use crate::models::products::{Next, heads, joined, linear, rounded};
use crate::models::rope::frequencies;
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::{Initializer, Parameters};
use crate::{Error, Result};
use gradus_engine::{DType, Tensor};
use serde_json::{Value, json};
use std::ops::Range;

/// Of the published initialization.
const NORMAL: Initializer = Initializer::Normal { deviation: 0.02 };

pub(super) struct Llama;

impl LlamaLike for Llama {
    const FAMILY: Family = Family::Llama;
    const CLASS: &'static str = "LlamaForCausalLM";
    const CHOICES: &'static [Choice] = {
        use Choice::*;
        &[KvHeads, RopeTheta, HeadSize, RopeScaling, AttentionBias, MlpBias]
    };
    const KEYS: &'static [Keys] = &[
        KEYS,
        &[
            (Read, &["head_dim", "attention_bias", "mlp_bias"]),
            (Any, &["pretraining_tp"]),
            (Only(&["false", "null"]), &["use_sliding_window"]),
            (Only(&["null"]), &["sliding_window"]),
        ],
    ];
    const DEFAULTS: Defaults = Defaults { vocabulary: 32_000, feed_forward: 11_008, kv_heads: None, context: 2048 };

    fn variant(config: &ModelConfig) -> Variant {
        let bias = config.attention_bias;
        Variant { qkv_bias: bias, output_bias: bias, qk_norm: false }
    }

    fn validate_own(config: &ModelConfig) -> Result<()> {
        // Others take no folder of a Llama where this does not hold, even if the heads have a size of their own.
        divides(["heads", "width"], config.heads, config.width)
    }

    fn read_own(settings: &Settings, config: ModelConfig) -> Result<ModelConfig> {
        let head_size = settings.size_or_null("head_dim", config.width / config.heads.max(1))?;
        Ok(ModelConfig {
            attention_bias: settings.flag("attention_bias", false)?,
            mlp_bias: settings.flag("mlp_bias", false)?,
            ..config.with_head_size(head_size)
        })
    }

    fn write_own(config: &ModelConfig, settings: &mut Value) {
        settings["attention_bias"] = json!(config.attention_bias);
        settings["mlp_bias"] = json!(config.mlp_bias);
    }
}

/// A family of this kind: what it has besides, and does otherwise.
pub(super) trait LlamaLike: Sync {
    const FAMILY: Family;
    /// The name of its class.
    const CLASS: &'static str;
    /// Those of the choices that it has.
    const CHOICES: &'static [Choice];
    /// The keys of its `config.json`.
    const KEYS: &'static [Keys];
    const DEFAULTS: Defaults;

    /// What its blocks do otherwise.
    fn variant(config: &ModelConfig) -> Variant;

    /// Says what is impossible besides, and what to do.
    fn validate_own(_config: &ModelConfig) -> Result<()> {
        Ok(())
    }

    /// Adds what its `config.json` states besides.
    fn read_own(settings: &Settings, config: ModelConfig) -> Result<ModelConfig>;

    /// States it.
    fn write_own(config: &ModelConfig, settings: &mut Value);
}

impl<L: LlamaLike> Architecture for L {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        ModelConfig {
            // Three matrices of this size hold as many numbers as two of four times the width.
            feed_forward: sizes.width.saturating_mul(8).div_ceil(3).next_multiple_of(8),
            tie_embeddings: false,
            ..sizes
        }
    }

    fn choices(&self) -> &'static [Choice] {
        L::CHOICES
    }

    fn validate(&self, config: &ModelConfig) -> Result<()> {
        L::validate_own(config)?;
        above_zero("rope theta", config.rope_theta)?;
        even_heads(config)
    }

    #[track_caller]
    fn embedded(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        _: &mut dyn KeyValueContext,
    ) -> Tensor {
        let embedded = token_table(config, parameters).embedding(tokens).cast(DType::F32); // [b, t, c]
        parameters.dropout(&embedded, config.dropout) // [b, t, c]
    }

    #[track_caller]
    fn through(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        x: &Tensor,
        blocks: Range<usize>,
        context: &mut dyn KeyValueContext,
    ) -> Tensor {
        let (angles, variant) = (Angles::new(config, x, context), L::variant(config));
        blocks.fold(x.clone(), |x, layer| {
            let parameters = parameters.within(format_args!("model.layers.{layer}"));
            let block = Block { config, variant, parameters, angles: &angles, window: config.window_of(layer) };
            x.trace().in_layer(layer, || block.hidden(&x, context)) // [b, t, c]
        })
    }

    #[track_caller]
    fn normed(&self, config: &ModelConfig, parameters: &Parameters, x: &Tensor) -> Tensor {
        rms_norm(config, parameters, x, "model.norm") // [b, t, c]
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        token_table(config, parameters)
    }

    fn published(&self) -> Published {
        let buffers = &[".rotary_emb.inv_freq"];
        Published { class: L::CLASS, prefix: "model", buffers, keys: L::KEYS, dropouts: &["attention_dropout"] }
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        L::read_own(settings, read(settings, L::FAMILY, L::DEFAULTS)?)
    }

    fn write(&self, config: &ModelConfig) -> Value {
        let mut settings = write(config);
        L::write_own(config, &mut settings);
        settings
    }
}

/// What the blocks of a family do otherwise.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether what attention gives is projected with a bias.
    pub output_bias: bool,
    /// Whether queries and keys are normed, head by head.
    pub qk_norm: bool,
}

/// The keys of a `config.json` that every family of this kind has.
pub(super) const KEYS: Keys = &[
    (Read, &["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]),
    (Read, &["intermediate_size", "max_position_embeddings", "rms_norm_eps"]),
    (Read, &["rope_theta", "rope_parameters", "rope_scaling"]),
    (Any, &["attention_dropout"]),
    (Only(&["\"silu\"", "\"swish\""]), &["hidden_act"]),
    (Only(&["false", "null"]), &["rope_interleaved"]),
    (Only(&["1.0", "1", "null"]), &["partial_rotary_factor"]),
];

/// What is taken for sizes that a `config.json` does not state.
pub(super) struct Defaults {
    pub vocabulary: usize,
    pub feed_forward: usize,
    /// As many as heads, if not given.
    pub kv_heads: Option<usize>,
    pub context: usize,
}

/// What a `config.json` states of a model of this kind, but for what not every family has.
fn read(settings: &Settings, family: Family, defaults: Defaults) -> Result<ModelConfig> {
    let vocabulary = settings.size("vocab_size", defaults.vocabulary)?;
    let width = settings.size("hidden_size", 4096)?;
    let layers = settings.size("num_hidden_layers", 32)?;
    let heads = settings.size("num_attention_heads", 32)?;
    let context = settings.size("max_position_embeddings", defaults.context)?;
    let kv_heads = settings.size_unless_null("num_key_value_heads", defaults.kv_heads.unwrap_or(heads))?;
    let (rope_theta, rope_scaling) = settings.rope(context)?;
    Ok(ModelConfig {
        kv_heads: kv_heads.unwrap_or(heads),
        feed_forward: settings.size("intermediate_size", defaults.feed_forward)?,
        tie_embeddings: settings.flag("tie_word_embeddings", false)?,
        norm_epsilon: settings.number("rms_norm_eps", 1e-6)?,
        rope_theta,
        rope_scaling,
        ..ModelConfig::new(family, vocabulary, width, layers, heads, context)
    })
}

/// What a `config.json` states of every model of this kind.
fn write(config: &ModelConfig) -> Value {
    let mut settings = json!({
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size(),
        "intermediate_size": config.feed_forward,
        "max_position_embeddings": config.context,
        "rms_norm_eps": decimal(config.norm_epsilon),
        "rope_theta": decimal(config.rope_theta),
        "hidden_act": "silu",
    });
    if let Some(scaling) = config.rope_scaling {
        settings["rope_scaling"] = json!({
            "rope_type": "llama3",
            "factor": decimal(scaling.factor),
            "low_freq_factor": decimal(scaling.low_freq_factor),
            "high_freq_factor": decimal(scaling.high_freq_factor),
            "original_max_position_embeddings": scaling.original_context,
        });
    }
    settings
}

fn even_heads(config: &ModelConfig) -> Result<()> {
    if config.head_size().is_multiple_of(2) {
        return Ok(());
    }
    Err(Error::Config(match config.head_size {
        Some(size) => format!("head-size is {size}, but rotary positions turn pairs; choose an even one"),
        None => format!(
            "width {} over {} heads makes heads of {} numbers, but rotary positions turn pairs; \
             choose a width that is an even multiple of heads, such as {}",
            config.width,
            config.heads,
            config.head_size(),
            config.heads * (config.head_size() + 1)
        ),
    }))
}

#[track_caller]
fn token_table(config: &ModelConfig, parameters: &Parameters) -> Tensor {
    parameters.get("model.embed_tokens.weight", [config.vocabulary, config.width], NORMAL)
}

/// Cosines and sines of the angles of each token's place: [t, d/2] each.
struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    #[track_caller]
    fn new(config: &ModelConfig, x: &Tensor, context: &dyn KeyValueContext) -> Angles {
        let frequencies = frequencies(config.head_size(), config.rope_theta, config.rope_scaling);
        let [cos, sin] = x.trace().rotary_tables_from(context.places(), &frequencies); // [places, d/2]
        Angles { cos: context.rows(&cos), sin: context.rows(&sin) }
    }
}

/// One block, with its own parameters.
struct Block<'a> {
    config: &'a ModelConfig,
    variant: Variant,
    parameters: Parameters,
    angles: &'a Angles,
    window: Option<usize>,
}

impl Block<'_> {
    #[track_caller]
    fn hidden(&self, x: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let Block { config, parameters, .. } = self;
        let normed = rms_norm(config, parameters, x, "input_layernorm"); // [b, t, c]
        let attended = self.attention(&normed, context); // [b, t, c]
        let x = x + parameters.dropout(&attended, config.dropout); // [b, t, c]
        let normed = rms_norm(config, parameters, &x, "post_attention_layernorm"); // [b, t, c]
        let outer = self.feed_forward(&normed); // [b, t, c]
        x + parameters.dropout(&outer, config.dropout) // [b, t, c]
    }

    #[track_caller]
    fn attention(&self, x: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let (h, g, d) = (self.config.heads, self.config.kv_heads, self.config.head_size());
        let at = self.parameters.within("self_attn");
        let q = self.turned(&at, x, ["q_proj", "q_norm"], h); // [b, h, t, d]
        let k = self.turned(&at, x, ["k_proj", "k_norm"], g); // [b, g, t, d]
        let shape = [g * d, self.config.width];
        let v = projection(&at, x, "v_proj", (shape, self.variant.qkv_bias), Next::Products); // [b, t, g * d]
        let [q, k] = [q, k].map(|turned| turned.rotary(&self.angles.cos, &self.angles.sin)); // as before
        let attended = joined(&context.attend(&q, &k, &heads(&v, g, d), self.window)); // [b, t, h * d]
        let shape = [self.config.width, h * d];
        projection(&at, &attended, "o_proj", (shape, self.variant.output_bias), Next::Residual) // [b, t, c]
    }

    /// Queries or keys [b, n, t, d], before they are turned, and normed where the family does so.
    #[track_caller]
    fn turned(&self, at: &Parameters, x: &Tensor, [name, norm]: [&str; 2], count: usize) -> Tensor {
        let size = self.config.head_size();
        let layer = ([count * size, self.config.width], self.variant.qkv_bias);
        if !self.variant.qk_norm {
            return heads(&projection(at, x, name, layer, Next::Products), count, size);
        }
        let projected = projection(at, x, name, layer, Next::Residual); // [b, t, n * d], in f32 for the norm
        let gain = at.within(norm).get("weight", [size], Initializer::Ones); // [d]
        // A sequence's heads are rows of one axis: the gain's gradient is summed by sequences, however many come at once.
        let apart = projected.reshape([x.size(0), x.size(1).saturating_mul(count), size]); // [b, t * n, d]
        let normed = rounded(at, &apart.rms_norm(&gain, self.config.norm_epsilon)); // [b, t * n, d]
        normed.reshape([x.size(0), x.size(1), count, size]).transpose(1, 2)
    }

    #[track_caller]
    fn feed_forward(&self, x: &Tensor) -> Tensor {
        let (c, f, bias) = (self.config.width, self.config.feed_forward, self.config.mlp_bias);
        let at = self.parameters.within("mlp");
        let gate = projection(&at, x, "gate_proj", ([f, c], bias), Next::Products).silu(); // [b, t, f]
        let inner = gate * projection(&at, x, "up_proj", ([f, c], bias), Next::Products); // [b, t, f]
        projection(&at, &inner, "down_proj", ([c, f], bias), Next::Residual) // [b, t, c]
    }
}

#[track_caller]
fn rms_norm(config: &ModelConfig, parameters: &Parameters, x: &Tensor, name: &str) -> Tensor {
    let gain = parameters.within(name).get("weight", [config.width], Initializer::Ones); // [c]
    x.rms_norm(&gain, config.norm_epsilon) // [b, t, c]
}

/// A linear layer, with a bias or without; its weights are [outputs, inputs].
#[track_caller]
fn projection(
    parameters: &Parameters,
    x: &Tensor,
    name: &str,
    (shape, has_bias): ([usize; 2], bool),
    next: Next,
) -> Tensor {
    let at = parameters.within(name);
    let weight = at.get("weight", shape, NORMAL);
    let bias = has_bias.then(|| at.get("bias", [shape[0]], Initializer::Zeros));
    linear(parameters, x, (&weight.transpose(0, 1), bias.as_ref()), next)
}
