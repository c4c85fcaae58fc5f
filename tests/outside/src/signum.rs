//! An optimizer that follows the sign of a moving average of the gradient.

use gradus::Shape;
use gradus::optimizers::{Optimizer, Update, Updated};

/// Sign descent with momentum.
#[derive(Debug)]
pub struct Signum {
    /// The share of the average that is kept.
    pub beta: f32,
}

impl Optimizer for Signum {
    fn name(&self) -> &'static str {
        "signum"
    }

    fn weight_decay(&self) -> f32 {
        0.0
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("average", shape.clone())]
    }

    fn update(&self, at: Update<'_>) -> Updated {
        let average = &at.states[0] * self.beta + at.gradient * at.scale * (1.0 - self.beta);
        let sign = &average / (average.abs() + 1e-12);
        let decayed = at.weight * (1.0 - at.learning_rate * at.weight_decay);
        Updated { weight: decayed - sign * at.learning_rate, states: vec![average] }
    }
}
