//! GPT-2: learned positions, norms before each part of a block, GELU in its tanh form.

use super::{Architecture, Choice, Published};
use crate::Result;
use crate::export::Rule::{Any, Only, Read};
use crate::export::{Settings, decimal};
use crate::models::products::{Next, heads, joined, linear};
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::{Initializer, Parameters};
use gradus_engine::{DType, Tensor};
use serde_json::{Value, json};
use std::ops::Range;

/// Of the published initialization.
const DEVIATION: f32 = 0.02;
const NORMAL: Initializer = Initializer::Normal { deviation: DEVIATION };

pub(super) struct Gpt2;

impl Architecture for Gpt2 {
    fn usual(&self, sizes: ModelConfig) -> ModelConfig {
        sizes
    }

    fn choices(&self) -> &'static [Choice] {
        &[]
    }

    fn validate(&self, _config: &ModelConfig) -> Result<()> {
        Ok(())
    }

    #[track_caller]
    fn embedded(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        tokens: &Tensor,
        context: &mut dyn KeyValueContext,
    ) -> Tensor {
        let table = self.token_table(config, parameters); // [v, c]
        let positions = parameters.get("transformer.wpe.weight", [config.context, config.width], NORMAL);
        let positions = context.rows(&positions).cast(DType::F32); // [t, c]
        let embedded = table.embedding(tokens).cast(DType::F32) + positions; // [b, t, c]
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
        blocks.fold(x.clone(), |x, layer| {
            let at = parameters.within(format_args!("transformer.h.{layer}"));
            x.trace().in_layer(layer, || block(config, &at, &x, context)) // [b, t, c]
        })
    }

    #[track_caller]
    fn normed(&self, config: &ModelConfig, parameters: &Parameters, x: &Tensor) -> Tensor {
        layer_norm(config, parameters, x, "transformer.ln_f") // [b, t, c]
    }

    #[track_caller]
    fn token_table(&self, config: &ModelConfig, parameters: &Parameters) -> Tensor {
        parameters.get("transformer.wte.weight", [config.vocabulary, config.width], NORMAL)
    }

    fn published(&self) -> Published {
        Published {
            class: "GPT2LMHeadModel",
            prefix: "transformer",
            buffers: &[".attn.bias", ".attn.masked_bias"],
            keys: &[&[
                (Read, &["n_embd", "n_layer", "n_head", "n_inner", "n_positions", "layer_norm_epsilon"]),
                // Other names of the same sizes.
                (Read, &["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]),
                (Any, &["n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"]),
                (Any, &["predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation"]),
                (Any, &["summary_proj_to_labels", "summary_first_dropout"]),
                (Only(&["\"gelu_new\"", "\"gelu_pytorch_tanh\""]), &["activation_function"]),
                (Only(&["true"]), &["scale_attn_weights"]),
                (Only(&["false"]), &["scale_attn_by_inverse_layer_idx"]),
            ]],
            dropouts: &["attn_pdrop", "embd_pdrop", "resid_pdrop"],
        }
    }

    fn read(&self, settings: &Settings) -> Result<ModelConfig> {
        let width = settings.size_by_names(["hidden_size", "n_embd"], 768)?;
        let heads = settings.size_by_names(["num_attention_heads", "n_head"], 12)?;
        let layers = settings.size_by_names(["num_hidden_layers", "n_layer"], 12)?;
        let context = settings.size_by_names(["max_position_embeddings", "n_positions"], 1024)?;
        let sizes = ModelConfig::new(Family::Gpt2, settings.size("vocab_size", 50_257)?, width, layers, heads, context);
        Ok(ModelConfig {
            feed_forward: settings.size_or_null("n_inner", sizes.feed_forward)?,
            tie_embeddings: settings.flag("tie_word_embeddings", true)?,
            norm_epsilon: settings.number("layer_norm_epsilon", 1e-5)?,
            ..sizes
        })
    }

    fn write(&self, config: &ModelConfig) -> Value {
        json!({
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_positions": config.context,
            "n_ctx": config.context,
            "n_inner": config.feed_forward,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": decimal(config.norm_epsilon),
        })
    }
}

#[track_caller]
fn block(config: &ModelConfig, parameters: &Parameters, x: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
    let (c, f) = (config.width, config.feed_forward);
    // What is added to the residual stream by each of 2 * layers parts keeps its variance.
    let residual = Initializer::Normal { deviation: DEVIATION / (2.0 * config.layers as f32).sqrt() };
    let inward = |x: &Tensor, name: &str, outputs: usize| {
        projection(parameters, x, name, ([c, outputs], NORMAL), Next::Products)
    };
    let outward = |x: &Tensor, name: &str, inputs: usize| {
        projection(parameters, x, name, ([inputs, c], residual), Next::Residual)
    };
    let normed = layer_norm(config, parameters, x, "ln_1"); // [b, t, c]
    let parts = inward(&normed, "attn.c_attn", 3 * c).split(-1, &[c; 3]); // 3 of [b, t, c]
    let [q, k, v] = [0, 1, 2].map(|part| heads(&parts[part], config.heads, config.head_size())); // [b, h, t, d]
    let attended = joined(&context.attend(&q, &k, &v, None)); // [b, t, c]
    let attended = outward(&attended, "attn.c_proj", c); // [b, t, c]
    let x = x + parameters.dropout(&attended, config.dropout); // [b, t, c]
    let normed = layer_norm(config, parameters, &x, "ln_2"); // [b, t, c]
    let inner = inward(&normed, "mlp.c_fc", f).gelu(); // [b, t, f]
    let outer = outward(&inner, "mlp.c_proj", f); // [b, t, c]
    x + parameters.dropout(&outer, config.dropout) // [b, t, c]
}

#[track_caller]
fn layer_norm(config: &ModelConfig, parameters: &Parameters, x: &Tensor, name: &str) -> Tensor {
    let at = parameters.within(name);
    let gain = at.get("weight", [config.width], Initializer::Ones); // [c]
    let bias = at.get("bias", [config.width], Initializer::Zeros); // [c]
    x.layer_norm(&gain, &bias, config.norm_epsilon) // [b, t, c]
}

/// A linear layer with its bias; GPT-2 keeps its weights as [inputs, outputs].
#[track_caller]
fn projection(
    parameters: &Parameters,
    x: &Tensor,
    name: &str,
    (shape, initializer): ([usize; 2], Initializer),
    next: Next,
) -> Tensor {
    let at = parameters.within(name);
    let weight = at.get("weight", shape, initializer);
    let bias = at.get("bias", [shape[1]], Initializer::Zeros);
    linear(parameters, x, (&weight, Some(&bias)), next)
}
