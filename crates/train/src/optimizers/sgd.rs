//! Stochastic gradient descent with momentum.

use super::{Hyperparameters, Optimizer, Sgd, Update, Updated};
use gradus_engine::Shape;
use gradus_engine::ops::SgdInputs;

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.0003, beta1: 0.9, beta2: 0.95 };

pub(super) fn with(Hyperparameters { weight_decay, beta1, .. }: Hyperparameters) -> Sgd {
    Sgd { momentum: beta1, weight_decay, nesterov: false }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("momentum", shape.clone())]
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, .. } = at;
        let inputs = SgdInputs { weight, gradient, buffer: &states[0], learning_rate, scale };
        let new = Sgd { weight_decay, ..*self }.update(inputs);
        Updated { weight: new.weight, states: vec![new.buffer] }
    }

    fn is_element_wise(&self) -> bool {
        true
    }
}
