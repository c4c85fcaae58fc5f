//! Llama: rotary positions, RMS norms before each part of a block, grouped heads, SwiGLU, no biases.

use super::{Architecture, Published};
use crate::export::Rule::{Any, Only, Read};
use crate::export::{Settings, decimal};
use crate::models::config::above_zero;
use crate::models::products::{Next, heads, joined, linear};
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::{Initializer, Parameters};
use crate::{Error, Result};
use gradus_engine::Tensor;
use gradus_engine::ops::rotary_tables;
use serde_json::{Value, json};

/// Of the published initialization.
const NORMAL: Initializer = Initializer::Normal { deviation: 0.02 };

pub(super) struct Llama;

impl Architecture for Llama {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        ModelConfig {
            // Three matrices of this size hold as many numbers as two of four times the width.
            feed_forward: sizes.width.saturating_mul(8).div_ceil(3).next_multiple_of(8),
            tie_embeddings: false,
            ..sizes
        }
    }

    fn validate(&self, config: &ModelConfig) -> Result<()> {
        above_zero("rope theta", config.rope_theta)?;
        if config.head_size().is_multiple_of(2) {
            return Ok(());
        }
        Err(Error::Config(format!(
            "width {} over {} heads makes heads of {} numbers, but rotary positions turn pairs; \
             choose a width that is an even multiple of heads, such as {}",
            config.width,
            config.heads,
            config.head_size(),
            config.heads * (config.head_size() + 1)
        )))
    }

    #[track_caller]
    fn hidden(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        context: &mut dyn KeyValueContext,
    ) -> Tensor {
        let angles = Angles::new(config, tokens, context);
        let embedded = self.token_table(config, parameters).embedding(tokens); // [b, t, c]
        let mut x = parameters.dropout(&embedded, config.dropout); // [b, t, c]
        for layer in 0..config.layers {
            let at = parameters.within(format_args!("model.layers.{layer}"));
            x = tokens.trace().in_layer(layer, || block(config, &at, &x, &angles, context)); // [b, t, c]
        }
        rms_norm(config, parameters, &x, "model.norm") // [b, t, c]
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        parameters.get("model.embed_tokens.weight", [config.vocabulary, config.width], NORMAL)
    }

    fn published(&self) -> Published {
        Published {
            class: "LlamaForCausalLM",
            prefix: "model",
            buffers: &[".rotary_emb.inv_freq"],
            keys: &[
                (Read, &["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"]),
                (Read, &["intermediate_size", "max_position_embeddings", "rms_norm_eps"]),
                (Read, &["rope_theta", "rope_parameters", "rope_scaling"]),
                (Any, &["attention_dropout", "pretraining_tp"]),
                (Only(&["\"silu\"", "\"swish\""]), &["hidden_act"]),
                (Only(&["false"]), &["attention_bias", "mlp_bias"]),
                (Only(&["false", "null"]), &["rope_interleaved", "use_sliding_window"]),
                (Only(&["null"]), &["sliding_window"]),
                (Only(&["1.0", "1", "null"]), &["partial_rotary_factor"]),
            ],
            dropouts: &["attention_dropout"],
        }
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        let width = settings.size("hidden_size", 4096)?;
        let heads = settings.size("num_attention_heads", 32)?;
        let layers = settings.size("num_hidden_layers", 32)?;
        let context = settings.size("max_position_embeddings", 2048)?;
        let head_size = width / heads.max(1);
        let stated = settings.size_or_null("head_dim", head_size)?;
        if stated != head_size {
            let problem = format!("head_dim {stated} is not hidden_size / num_attention_heads, {head_size}");
            return Err(settings.refuse(problem));
        }
        let sizes =
            ModelConfig::new(Family::Llama, settings.size("vocab_size", 32_000)?, width, layers, heads, context);
        Ok(ModelConfig {
            kv_heads: settings.size_or_null("num_key_value_heads", heads)?,
            feed_forward: settings.size("intermediate_size", 11_008)?,
            tie_embeddings: settings.flag("tie_word_embeddings", false)?,
            norm_epsilon: settings.number("rms_norm_eps", 1e-6)?,
            rope_theta: settings.rope_theta()?,
            ..sizes
        })
    }

    fn write(&self, config: &ModelConfig) -> Value {
        json!({
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
            "attention_bias": false,
            "mlp_bias": false,
        })
    }

    fn idle_options(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

/// Cosines and sines of the angles of each token's place: [t, d/2] each.
struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    #[track_caller]
    fn new(config: &ModelConfig, tokens: &Tensor, context: &dyn KeyValueContext) -> Angles {
        let (cos, sin) = rotary_tables(context.places(), config.head_size(), config.rope_theta as f64); // [places, d/2]
        let [cos, sin] = [cos, sin].map(|table| context.rows(&tokens.trace().constant(table))); // [t, d/2]
        Angles { cos, sin }
    }
}

#[track_caller]
fn block(
    config: &ModelConfig,
    parameters: &Parameters,
    x: &Tensor,
    angles: &Angles,
    context: &mut dyn KeyValueContext,
) -> Tensor {
    let (c, f, h, g, d) = (config.width, config.feed_forward, config.heads, config.kv_heads, config.head_size());
    let inward = |x: &Tensor, name: &str, outputs: usize| projection(parameters, x, name, [outputs, c], Next::Products);
    let outward = |x: &Tensor, name: &str, inputs: usize| projection(parameters, x, name, [c, inputs], Next::Residual);
    let normed = rms_norm(config, parameters, x, "input_layernorm"); // [b, t, c]
    let q = heads(&inward(&normed, "self_attn.q_proj", h * d), h, d); // [b, h, t, d]
    let k = heads(&inward(&normed, "self_attn.k_proj", g * d), g, d); // [b, g, t, d]
    let v = heads(&inward(&normed, "self_attn.v_proj", g * d), g, d); // [b, g, t, d]
    let [q, k] = [q, k].map(|turned| turned.rotary(&angles.cos, &angles.sin)); // as before
    let attended = joined(&context.attend(&q, &k, &v, None)); // [b, t, h * d]
    let attended = outward(&attended, "self_attn.o_proj", h * d); // [b, t, c]
    let x = x + parameters.dropout(&attended, config.dropout); // [b, t, c]
    let normed = rms_norm(config, parameters, &x, "post_attention_layernorm"); // [b, t, c]
    let gate = inward(&normed, "mlp.gate_proj", f).silu(); // [b, t, f]
    let inner = gate * inward(&normed, "mlp.up_proj", f); // [b, t, f]
    let outer = outward(&inner, "mlp.down_proj", f); // [b, t, c]
    x + parameters.dropout(&outer, config.dropout) // [b, t, c]
}

#[track_caller]
fn rms_norm(config: &ModelConfig, parameters: &Parameters, x: &Tensor, name: &str) -> Tensor {
    let gain = parameters.within(name).get("weight", [config.width], Initializer::Ones); // [c]
    x.rms_norm(&gain, config.norm_epsilon) // [b, t, c]
}

/// A linear layer; Llama keeps its weights as [outputs, inputs].
#[track_caller]
fn projection(parameters: &Parameters, x: &Tensor, name: &str, shape: [usize; 2], next: Next) -> Tensor {
    let weight = parameters.within(name).get("weight", shape, NORMAL);
    linear(parameters, x, (&weight.transpose(0, 1), None), next)
}
