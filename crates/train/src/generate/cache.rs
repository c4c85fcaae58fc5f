//! Keys and values kept from token to token.

use crate::models::KeyValueContext;
use gradus_engine::ops::AttentionOptions;
use gradus_engine::{Array, DType, Role, Routine, Tensor, Trace};
use std::cell::RefCell;

/// What a score of a place that is not seen is replaced by: its share is zero in f32.
const UNSEEN: f32 = -1e30;

/// A state of keys and one of values [n, g, context, d] for each layer, made when a pass first asks for the layer.
pub(super) struct KeyValueCache {
    trace: Trace,
    context: usize,
    layers: RefCell<Vec<[Tensor; 2]>>,
}

impl KeyValueCache {
    pub fn new(trace: &Trace, context: usize) -> KeyValueCache {
        KeyValueCache { trace: trace.clone(), context, layers: RefCell::default() }
    }

    /// The states of a layer whose keys are of this kind: [n, g, t, d].
    #[track_caller]
    fn layer(&self, layer: usize, keys: &Tensor) -> [Tensor; 2] {
        let mut layers = self.layers.borrow_mut();
        if layer == layers.len() {
            let shape = [keys.size(0), keys.size(1), self.context, keys.size(3)];
            let state = |part: &str| {
                self.trace.zero_state_with_role(&format!("cache.{layer}.{part}"), Role::Cache, keys.dtype(), shape)
            };
            layers.push([state("keys"), state("values")]);
        }
        layers[layer].clone()
    }

    /// The routine with the cache becoming this for each layer.
    pub fn assigned(&self, mut routine: Routine, filled: &[[Tensor; 2]]) -> Routine {
        for ([keys, values], [new_keys, new_values]) in self.layers.borrow().iter().zip(filled) {
            routine = routine.assign(keys, new_keys).assign(values, new_values);
        }
        routine
    }
}

/// The first tokens: each sees itself and those before it, and the cache is filled from its start.
pub(super) struct FirstTokens<'a> {
    pub cache: &'a KeyValueCache,
    pub sequence: usize,
    /// What the layers passed so far put into the cache.
    pub filled: Vec<[Tensor; 2]>,
}

impl KeyValueContext for FirstTokens<'_> {
    fn places(&self) -> usize {
        self.cache.context
    }

    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.slice(0, 0..self.sequence)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor {
        self.cache.layer(self.filled.len(), keys);
        let rest = self.cache.context - self.sequence;
        self.filled.push([keys, values].map(|new| new.pad(2, [0, rest], 0.0))); // [n, g, context, d]
        queries.attention_with(keys, values, AttentionOptions { causal: true, window, scale: None }) // [n, h, t, d]
    }
}

/// One token of each sequence, at a place that is only known when the program runs: it sees the cache up to there.
pub(super) struct NextToken<'a> {
    cache: &'a KeyValueCache,
    /// The place: i32 [1].
    position: Tensor,
    /// Every place: [context].
    places: Tensor,
    /// 1 at the token's place: [context, 1].
    here: Tensor,
    /// 1 up to the token's place: [context].
    seen: Tensor,
    /// What the layers passed so far put into the cache.
    pub filled: Vec<[Tensor; 2]>,
}

impl<'a> NextToken<'a> {
    #[track_caller]
    pub fn new(cache: &'a KeyValueCache, position: &Tensor) -> NextToken<'a> {
        let places: Vec<f32> = (0..cache.context).map(|place| place as f32).collect();
        let places = Array::new([cache.context], &places).expect("a number for each place");
        let places = position.trace().constant(places); // [context]
        let now = position.cast(DType::F32); // [1]
        let here = places.equal(&now).reshape([cache.context, 1]);
        let seen = places.less_equal(&now);
        NextToken { cache, position: position.clone(), places, here, seen, filled: vec![] }
    }

    /// 1 at the places that the token sees: [context].
    #[track_caller]
    fn seen(&self, window: Option<usize>) -> Tensor {
        match window.filter(|window| *window < self.cache.context) {
            None => self.seen.clone(),
            Some(window) => {
                let first = self.position.cast(DType::F32) + (1.0 - window as f32); // [1]
                &self.seen * first.less_equal(&self.places)
            }
        }
    }
}

impl KeyValueContext for NextToken<'_> {
    fn places(&self) -> usize {
        self.cache.context
    }

    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.embedding(&self.position)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor {
        let [old_keys, old_values] = self.cache.layer(self.filled.len(), keys);
        let keys = self.here.select(keys, &old_keys); // [n, g, context, d]
        let values = self.here.select(values, &old_values); // [n, g, context, d]
        let (n, h, g, d) = (queries.size(0), queries.size(1), keys.size(1), queries.size(3));
        let grouped = queries.reshape([n, g, h.checked_div(g).unwrap_or(0), d]); // [n, g, h/g, d]
        let scores = grouped.matmul(&keys.transpose(2, 3)) * (1.0 / (d as f32).sqrt()); // [n, g, h/g, context]
        let scores = self.seen(window).select(&scores, &scores.full_like(UNSEEN)); // [n, g, h/g, context]
        let found = scores.softmax(-1).matmul(&values); // [n, g, h/g, d]
        self.filled.push([keys, values]);
        found.reshape([n, h, 1, d]) // [n, h, 1, d]
    }
}
