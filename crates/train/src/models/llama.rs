//! Llama: rotary positions, RMS norms before each part of a block, grouped heads, SwiGLU, no biases.

use super::{DropoutSite, Initializer, Model, ModelConfig, Next, Parameter, Surroundings};
use gradus_engine::Tensor;
use gradus_engine::ops::rotary_tables;

/// The table of tokens: [v, c].
pub(super) const TOKEN_TABLE: &str = "model.embed_tokens.weight";

/// Deviation of the published initialisation.
const DEVIATION: f32 = 0.02;

impl ModelConfig {
    /// Every weight of a Llama model, by its published name. Matrices are [outputs, inputs].
    pub(super) fn llama_parameters(&self) -> Vec<Parameter> {
        let (c, f) = (self.width, self.feed_forward);
        let grouped = self.kv_heads * self.head_size();
        let normal = Initializer::Normal { deviation: DEVIATION };
        let mut all = vec![Parameter::new(TOKEN_TABLE, [self.vocabulary, c], normal)];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize], initializer: Initializer| {
                all.push(Parameter::new(format!("model.layers.{layer}.{name}.weight"), shape, initializer));
            };
            add("input_layernorm", &[c], Initializer::Ones);
            add("self_attn.q_proj", &[c, c], normal);
            add("self_attn.k_proj", &[grouped, c], normal);
            add("self_attn.v_proj", &[grouped, c], normal);
            add("self_attn.o_proj", &[c, c], normal);
            add("post_attention_layernorm", &[c], Initializer::Ones);
            add("mlp.gate_proj", &[f, c], normal);
            add("mlp.up_proj", &[f, c], normal);
            add("mlp.down_proj", &[c, f], normal);
        }
        all.push(Parameter::new("model.norm.weight", [c], Initializer::Ones));
        if !self.tie_embeddings {
            all.push(Parameter::new("lm_head.weight", [self.vocabulary, c], normal));
        }
        all
    }
}

/// Cosines and sines of the angles of each token's place: [t, d/2] each.
struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Model<'_> {
    /// What the blocks of a Llama make of the tokens [b, t]: [b, t, c].
    #[track_caller]
    pub(super) fn llama(&self, tokens: &Tensor, surroundings: &mut dyn Surroundings) -> Tensor {
        let angles = self.angles(tokens, surroundings);
        let embedded = self.weight(TOKEN_TABLE).embedding(tokens); // [b, t, c]
        let mut x = self.dropped(&embedded, DropoutSite::Embeddings); // [b, t, c]
        for layer in 0..self.config.layers {
            x = tokens.trace().in_layer(layer, || self.llama_block(layer, &x, &angles, surroundings)); // [b, t, c]
        }
        x.rms_norm(self.weight("model.norm.weight"), self.config.norm_epsilon) // [b, t, c]
    }

    #[track_caller]
    fn angles(&self, tokens: &Tensor, surroundings: &dyn Surroundings) -> Angles {
        let (context, depth, theta) = (self.config.context, self.config.head_size(), self.config.rope_theta as f64);
        let (cos, sin) = rotary_tables(context, depth, theta); // [context, d/2]
        let [cos, sin] = [cos, sin].map(|table| surroundings.rows(&tokens.trace().constant(table))); // [t, d/2]
        Angles { cos, sin }
    }

    #[track_caller]
    fn llama_block(&self, layer: usize, x: &Tensor, angles: &Angles, surroundings: &mut dyn Surroundings) -> Tensor {
        let (h, g) = (self.config.heads, self.config.kv_heads);
        let weight = |part: &str| self.weight(&format!("model.layers.{layer}.{part}.weight"));
        let inward = |x: &Tensor, part: &str| self.linear_transposed(x, weight(part), Next::Products);
        let outward = |x: &Tensor, part: &str| self.linear_transposed(x, weight(part), Next::Residual);
        let normed = x.rms_norm(weight("input_layernorm"), self.config.norm_epsilon); // [b, t, c]
        let q = self.heads(&inward(&normed, "self_attn.q_proj"), h); // [b, h, t, d]
        let k = self.heads(&inward(&normed, "self_attn.k_proj"), g); // [b, g, t, d]
        let v = self.heads(&inward(&normed, "self_attn.v_proj"), g); // [b, g, t, d]
        let [q, k] = [q, k].map(|turned| turned.rotary(&angles.cos, &angles.sin)); // as before
        let attended = self.joined(&surroundings.attend(&q, &k, &v)); // [b, t, c]
        let attended = outward(&attended, "self_attn.o_proj"); // [b, t, c]
        let x = x + self.dropped(&attended, DropoutSite::Attention { layer }); // [b, t, c]
        let normed = x.rms_norm(weight("post_attention_layernorm"), self.config.norm_epsilon); // [b, t, c]
        let gate = inward(&normed, "mlp.gate_proj").silu(); // [b, t, f]
        let inner = gate * inward(&normed, "mlp.up_proj"); // [b, t, f]
        let outer = outward(&inner, "mlp.down_proj"); // [b, t, c]
        x + self.dropped(&outer, DropoutSite::FeedForward { layer }) // [b, t, c]
    }
}
