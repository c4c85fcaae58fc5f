//! GPT-2: learned positions, norms before each part of a block, GELU in its tanh form.

use super::{DropoutSite, Initializer, Model, ModelConfig, Next, Parameter, Surroundings};
use gradus_engine::Tensor;

/// The table of tokens: [v, c].
pub(super) const TOKEN_TABLE: &str = "transformer.wte.weight";

/// Deviation of the published initialisation.
const DEVIATION: f32 = 0.02;

impl ModelConfig {
    /// Every weight of a GPT-2 model, by its published name.
    pub(super) fn gpt2_parameters(&self) -> Vec<Parameter> {
        let (c, f) = (self.width, self.feed_forward);
        let normal = Initializer::Normal { deviation: DEVIATION };
        // What is added to the residual stream by each of 2 * layers parts keeps its variance.
        let residual = Initializer::Normal { deviation: DEVIATION / (2.0 * self.layers as f32).sqrt() };
        let mut all = vec![
            Parameter::new(TOKEN_TABLE, [self.vocabulary, c], normal),
            Parameter::new("transformer.wpe.weight", [self.context, c], normal),
        ];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize], initializer: Initializer| {
                all.push(Parameter::new(format!("transformer.h.{layer}.{name}"), shape, initializer));
            };
            add("ln_1.weight", &[c], Initializer::Ones);
            add("ln_1.bias", &[c], Initializer::Zeros);
            add("attn.c_attn.weight", &[c, 3 * c], normal);
            add("attn.c_attn.bias", &[3 * c], Initializer::Zeros);
            add("attn.c_proj.weight", &[c, c], residual);
            add("attn.c_proj.bias", &[c], Initializer::Zeros);
            add("ln_2.weight", &[c], Initializer::Ones);
            add("ln_2.bias", &[c], Initializer::Zeros);
            add("mlp.c_fc.weight", &[c, f], normal);
            add("mlp.c_fc.bias", &[f], Initializer::Zeros);
            add("mlp.c_proj.weight", &[f, c], residual);
            add("mlp.c_proj.bias", &[c], Initializer::Zeros);
        }
        all.push(Parameter::new("transformer.ln_f.weight", [c], Initializer::Ones));
        all.push(Parameter::new("transformer.ln_f.bias", [c], Initializer::Zeros));
        if !self.tie_embeddings {
            all.push(Parameter::new("lm_head.weight", [self.vocabulary, c], normal));
        }
        all
    }
}

impl Model<'_> {
    /// What the blocks of a GPT-2 make of the tokens [b, t]: [b, t, c].
    #[track_caller]
    pub(super) fn gpt2(&self, tokens: &Tensor, surroundings: &mut dyn Surroundings) -> Tensor {
        let positions = surroundings.rows(self.weight("transformer.wpe.weight")); // [t, c]
        let embedded = self.weight(TOKEN_TABLE).embedding(tokens) + positions; // [b, t, c]
        let mut x = self.dropped(&embedded, DropoutSite::Embeddings); // [b, t, c]
        for layer in 0..self.config.layers {
            x = tokens.trace().in_layer(layer, || self.gpt2_block(layer, &x, surroundings)); // [b, t, c]
        }
        self.layer_norm(&x, "transformer.ln_f") // [b, t, c]
    }

    #[track_caller]
    fn gpt2_block(&self, layer: usize, x: &Tensor, surroundings: &mut dyn Surroundings) -> Tensor {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let normed = self.layer_norm(x, &name("ln_1")); // [b, t, c]
        let joint = self.projection(&normed, &name("attn.c_attn"), Next::Products); // [b, t, 3c]
        let parts = joint.split(-1, &[self.config.width; 3]); // 3 of [b, t, c]
        let [q, k, v] = [0, 1, 2].map(|part| self.heads(&parts[part], self.config.heads)); // [b, h, t, d]
        let attended = self.joined(&surroundings.attend(&q, &k, &v)); // [b, t, c]
        let attended = self.projection(&attended, &name("attn.c_proj"), Next::Residual); // [b, t, c]
        let x = x + self.dropped(&attended, DropoutSite::Attention { layer }); // [b, t, c]
        let normed = self.layer_norm(&x, &name("ln_2")); // [b, t, c]
        let inner = self.projection(&normed, &name("mlp.c_fc"), Next::Products).gelu(); // [b, t, f]
        let outer = self.projection(&inner, &name("mlp.c_proj"), Next::Residual); // [b, t, c]
        x + self.dropped(&outer, DropoutSite::FeedForward { layer }) // [b, t, c]
    }

    #[track_caller]
    fn layer_norm(&self, x: &Tensor, name: &str) -> Tensor {
        let [gain, bias] = ["weight", "bias"].map(|part| self.weight(&format!("{name}.{part}"))); // [c]
        x.layer_norm(gain, bias, self.config.norm_epsilon) // [b, t, c]
    }

    /// A linear layer with its bias; GPT-2 keeps its weights as [inputs, outputs].
    #[track_caller]
    fn projection(&self, x: &Tensor, name: &str, next: Next) -> Tensor {
        self.linear(x, self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")), next)
    }
}
