//! Exponential moving averages of weights.

use gradus_engine::{DType, Role, Routine, Tensor};

/// An exponential moving average of every weight, kept beside it: after `t` steps the mean of the weights after each of
/// them, of which each counts `decay` times as much as the one after it. So the first average is the first weight, and no
/// start is needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightAverage {
    /// How much of the average is kept at each step, in the long run.
    pub decay: f32,
}

impl WeightAverage {
    /// What the state of a weight's average is called.
    pub fn name(weight: &str) -> String {
        format!("average.{weight}")
    }

    /// Adds the average of a new weight to a routine. `step` is the number of the step, 1 at the first.
    #[track_caller]
    pub fn update(&self, routine: Routine, name: &str, new: &Tensor, step: &Tensor) -> Routine {
        let (average, updated) = self.updated(name, new, step);
        routine.assign(&average, &updated)
    }

    /// The state of the average and its new value.
    #[track_caller]
    pub(super) fn updated(&self, name: &str, new: &Tensor, step: &Tensor) -> (Tensor, Tensor) {
        let average =
            new.trace().zero_state_with_role(&WeightAverage::name(name), Role::Statistics, DType::F32, new.shape());
        let power = |exponent: &Tensor| step.full_like(self.decay).pow(exponent);
        let kept = self.decay * (1.0 - power(&(step - 1.0))) / (1.0 - power(step));
        // Written so that equal weights keep their average to the bit.
        let updated = &average + (new - &average) * (1.0 - kept);
        (average, updated)
    }
}
