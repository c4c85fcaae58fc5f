//! What an agent decides by.

use gradus::layers::Linear;
use gradus::{Initializer, Parameters, Tensor};

/// A network that says of observations how good actions are and what is to be expected.
pub trait Policy {
    /// Steps of an environment that are looked at together when the policy is updated: 1, or those of a whole episode.
    fn span(&self) -> usize;

    /// Logits of the actions [b, t, actions] and values [b, t] for observations [b, t, numbers].
    fn evaluate(&self, parameters: &Parameters, observations: &Tensor) -> (Tensor, Tensor);

    /// The same for what all environments see now, [n, numbers], `place` steps after the rollout began: one i32 `[1]`.
    fn act(&self, parameters: &Parameters, observations: &Tensor, _place: &Tensor) -> Acting {
        let (logits, values) = self.evaluate(parameters, &observations.unsqueeze(1));
        Acting { logits: logits.squeeze(1), values: values.squeeze(1), remembered: vec![] }
    }
}

/// What a policy says of a step.
pub struct Acting {
    /// [n, actions].
    pub logits: Tensor,
    /// `[n]`.
    pub values: Tensor,
    /// States, and what they are after the step.
    pub remembered: Vec<(Tensor, Tensor)>,
}

/// A linear layer whose weights start orthogonal and whose bias starts at zero.
#[track_caller]
pub fn linear(parameters: &Parameters, name: &str, x: &Tensor, outputs: usize, gain: f32) -> Tensor {
    let (weight, bias) = (Initializer::Orthogonal { gain }, Some(Initializer::Zeros));
    Linear::with_initializers(&parameters.within(name), x.size(-1), outputs, weight, bias).forward(x)
}

/// The gain of layers before a tanh.
pub const HIDDEN_GAIN: f32 = std::f32::consts::SQRT_2;
/// Of logits: all actions are about alike at first.
pub const LOGITS_GAIN: f32 = 0.01;

/// Two networks of two hidden layers, one for actions and one for values.
pub struct Perceptron {
    pub width: usize,
    pub actions: usize,
}

impl Policy for Perceptron {
    fn span(&self) -> usize {
        1
    }

    fn evaluate(&self, parameters: &Parameters, observations: &Tensor) -> (Tensor, Tensor) {
        let network = |name: &str, outputs: usize, gain: f32| {
            let at = parameters.within(name);
            let x = linear(&at, "first", observations, self.width, HIDDEN_GAIN).tanh(); // [b, t, width]
            let x = linear(&at, "second", &x, self.width, HIDDEN_GAIN).tanh(); // [b, t, width]
            linear(&at, "last", &x, outputs, gain) // [b, t, outputs]
        };
        (network("actor", self.actions, LOGITS_GAIN), network("critic", 1, 1.0).squeeze(-1))
    }
}
