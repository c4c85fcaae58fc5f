//! The part of a block that treats each place by itself.

use super::Linear;
use crate::parameters::Parameters;
use gradus_engine::Tensor;

/// Two linear layers with an activation between, GELU in its exact form if nothing else is said. Weights: `linear1`,
/// `linear2`.
#[derive(Clone, Debug)]
pub struct FeedForward {
    linear1: Linear,
    linear2: Linear,
    activation: fn(&Tensor) -> Tensor,
}

impl FeedForward {
    /// Of places of this width, by way of another.
    #[track_caller]
    pub fn new(parameters: &Parameters, width: usize, hidden: usize) -> FeedForward {
        let linear1 = Linear::new(&parameters.within("linear1"), width, hidden);
        let linear2 = Linear::new(&parameters.within("linear2"), hidden, width);
        FeedForward { linear1, linear2, activation: Tensor::gelu_erf }
    }

    /// With another activation, such as [`Tensor::relu`].
    pub fn with_activation(self, activation: fn(&Tensor) -> Tensor) -> FeedForward {
        FeedForward { activation, ..self }
    }

    /// [..., width] to the same.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let hidden = (self.activation)(&self.linear1.forward_inward(x)); // [..., hidden]
        self.linear2.forward_like(&hidden, x)
    }
}

/// `down(silu(gate(x)) * up(x))`, without biases, as Llama has it. Weights: `gate_proj`, `up_proj`, `down_proj`.
#[derive(Clone, Debug)]
pub struct SwiGlu {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl SwiGlu {
    /// Of places of this width, by way of another.
    #[track_caller]
    pub fn new(parameters: &Parameters, width: usize, hidden: usize) -> SwiGlu {
        SwiGlu {
            gate_proj: Linear::without_bias(&parameters.within("gate_proj"), width, hidden),
            up_proj: Linear::without_bias(&parameters.within("up_proj"), width, hidden),
            down_proj: Linear::without_bias(&parameters.within("down_proj"), hidden, width),
        }
    }

    /// [..., width] to the same.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let gate = self.gate_proj.forward_inward(x).silu(); // [..., hidden]
        let hidden = gate * self.up_proj.forward_inward(x); // [..., hidden]
        self.down_proj.forward_like(&hidden, x)
    }
}
