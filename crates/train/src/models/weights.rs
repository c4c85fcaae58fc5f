//! The weights of a model in a trace.

use super::Parameter;
use gradus_engine::{Array, DType, Tensor, Trace};
use std::collections::HashMap;

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
