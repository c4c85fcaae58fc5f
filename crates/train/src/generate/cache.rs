//! Keys and values kept from token to token.

use crate::models::KeyValueContext;
use gradus_engine::ops::AttentionOptions;
use gradus_engine::{DType, Role, Routine, Tensor, Trace};
use std::cell::RefCell;

/// A state of keys and one of values [n, g, places, d] for each layer, made when a pass first asks for the layer.
pub(super) struct KeyValueCache {
    trace: Trace,
    sequences: usize,
    places: usize,
    /// How many places are filled: i32 [1].
    length: Tensor,
    layers: RefCell<Vec<[Tensor; 2]>>,
}

impl KeyValueCache {
    pub fn new(trace: &Trace, sequences: usize, places: usize) -> KeyValueCache {
        let length = trace.zero_state_with_role("cache.length", Role::Cache, DType::I32, [1]);
        KeyValueCache { trace: trace.clone(), sequences, places, length, layers: RefCell::default() }
    }

    /// The states of a layer whose keys are of this kind: [n, g, t, d].
    #[track_caller]
    fn layer(&self, layer: usize, keys: &Tensor) -> [Tensor; 2] {
        let mut layers = self.layers.borrow_mut();
        if layer == layers.len() {
            let shape = [self.sequences, keys.size(1), self.places, keys.size(3)];
            let state = |part: &str| {
                self.trace.zero_state_with_role(&format!("cache.{layer}.{part}"), Role::Cache, keys.dtype(), shape)
            };
            layers.push([state("keys"), state("values")]);
        }
        layers[layer].clone()
    }
}

/// A pass that fills places of the cache, which are written where they lie.
struct Filling<'a> {
    cache: &'a KeyValueCache,
    /// Where the pass begins, and how many places are filled after it: i32 [1].
    position: Tensor,
    length: Tensor,
    /// What the layers passed so far made of the cache.
    filled: Vec<[Tensor; 2]>,
}

impl Filling<'_> {
    /// The caches of the next layer, and the keys and values of the tokens [n, g, t, d], of one sequence for all of them perhaps,
    /// as they are to be put there.
    #[track_caller]
    fn next_layer(&self, keys: &Tensor, values: &Tensor) -> ([Tensor; 2], [Tensor; 2]) {
        let new = [keys, values].map(|new| {
            new.broadcast([self.cache.sequences, new.size(1), new.size(2), new.size(3)]) // [n, g, t, d]
        });
        (self.cache.layer(self.filled.len(), keys), new)
    }

    /// The routine with the cache as it is after this pass.
    fn assigned(self, routine: Routine) -> Routine {
        let layers = self.cache.layers.borrow();
        let assign = |routine: Routine, ([keys, values], [new_keys, new_values]): (&[Tensor; 2], &[Tensor; 2])| {
            routine.assign(keys, new_keys).assign(values, new_values)
        };
        layers.iter().zip(&self.filled).fold(routine.assign(&self.cache.length, &self.length), assign)
    }
}

/// The first tokens: each sees itself and those before it, and the cache is filled from its start.
pub(super) struct FirstTokens<'a> {
    tokens: usize,
    filling: Filling<'a>,
}

impl<'a> FirstTokens<'a> {
    /// So many, of which only those before `length`, i32 [1], count afterwards.
    #[track_caller]
    pub fn new(cache: &'a KeyValueCache, tokens: usize, length: &Tensor) -> FirstTokens<'a> {
        let position = cache.trace.full(0.0, DType::I32, [1]);
        FirstTokens { tokens, filling: Filling { cache, position, length: length.clone(), filled: vec![] } }
    }

    /// See [`Filling::assigned`].
    pub fn assigned(self, routine: Routine) -> Routine {
        self.filling.assigned(routine)
    }
}

impl KeyValueContext for FirstTokens<'_> {
    fn places(&self) -> usize {
        self.filling.cache.places
    }

    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.slice(0, 0..self.tokens)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor {
        let (caches, new) = self.filling.next_layer(keys, values);
        let appended = [0, 1].map(|of| caches[of].append(&new[of], &self.filling.position)); // [n, g, places, d]
        self.filling.filled.push(appended);
        queries.attention_with(keys, values, AttentionOptions { causal: true, window, scale: None }) // [n, h, t, d]
    }
}

/// One token of each sequence, at a place that is only known when the program runs: it sees the cache up to there.
pub(super) struct NextToken<'a>(Filling<'a>);

impl<'a> NextToken<'a> {
    #[track_caller]
    pub fn new(cache: &'a KeyValueCache) -> NextToken<'a> {
        NextToken(Filling { cache, position: cache.length.clone(), length: &cache.length + 1.0, filled: vec![] })
    }

    /// See [`Filling::assigned`].
    pub fn assigned(self, routine: Routine) -> Routine {
        self.0.assigned(routine)
    }
}

impl KeyValueContext for NextToken<'_> {
    fn places(&self) -> usize {
        self.0.cache.places
    }

    #[track_caller]
    fn rows(&self, table: &Tensor) -> Tensor {
        table.embedding(&self.0.position)
    }

    #[track_caller]
    fn attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor, window: Option<usize>) -> Tensor {
        let (caches, new) = self.0.next_layer(keys, values);
        let (caches, new) = (caches.each_ref(), new.each_ref());
        let (found, appended) = queries.cached_attention(caches, new, &self.0.position, window); // [n, h, 1, d]
        self.0.filled.push(appended); // [n, g, places, d]
        found
    }
}
