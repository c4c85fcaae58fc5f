//! Gradient clipping: by norm and by value as traced pieces, and the adaptive threshold of the norm from step to step.

use crate::config::Clip;
use gradus_engine::Tensor;
pub use gradus_engine::ops::clip_by_value;
use serde::{Deserialize, Serialize};

/// What all gradients of this norm are to be multiplied by, so that their norm is at most the threshold.
#[track_caller]
pub fn clip_by_norm(norm: &Tensor, threshold: &Tensor) -> Tensor {
    (threshold / (norm + 1e-6)).minimum(&norm.ones_like())
}

/// Share of the old mean and variance kept at each step: about the last hundred steps count.
const KEPT: f64 = 0.99;
/// Steps whose norms are only watched, so that the first few do not set the threshold.
const WATCHED: u64 = 20;

/// Running statistics of the gradient norm, from which the adaptive threshold comes. Part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NormStatistics {
    steps: u64,
    mean: f64,
    variance: f64,
}

impl NormStatistics {
    /// The norm above which this step's gradients are scaled down.
    pub fn threshold(&self, clip: Clip) -> f32 {
        match clip {
            Clip::Norm(norm) => norm as f32,
            Clip::Adaptive if self.steps >= WATCHED => (self.mean + 2.0 * self.variance.sqrt()) as f32,
            Clip::None | Clip::Value(_) | Clip::Adaptive => f32::INFINITY,
        }
    }

    /// Takes a step's norm into account; one that was clipped counts as the threshold, so that a burst of large
    /// gradients does not lift it.
    pub fn observe(&mut self, norm: f32, clip: Clip) {
        let norm = (norm as f64).min(self.threshold(clip) as f64);
        self.steps += 1;
        // The first steps count alike; later ones fade.
        let kept = KEPT.min(1.0 - 1.0 / self.steps as f64);
        let deviation = norm - self.mean;
        self.mean += (1.0 - kept) * deviation;
        self.variance = kept * (self.variance + (1.0 - kept) * deviation * deviation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adaptive_threshold_is_mean_plus_two_deviations() {
        let mut statistics = NormStatistics::default();
        assert_eq!(statistics.threshold(Clip::Adaptive), f32::INFINITY);
        for step in 0..4000 {
            statistics.observe(if step % 2 == 0 { 1.0 } else { 3.0 }, Clip::Adaptive);
        }
        // Mean 2, deviation 1.
        assert!((statistics.threshold(Clip::Adaptive) - 4.0).abs() < 0.05, "{statistics:?}");
        let before = statistics.threshold(Clip::Adaptive);
        statistics.observe(1e6, Clip::Adaptive);
        assert!(statistics.threshold(Clip::Adaptive) < 1.2 * before, "a burst counts as the threshold");
        assert_eq!(statistics.threshold(Clip::Norm(0.5)), 0.5);
        assert_eq!(statistics.threshold(Clip::None), f32::INFINITY);
    }
}
