//! The weights of a model: their names and shapes, what they start from, and their place in a trace.

use gradus_engine::{Array, DType, Shape, Tensor, Trace};
use gradus_kernels::random::philox;
use std::collections::HashMap;

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
        Weights::made(parameters, |parameter| trace.state(&parameter.name, numbers(parameter)))
    }

    /// A state for each parameter, holding zeros until it is written.
    #[track_caller]
    pub fn zeros(trace: &Trace, parameters: &[Parameter]) -> Weights {
        Weights::made(parameters, |parameter| trace.zero_state(&parameter.name, DType::F32, &parameter.shape))
    }

    fn made(parameters: &[Parameter], state: impl Fn(&Parameter) -> Tensor) -> Weights {
        let names = parameters.iter().map(|parameter| parameter.name.clone()).collect();
        let tensors = parameters.iter().map(|parameter| (parameter.name.clone(), state(parameter))).collect();
        Weights { names, tensors }
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
