//! The weights of a model in a trace, by name.

use crate::parameters::Parameters;
use gradus_engine::Tensor;

/// The weights of a model in a trace, by name.
pub struct Weights {
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl Weights {
    /// Tensors with their names.
    pub fn new(names: Vec<String>, tensors: Vec<Tensor>) -> Weights {
        Weights { names, tensors }
    }

    /// Those that are known so far.
    pub fn of(parameters: &Parameters) -> Weights {
        let names = parameters.list().into_iter().map(|parameter| parameter.name).collect();
        Weights { names, tensors: parameters.tensors() }
    }

    /// Names and tensors, in the order of the parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(|name| &name[..]).zip(&self.tensors)
    }

    /// The tensors, in the order of the parameters.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.tensors.iter().collect()
    }
}
