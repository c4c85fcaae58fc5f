//! Linear layers and tables.

use super::given;
use crate::config::Precision;
use crate::parameters::{Initializer, Parameters};
use gradus_engine::{DType, Tensor};

/// `x @ weight^T + bias`. Weights: `weight` [outputs, inputs], `bias` `[outputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    precision: Precision,
}

impl Linear {
    /// With a bias.
    #[track_caller]
    pub fn new(parameters: &Parameters, inputs: usize, outputs: usize) -> Linear {
        let initializer = Initializer::uniform_in_fan(inputs);
        Linear::with_initializers(parameters, inputs, outputs, initializer, Some(initializer))
    }

    /// Without a bias.
    #[track_caller]
    pub fn without_bias(parameters: &Parameters, inputs: usize, outputs: usize) -> Linear {
        Linear::with_initializers(parameters, inputs, outputs, Initializer::uniform_in_fan(inputs), None)
    }

    /// With weights, and a bias if there is to be one, that start from these.
    #[track_caller]
    pub fn with_initializers(
        parameters: &Parameters,
        inputs: usize,
        outputs: usize,
        weight: Initializer,
        bias: Option<Initializer>,
    ) -> Linear {
        let weight = parameters.get("weight", [outputs, inputs], weight);
        let mut linear = Linear { weight, bias: None, precision: parameters.precision() };
        // Not in a closure, whose errors would not name the user's line.
        if let Some(bias) = bias {
            linear.bias = Some(parameters.get("bias", [outputs], bias));
        }
        linear
    }

    /// Over weights that are there already, as a head that shares the table of an embedding.
    pub fn over(parameters: &Parameters, weight: &Tensor, bias: Option<&Tensor>) -> Linear {
        Linear { weight: weight.clone(), bias: bias.cloned(), precision: parameters.precision() }
    }

    /// [..., inputs] to [..., outputs].
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_as(x, given(x, self.precision))
    }

    /// For further products: in the precision that they have.
    #[track_caller]
    pub(super) fn forward_inward(&self, x: &Tensor) -> Tensor {
        self.forward_as(x, self.precision.dtype())
    }

    /// The last of a layer that took `operand`: in the type that the layer gives for it.
    #[track_caller]
    pub(super) fn forward_like(&self, x: &Tensor, operand: &Tensor) -> Tensor {
        self.forward_as(x, given(operand, self.precision))
    }

    #[track_caller]
    fn forward_as(&self, x: &Tensor, stored: DType) -> Tensor {
        let types = self.precision.product_types(stored);
        x.cast(types.computed).linear_as(&self.weight.transpose(0, 1), self.bias.as_ref(), types)
    }
}

/// A row of a table for each number. Weights: `weight` [count, width].
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Tensor,
}

impl Embedding {
    /// A table of so many rows, normally distributed.
    #[track_caller]
    pub fn new(parameters: &Parameters, count: usize, width: usize) -> Embedding {
        Embedding { weight: parameters.get("weight", [count, width], Initializer::Normal { deviation: 1.0 }) }
    }

    /// The table: [count, width].
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Rows of the table [..., width] for numbers [...]. A number that has no row is an error of the replay.
    #[track_caller]
    pub fn forward(&self, numbers: &Tensor) -> Tensor {
        self.weight.embedding(numbers).cast(DType::F32)
    }
}
