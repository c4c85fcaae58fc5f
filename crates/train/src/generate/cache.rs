//! Keys and values kept from token to token.

use crate::models::{ModelConfig, Surroundings};
use gradus_engine::{Array, DType, Role, Routine, Tensor, Trace};

/// What a score of a place that is not seen is replaced by: its share is zero in f32.
const UNSEEN: f32 = -1e30;

/// A state of keys and one of values [n, g, context, d] for each layer.
pub(super) struct Cache {
    layers: Vec<[Tensor; 2]>,
    context: usize,
}

impl Cache {
    #[track_caller]
    pub fn new(trace: &Trace, config: &ModelConfig, count: usize) -> Cache {
        let shape = [count, config.kv_heads, config.context, config.head_size()];
        let state = |layer: usize, part: &str| {
            trace.zero_state_with_role(&format!("cache.{layer}.{part}"), Role::Cache, DType::F32, shape)
        };
        let layers = (0..config.layers).map(|layer| [state(layer, "keys"), state(layer, "values")]).collect();
        Cache { layers, context: config.context }
    }

    /// The routine with the cache becoming this for each layer.
    pub fn assigned(&self, mut routine: Routine, filled: &[[Tensor; 2]]) -> Routine {
        for ([keys, values], [new_keys, new_values]) in self.layers.iter().zip(filled) {
            routine = routine.assign(keys, new_keys).assign(values, new_values);
        }
        routine
    }
}

/// The first tokens: each sees itself and those before it, and the cache is filled from its start.
pub(super) struct FirstTokens<'a> {
    pub cache: &'a Cache,
    pub sequence: usize,
    /// What the layers passed so far put into the cache.
    pub filled: Vec<[Tensor; 2]>,
}

impl Surroundings for FirstTokens<'_> {
    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.slice(0, 0..self.sequence)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor {
        let rest = self.cache.context - self.sequence;
        self.filled.push([keys, values].map(|new| new.pad(2, 0, rest, 0.0))); // [n, g, context, d]
        queries.attention(keys, values, true) // [n, h, t, d]
    }
}

/// One token of each sequence, at a place that is only known when the program runs: it sees the cache up to there.
pub(super) struct NextToken<'a> {
    cache: &'a Cache,
    /// The place: i32 [1].
    position: Tensor,
    /// 1 at the token's place: [context, 1].
    here: Tensor,
    /// 1 up to the token's place: [context].
    seen: Tensor,
    /// What the layers passed so far put into the cache.
    pub filled: Vec<[Tensor; 2]>,
}

impl<'a> NextToken<'a> {
    #[track_caller]
    pub fn new(cache: &'a Cache, position: &Tensor) -> NextToken<'a> {
        let places: Vec<f32> = (0..cache.context).map(|place| place as f32).collect();
        let places = Array::new([cache.context], &places).expect("a number for each place");
        let places = position.trace().constant(places); // [context]
        let now = position.cast(DType::F32); // [1]
        let here = places.equal(&now).reshape([cache.context, 1]);
        let seen = places.less_equal(&now);
        NextToken { cache, position: position.clone(), here, seen, filled: vec![] }
    }
}

impl Surroundings for NextToken<'_> {
    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.embedding(&self.position)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor {
        let [old_keys, old_values] = &self.cache.layers[self.filled.len()];
        let keys = self.here.select(keys, old_keys); // [n, g, context, d]
        let values = self.here.select(values, old_values); // [n, g, context, d]
        let (n, h, g, d) = (queries.size(0), queries.size(1), keys.size(1), queries.size(3));
        let grouped = queries.reshape([n, g, h / g, d]); // [n, g, h/g, d]
        let scores = grouped.matmul(&keys.transpose(2, 3)) * (1.0 / (d as f32).sqrt()); // [n, g, h/g, context]
        let scores = self.seen.select(&scores, &scores.full_like(UNSEEN)); // [n, g, h/g, context]
        let found = scores.softmax(-1).matmul(&values); // [n, g, h/g, d]
        self.filled.push([keys, values]);
        found.reshape([n, h, 1, d]) // [n, h, 1, d]
    }
}
