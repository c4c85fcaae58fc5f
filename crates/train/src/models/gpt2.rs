//! GPT-2: learned positions, norms before each part of a block, GELU in its tanh form.

use super::{ModelConfig, Parameter, Start, Weights};
use gradus_engine::Tensor;

/// Deviation of the published initialisation.
const DEVIATION: f32 = 0.02;

impl ModelConfig {
    /// Every weight of a GPT-2 model, by its published name.
    pub(super) fn gpt2_parameters(&self) -> Vec<Parameter> {
        let (c, f) = (self.width, self.feed_forward);
        let normal = Start::Normal { deviation: DEVIATION };
        // What is added to the residual stream by each of 2 * layers parts keeps its variance.
        let residual = Start::Normal { deviation: DEVIATION / (2.0 * self.layers as f32).sqrt() };
        let mut all = vec![
            Parameter::new("transformer.wte.weight", [self.vocabulary, c], normal),
            Parameter::new("transformer.wpe.weight", [self.context, c], normal),
        ];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize], start: Start| {
                all.push(Parameter::new(format!("transformer.h.{layer}.{name}"), shape, start));
            };
            add("ln_1.weight", &[c], Start::Ones);
            add("ln_1.bias", &[c], Start::Zeros);
            add("attn.c_attn.weight", &[c, 3 * c], normal);
            add("attn.c_attn.bias", &[3 * c], Start::Zeros);
            add("attn.c_proj.weight", &[c, c], residual);
            add("attn.c_proj.bias", &[c], Start::Zeros);
            add("ln_2.weight", &[c], Start::Ones);
            add("ln_2.bias", &[c], Start::Zeros);
            add("mlp.c_fc.weight", &[c, f], normal);
            add("mlp.c_fc.bias", &[f], Start::Zeros);
            add("mlp.c_proj.weight", &[f, c], residual);
            add("mlp.c_proj.bias", &[c], Start::Zeros);
        }
        all.push(Parameter::new("transformer.ln_f.weight", [c], Start::Ones));
        all.push(Parameter::new("transformer.ln_f.bias", [c], Start::Zeros));
        if !self.tie_embeddings {
            all.push(Parameter::new("lm_head.weight", [self.vocabulary, c], normal));
        }
        all
    }
}

/// A GPT-2 model over weights in a trace.
pub struct Gpt2<'a> {
    config: &'a ModelConfig,
    weights: &'a Weights,
}

impl<'a> Gpt2<'a> {
    /// The model of these sizes over weights made from its parameters.
    pub fn new(config: &'a ModelConfig, weights: &'a Weights) -> Gpt2<'a> {
        Gpt2 { config, weights }
    }

    /// What the blocks make of the tokens [b, t]: [b, t, c].
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor) -> Tensor {
        let sequence = tokens.size(-1);
        let positions = self.weight("transformer.wpe.weight").slice(0, 0..sequence); // [t, c]
        let mut x = self.weight("transformer.wte.weight").embedding(tokens) + positions; // [b, t, c]
        for layer in 0..self.config.layers {
            x = self.block(layer, &x); // [b, t, c]
        }
        x.layer_norm(
            self.weight("transformer.ln_f.weight"),
            self.weight("transformer.ln_f.bias"),
            self.config.norm_epsilon,
        )
    }

    /// A logit for each token of the vocabulary: [b, t, v].
    #[track_caller]
    pub fn logits(&self, tokens: &Tensor) -> Tensor {
        self.hidden(tokens).matmul(&self.head().transpose(0, 1))
    }

    /// The mean loss of predicting `targets` [b, t]; those that are -100 do not count. All logits are never held.
    #[track_caller]
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Tensor {
        let hidden = self.hidden(tokens); // [b, t, c]
        let rows = hidden.shape().elements() / self.config.width;
        let targets = targets.reshape([rows]);
        hidden.reshape([rows, self.config.width]).linear_cross_entropy(self.head(), &targets, Some(-100))
    }

    #[track_caller]
    fn block(&self, layer: usize, x: &Tensor) -> Tensor {
        let weight = |name: &str| self.weight(&format!("transformer.h.{layer}.{name}"));
        let normed = x.layer_norm(weight("ln_1.weight"), weight("ln_1.bias"), self.config.norm_epsilon); // [b, t, c]
        let joint = normed.linear(weight("attn.c_attn.weight"), Some(weight("attn.c_attn.bias"))); // [b, t, 3c]
        let attended = self.attention(&joint); // [b, t, c]
        let x = x + attended.linear(weight("attn.c_proj.weight"), Some(weight("attn.c_proj.bias")));
        let normed = x.layer_norm(weight("ln_2.weight"), weight("ln_2.bias"), self.config.norm_epsilon); // [b, t, c]
        let inner = normed.linear(weight("mlp.c_fc.weight"), Some(weight("mlp.c_fc.bias"))).gelu(); // [b, t, f]
        &x + inner.linear(weight("mlp.c_proj.weight"), Some(weight("mlp.c_proj.bias")))
    }

    /// Causal attention over queries, keys and values side by side: [b, t, 3c] to [b, t, c].
    #[track_caller]
    fn attention(&self, joint: &Tensor) -> Tensor {
        let (c, h) = (self.config.width, self.config.heads);
        let (b, t) = (joint.size(0), joint.size(1));
        let parts = joint.split(-1, &[c, c, c]);
        let mut heads = vec![];
        for part in &parts {
            heads.push(part.reshape([b, t, h, c / h]).transpose(1, 2)); // [b, h, t, c/h]
        }
        let attended = heads[0].attention(&heads[1], &heads[2], true); // [b, h, t, c/h]
        attended.transpose(1, 2).reshape([b, t, c])
    }

    /// The projection to logits: [v, c].
    fn head(&self) -> &Tensor {
        self.weight(if self.config.tie_embeddings { "transformer.wte.weight" } else { "lm_head.weight" })
    }

    fn weight(&self, name: &str) -> &Tensor {
        self.weights.get(name)
    }
}
