//! Attention.

use super::Linear;
use crate::config::Precision;
use crate::parameters::{Initializer, Parameters};
use gradus_engine::Tensor;
use gradus_engine::ops::AttentionOptions;

/// What attention is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiHeadAttentionOptions {
    /// Heads of queries. Each has a share of the width.
    pub heads: usize,
    /// Heads of keys and values, of which `heads` is a multiple: fewer of them are shared by groups of queries.
    pub kv_heads: usize,
    /// Whether a place sees only itself and those before it.
    pub causal: bool,
    /// How many places it sees at most, if causal: itself and those before it.
    pub window: Option<usize>,
    /// Whether projections have biases.
    pub bias: bool,
    /// Rotary positions on this base, usually 10000, instead of none.
    pub rotary_base: Option<f64>,
}

impl MultiHeadAttentionOptions {
    /// So many heads of queries, keys and values each; every place sees every other.
    pub fn new(heads: usize) -> MultiHeadAttentionOptions {
        MultiHeadAttentionOptions { heads, kv_heads: heads, causal: false, window: None, bias: true, rotary_base: None }
    }

    /// So many heads; a place sees only itself and those before it.
    pub fn causal(heads: usize) -> MultiHeadAttentionOptions {
        MultiHeadAttentionOptions { causal: true, ..MultiHeadAttentionOptions::new(heads) }
    }
}

/// Attention of several heads, batch first: of a sequence over itself, or over another.
///
/// Weights: `in_proj_weight` [queries, keys and values, width], `in_proj_bias`, `out_proj.weight` [width, width],
/// `out_proj.bias`. Attention weights are never stored, and so cannot be dropped; drop what this gives.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    in_proj_weight: Tensor,
    in_proj_bias: Option<Tensor>,
    out_proj: Linear,
    width: usize,
    options: MultiHeadAttentionOptions,
    precision: Precision,
}

impl MultiHeadAttention {
    /// Of sequences of this width, which the heads divide.
    #[track_caller]
    pub fn new(parameters: &Parameters, width: usize, options: MultiHeadAttentionOptions) -> MultiHeadAttention {
        let keys = options.kv_heads.saturating_mul(width / options.heads.max(1));
        let rows = width.saturating_add(keys.saturating_mul(2));
        let xavier = Initializer::XavierUniform { gain: 1.0 };
        let in_proj_weight = parameters.get("in_proj_weight", [rows, width], xavier);
        let zeros = Initializer::Zeros;
        let in_proj_bias = if options.bias { Some(parameters.get("in_proj_bias", [rows], zeros)) } else { None };
        let outward = Initializer::uniform_in_fan(width);
        let out_proj = Linear::with_initializers(
            &parameters.within("out_proj"),
            width,
            width,
            outward,
            options.bias.then_some(zeros),
        );
        let precision = parameters.precision();
        MultiHeadAttention { in_proj_weight, in_proj_bias, out_proj, width, options, precision }
    }

    /// Of a sequence [b, t, width] over itself: [b, t, width].
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let [q, k, v] = match self.sizes(x) {
            Ok(sizes) => sizes,
            Err(refused) => return refused,
        };
        let joint = self.project(x, 0, q + k + v); // [b, t, q + k + v]
        let parts = joint.split(-1, &[q, k, v]);
        self.attend(&parts[0], &parts[1], &parts[2], x)
    }

    /// Of a sequence [b, t, width] over another one [b, s, width]: [b, t, width].
    #[track_caller]
    pub fn forward_over(&self, x: &Tensor, memory: &Tensor) -> Tensor {
        let [q, k, v] = match self.sizes(x).and_then(|_| self.sizes(memory)) {
            Ok(sizes) => sizes,
            Err(refused) => return refused,
        };
        let queries = self.project(x, 0, q); // [b, t, q]
        let parts = self.project(memory, q, k + v).split(-1, &[k, v]); // 2 of [b, s, k]
        self.attend(&queries, &parts[0], &parts[1], x)
    }

    /// The columns of queries, keys and values, or what to give for a sequence that does not fit.
    #[track_caller]
    fn sizes(&self, x: &Tensor) -> Result<[usize; 3], Tensor> {
        let (heads, width) = (self.options.heads, self.width);
        let shape = x.shape();
        let problem = if heads == 0 || !width.is_multiple_of(heads) {
            format!("{heads} heads do not divide a width of {width}; take a divisor")
        } else if self.options.kv_heads == 0 || !heads.is_multiple_of(self.options.kv_heads) {
            format!("{} heads of keys and values do not divide {heads} heads; take a divisor", self.options.kv_heads)
        } else if shape.rank() != 3 || shape[2] != width {
            format!("takes sequences [batch, places, {width}]; reshape them")
        } else {
            let keys = self.options.kv_heads * (width / heads);
            return Ok([width, keys, keys]);
        };
        Err(x.parameter_error("multi-head attention", problem))
    }

    /// By some of the rows of the joint projection, for attention: [b, t, rows].
    #[track_caller]
    fn project(&self, x: &Tensor, first: usize, rows: usize) -> Tensor {
        let weight = self.in_proj_weight.slice(0, first..first + rows).transpose(0, 1); // [width, rows]
        let bias = self.in_proj_bias.as_ref().map(|bias| bias.slice(0, first..first + rows));
        let types = self.precision.product_types(self.precision.dtype());
        x.cast(types.computed).linear_as(&weight, bias.as_ref(), types)
    }

    /// What the heads of projections [b, t, n * d] find, joined and projected: [b, t, width].
    #[track_caller]
    fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, operand: &Tensor) -> Tensor {
        let MultiHeadAttentionOptions { heads, kv_heads, causal, window, .. } = self.options;
        let q = self.rotated(&self.split_heads(queries, heads)); // [b, h, t, d]
        let k = self.rotated(&self.split_heads(keys, kv_heads)); // [b, g, s, d]
        let v = self.split_heads(values, kv_heads); // [b, g, s, d]
        let found = q.attention_with(&k, &v, AttentionOptions { causal, window, scale: None }); // [b, h, t, d]
        let joined = found.transpose(1, 2).flatten(2); // [b, t, width]
        self.out_proj.forward_like(&joined, operand)
    }

    /// [b, t, n * d] as [b, n, t, d].
    #[track_caller]
    fn split_heads(&self, x: &Tensor, count: usize) -> Tensor {
        x.reshape([x.size(0), x.size(1), count, self.width / self.options.heads]).transpose(1, 2)
    }

    /// Heads [b, n, t, d] with their positions, if there are any.
    #[track_caller]
    fn rotated(&self, heads: &Tensor) -> Tensor {
        match self.options.rotary_base {
            Some(base) => rotary_positions(heads, base),
            None => heads.clone(),
        }
    }
}

/// Heads [b, n, t, d] with rotary positions from 0 on: pairs of numbers, one of each half, turned by angles that grow with
/// the place, slower for each pair. `base` is usually 10000.
#[track_caller]
pub fn rotary_positions(heads: &Tensor, base: f64) -> Tensor {
    let shape = heads.shape();
    let &[.., places, depth] = &shape[..] else {
        return heads.parameter_error("rotary_positions", "takes heads [..., places, depth]".to_string());
    };
    let [cos, sin] = heads.trace().rotary_tables(places, depth, base); // [t, d / 2] each
    heads.rotary(&cos, &sin)
}
