//! An image model as what is trained, and as what is asked.

use super::{IMAGE, LABEL, OTHER, SHARE};
use crate::losses::{ClassOptions, Reduction, cross_entropy};
use crate::models::vision::ImageModel;
use crate::parameters::Parameters;
use crate::step::{Inputs, Objective};
use gradus_engine::{DType, Tensor};

/// What an evaluation gives of each image: its loss, the class that is likeliest, and how many others are at least as likely as
/// the right one.
pub const LOSSES: &str = "losses";
/// See [`LOSSES`].
pub const LIKELIEST: &str = "likeliest";
/// See [`LOSSES`].
pub const AHEAD: &str = "ahead";

/// A model that learns to tell classes.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// The model.
    pub model: ImageModel,
    /// The share of the target that is spread over all classes.
    pub label_smoothing: f32,
    /// Whether images are mixed.
    pub mixes: bool,
}

impl Classifier {
    /// The logits of the images.
    #[track_caller]
    pub fn logits(model: &ImageModel, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        model.logits(parameters, &inputs.get(IMAGE, DType::I32, model.size))
    }

    /// The losses [b] of logits with the classes of an input, smoothed only in training.
    #[track_caller]
    fn against(&self, parameters: &Parameters, logits: &Tensor, classes: &Tensor) -> Tensor {
        let label_smoothing = if parameters.is_training() { self.label_smoothing } else { 0.0 };
        cross_entropy(
            logits,
            classes,
            ClassOptions { label_smoothing, reduction: Reduction::None, ..Default::default() },
        )
    }
}

impl Objective for Classifier {
    #[track_caller]
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        let logits = Classifier::logits(&self.model, parameters, inputs); // [b, classes]
        let own = self.against(parameters, &logits, &inputs.get(LABEL, DType::I32, [])); // [b]
        if !self.mixes {
            return own;
        }
        let other = self.against(parameters, &logits, &inputs.get(OTHER, DType::I32, [])); // [b]
        let share = inputs.get(SHARE, DType::F32, []); // [b]
        // What is evaluated is not mixed.
        if parameters.is_training() { &own * &share + other * (1.0 - share) } else { own }
    }

    #[track_caller]
    fn judged(&self, parameters: &Parameters, inputs: &Inputs) -> Vec<(&'static str, Tensor)> {
        let logits = Classifier::logits(&self.model, parameters, inputs); // [b, classes]
        let labels = inputs.get(LABEL, DType::I32, []); // [b]
        let losses = self.against(parameters, &logits, &labels);
        let right = logits.gather(-1, &labels.unsqueeze(-1)); // [b, 1]
        // Counted by those that are less likely: what is not a number is not.
        let behind = logits.less(&right.broadcast(logits.shape())).sum(&[-1]); // [b]
        let ahead = (self.model.classes - 1) as f32 - behind;
        vec![(LOSSES, losses), (LIKELIEST, logits.argmax(-1)), (AHEAD, ahead)]
    }
}
