//! Lion: the sign of a moment.

use super::{Hyperparameters, Lion, Optimizer, Update, Updated};
use gradus_engine::Shape;
use gradus_engine::ops::LionInputs;

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.3, beta1: 0.9, beta2: 0.99 };

pub(super) fn with(Hyperparameters { weight_decay, beta1, beta2 }: Hyperparameters) -> Lion {
    Lion { beta1, beta2, weight_decay }
}

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("first", shape.clone())]
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, .. } = at;
        let inputs = LionInputs { weight, gradient, moment: &states[0], learning_rate, scale };
        let new = Lion { weight_decay, ..*self }.update(inputs);
        Updated { weight: new.weight, states: vec![new.moment] }
    }

    fn is_element_wise(&self) -> bool {
        true
    }
}
