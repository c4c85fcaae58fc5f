//! Sophia: momentum divided by an estimate of the Hessian's diagonal, and clipped.

use super::{Hyperparameters, Optimizer, Refresh, Refreshing, Update, Updated};
use gradus_engine::{Shape, Tensor};

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.1, beta1: 0.96, beta2: 0.99 };

pub(super) fn with(Hyperparameters { weight_decay, beta1, beta2 }: Hyperparameters) -> Sophia {
    Sophia { beta1, beta2, weight_decay, ..Sophia::default() }
}

/// Moves each number by its momentum over the curvature of the loss there, and by the learning rate at most: far where the loss
/// is flat, and by the sign of the momentum where it does not curve upwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sophia {
    /// Momentum's share kept.
    pub beta1: f32,
    /// The share of the curvature that is kept when there is a new estimate.
    pub beta2: f32,
    /// Decay of matrices, times the learning rate.
    pub weight_decay: f32,
    /// What the curvature is multiplied by: the larger, the fewer numbers are clipped.
    pub bandwidth: f32,
    /// Steps between estimates of the curvature.
    pub every: u64,
}

impl Default for Sophia {
    fn default() -> Sophia {
        let Hyperparameters { weight_decay, beta1, beta2 } = USUAL;
        Sophia { beta1, beta2, weight_decay, bandwidth: 0.01, every: 10 }
    }
}

/// The curvature at least, so that nothing is divided by zero.
const EPSILON: f32 = 1e-12;

impl Optimizer for Sophia {
    fn name(&self) -> &'static str {
        "sophia"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("first", shape.clone()), ("curvature", shape.clone())]
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, .. } = at;
        let (momentum, curvature) = (&states[0], &states[1]);
        let momentum = momentum * self.beta1 + gradient * scale * (1.0 - self.beta1);
        let floor = curvature.full_like(EPSILON);
        let direction = (&momentum / (curvature * self.bandwidth).maximum(&floor)).clamp(-1.0, 1.0);
        let kept = 1.0 - learning_rate * weight_decay;
        Updated { weight: weight * kept - direction * learning_rate, states: vec![momentum, curvature.clone()] }
    }

    fn is_element_wise(&self) -> bool {
        true
    }

    fn refresh(&self) -> Option<Refresh> {
        Some(Refresh { every: self.every, by_curvature: true })
    }

    #[track_caller]
    fn refreshed(&self, at: Refreshing<'_>) -> Vec<Tensor> {
        let (momentum, curvature) = (&at.states[0], &at.states[1]);
        let estimate = at.curvature.expect("it was asked for");
        vec![momentum.clone(), curvature * self.beta2 + estimate * (1.0 - self.beta2)]
    }
}
