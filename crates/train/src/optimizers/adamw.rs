//! Adam with decoupled weight decay.

use super::{AdamW, Hyperparameters, Optimizer, Update, Updated};
use gradus_engine::Shape;
use gradus_engine::ops::AdamWInputs;

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.1, beta1: 0.9, beta2: 0.95 };

pub(super) fn with(Hyperparameters { weight_decay, beta1, beta2 }: Hyperparameters) -> AdamW {
    AdamW { beta1, beta2, epsilon: 1e-8, weight_decay }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("first", shape.clone()), ("second", shape.clone())]
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, step } = at;
        let (first_moment, second_moment) = (&states[0], &states[1]);
        let inputs = AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step, scale };
        let new = AdamW { weight_decay, ..*self }.update(inputs);
        Updated { weight: new.weight, states: vec![new.first_moment, new.second_moment] }
    }

    fn is_element_wise(&self) -> bool {
        true
    }
}
