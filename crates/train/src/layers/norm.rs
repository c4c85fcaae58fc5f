//! Norms.

use crate::parameters::{Initializer, Parameters};
use gradus_engine::Tensor;

/// Rows along the last axis with mean 0 and variance 1, times `weight`, plus `bias`: `[width]` each.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f32,
}

impl LayerNorm {
    /// Of rows of this width.
    #[track_caller]
    pub fn new(parameters: &Parameters, width: usize) -> LayerNorm {
        let weight = parameters.get("weight", [width], Initializer::Ones);
        LayerNorm { weight, bias: parameters.get("bias", [width], Initializer::Zeros), epsilon: 1e-5 }
    }

    /// With another number added to the variance than 1e-5.
    pub fn with_epsilon(self, epsilon: f32) -> LayerNorm {
        LayerNorm { epsilon, ..self }
    }

    /// [..., width] to the same.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(&self.weight, &self.bias, self.epsilon)
    }
}

/// Rows along the last axis divided by their root mean square, times `weight` `[width]`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    /// Of rows of this width.
    #[track_caller]
    pub fn new(parameters: &Parameters, width: usize) -> RmsNorm {
        RmsNorm { weight: parameters.get("weight", [width], Initializer::Ones), epsilon: f32::EPSILON }
    }

    /// With another number added to the mean square than [`f32::EPSILON`].
    pub fn with_epsilon(self, epsilon: f32) -> RmsNorm {
        RmsNorm { epsilon, ..self }
    }

    /// [..., width] to the same.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(&self.weight, self.epsilon)
    }
}

/// Each channel of [n, channels, ...] with mean 0 and variance 1 over the batch, times `weight`, plus `bias`: `[channels]`
/// each.
///
/// While the model is trained, the statistics are those of the micro-batch at hand, and a step takes `running_mean` and
/// `running_var` towards their mean over the step's micro-batches, by a share of 0.1; else those are taken. So, unlike all
/// other layers, a batch in several micro-batches is not what the same batch at once is.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    parameters: Parameters,
    epsilon: f32,
    momentum: f32,
}

impl BatchNorm {
    /// Of so many channels.
    #[track_caller]
    pub fn new(parameters: &Parameters, channels: usize) -> BatchNorm {
        BatchNorm {
            weight: parameters.get("weight", [channels], Initializer::Ones),
            bias: parameters.get("bias", [channels], Initializer::Zeros),
            running_mean: parameters.statistics("running_mean", [channels], 0.0),
            running_var: parameters.statistics("running_var", [channels], 1.0),
            parameters: parameters.clone(),
            epsilon: 1e-5,
            momentum: 0.1,
        }
    }

    /// With another number added to the variance than 1e-5.
    pub fn with_epsilon(self, epsilon: f32) -> BatchNorm {
        BatchNorm { epsilon, ..self }
    }

    /// With another share than 0.1 by which the running statistics move.
    pub fn with_momentum(self, momentum: f32) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }

    /// [n, channels, ...] to the same.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let (weight, bias) = (&self.weight, &self.bias);
        if !self.parameters.is_training() {
            return x.batch_norm_with(&self.running_mean, &self.running_var, weight, bias, self.epsilon);
        }
        let norm = x.batch_norm(weight, bias, self.epsilon);
        let count = x.shape().elements().checked_div(weight.shape().elements()).unwrap_or(0);
        // PyTorch estimates the variance that the batch was drawn from.
        let unbiased = count as f32 / count.saturating_sub(1).max(1) as f32;
        self.follow(&self.running_mean, &norm.mean);
        self.follow(&self.running_var, &(norm.variance * unbiased));
        norm.output
    }

    #[track_caller]
    fn follow(&self, running: &Tensor, batch: &Tensor) {
        let batch = batch.stop_gradient();
        self.parameters.update(running, &(running * (1.0 - self.momentum) + batch * self.momentum));
    }
}
