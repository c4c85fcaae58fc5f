//! Models, written once on tensors.

mod gpt2;

pub use gpt2::Gpt2;

use serde::{Deserialize, Serialize};

use gradus_engine::{Array, DType, Shape, Tensor, Trace};
use gradus_kernels::random::philox;
use std::collections::HashMap;

/// The families of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Learned positions, layer norm, GELU.
    Gpt2,
    /// Rotary positions, RMS norm, SwiGLU, grouped heads.
    Llama,
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModelConfig {
    /// Which family.
    pub family: Family,
    /// Number of tokens (v).
    pub vocabulary: usize,
    /// Numbers that stand for a token inside the model (c).
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads of a block (h); must divide the width.
    pub heads: usize,
    /// Heads of keys and values (g); must divide the heads. As many as heads in GPT-2.
    pub kv_heads: usize,
    /// Width of the feed-forward part (f).
    pub feed_forward: usize,
    /// Longest sequence.
    pub context: usize,
    /// Whether the table of tokens is also the projection to logits.
    pub tie_embeddings: bool,
    /// Added to variances.
    pub norm_epsilon: f32,
    /// Base of the rotary angles; of no use in GPT-2.
    pub rope_theta: f32,
}

impl ModelConfig {
    /// A GPT-2 of these sizes, with tied embeddings.
    pub fn gpt2(vocabulary: usize, width: usize, layers: usize, heads: usize, context: usize) -> ModelConfig {
        ModelConfig {
            family: Family::Gpt2,
            vocabulary,
            width,
            layers,
            heads,
            kv_heads: heads,
            feed_forward: 4 * width,
            context,
            tie_embeddings: true,
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
        }
    }

    /// Every weight, by its published name.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.gpt2_parameters()
    }
}

/// A weight of a model before it has numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, as in the model's published files.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// What it holds before training.
    pub start: Start,
}

/// What a weight holds before training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Normally distributed numbers around zero.
    Normal {
        /// Their standard deviation.
        deviation: f32,
    },
}

impl Parameter {
    pub(crate) fn new(name: impl Into<String>, shape: impl Into<Shape>, start: Start) -> Parameter {
        Parameter { name: name.into(), shape: shape.into(), start }
    }

    /// The numbers to start from. They depend on the seed, the name and the place in the tensor alone.
    pub fn numbers(&self, seed: u32) -> Array {
        let count = self.shape.elements();
        let numbers: Vec<f32> = match self.start {
            Start::Zeros => vec![0.0; count],
            Start::Ones => vec![1.0; count],
            Start::Normal { deviation } => normal_numbers([seed, hash(&self.name)], count, deviation),
        };
        Array::new(&self.shape, &numbers).expect("as many numbers as the shape has")
    }
}

/// Normally distributed numbers from a counter-based generator, two from each pair of its words.
fn normal_numbers(key: [u32; 2], count: usize, deviation: f32) -> Vec<f32> {
    let uniform = |word: u32| (word as f64 + 0.5) / 4_294_967_296.0;
    let quadruple = |block: usize| {
        let words = philox([block as u32, (block >> 32) as u32, 0, 0], key);
        [[words[0], words[1]], [words[2], words[3]]].into_iter().flat_map(move |[a, b]| {
            let radius = (-2.0 * uniform(a).ln()).sqrt() * deviation as f64;
            let (sine, cosine) = (std::f64::consts::TAU * uniform(b)).sin_cos();
            [(radius * cosine) as f32, (radius * sine) as f32]
        })
    };
    (0..count.div_ceil(4)).flat_map(quadruple).take(count).collect()
}

/// A name as a number (FNV-1a).
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ byte as u32).wrapping_mul(0x0100_0193))
}

/// The weights of a model in a trace, by name.
pub struct Weights {
    names: Vec<String>,
    tensors: HashMap<String, Tensor>,
}

impl Weights {
    /// A state for each parameter, holding what `numbers` gives for it.
    #[track_caller]
    pub fn new(trace: &Trace, parameters: &[Parameter], numbers: impl Fn(&Parameter) -> Array) -> Weights {
        let mut weights = Weights { names: vec![], tensors: HashMap::new() };
        for parameter in parameters {
            let tensor = trace.state(&parameter.name, numbers(parameter));
            weights.names.push(parameter.name.clone());
            weights.tensors.insert(parameter.name.clone(), tensor);
        }
        weights
    }

    /// The weight of this name. The models ask only for names that their own list of parameters has.
    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("the model has no weight {name:?}"))
    }

    /// Names and tensors, in the order of the parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(|name| (&name[..], &self.tensors[name]))
    }

    /// The tensors, in the order of the parameters.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.iter().map(|(_, tensor)| tensor).collect()
    }
}

/// An input of tokens.
#[track_caller]
pub fn tokens_input(trace: &Trace, name: &str, batch: usize, sequence: usize) -> Tensor {
    trace.input(name, DType::I32, [batch, sequence])
}
