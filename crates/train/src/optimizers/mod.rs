//! Optimizers: the update of every weight, traced like the rest of the step, with what it remembers as states.
//!
//! A rule is an [`Optimizer`], one file each here, and any type of another crate that implements it. A
//! [`GroupedOptimizer`] applies one to any named tensors, by groups that differ in learning rate and decay.

mod average;
mod groups;

pub use average::WeightAverage;
pub use gradus_engine::ops::{Adafactor, AdamW, Lion, Sgd};
pub(crate) use groups::Part;
pub use groups::{Group, GroupedOptimizer, StepNumbers};
pub use muon::Muon;
pub use soap::Soap;
pub use sophia::Sophia;

use gradus_engine::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// A rule by which a weight follows its gradient.
///
/// ```
/// use gradus_engine::Shape;
/// use gradus_train::optimizers::{Optimizer, Update, Updated};
///
/// /// Each number moves by the sign of its gradient.
/// #[derive(Debug)]
/// struct SignSgd;
///
/// impl Optimizer for SignSgd {
///     fn name(&self) -> &'static str {
///         "sign-sgd"
///     }
///     fn weight_decay(&self) -> f32 {
///         0.0
///     }
///     fn states(&self, _: &Shape) -> Vec<(&'static str, Shape)> {
///         vec![]
///     }
///     fn update(&self, at: Update<'_>) -> Updated {
///         let decayed = at.weight * (1.0 - at.learning_rate * at.weight_decay);
///         let sign = at.gradient / (at.gradient.abs() + 1e-30);
///         Updated { weight: decayed - sign * at.learning_rate, states: vec![] }
///     }
/// }
/// ```
pub trait Optimizer: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// The decay of weights that no group says otherwise of.
    fn weight_decay(&self) -> f32;

    /// What it remembers of a weight of this shape: states in f32, zero at first.
    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)>;

    /// Moves a weight and its states on by one step.
    fn update(&self, at: Update<'_>) -> Updated;

    /// Which weights, of all of these shapes, are updated together: their numbers, batch by batch. Each by itself, unless told.
    fn together(&self, shapes: &[Shape]) -> Vec<Vec<usize>> {
        (0..shapes.len()).map(|index| vec![index]).collect()
    }

    /// Moves the weights of a batch on, each as [`Optimizer::update`] would.
    fn update_together(&self, all: &[Update<'_>]) -> Vec<Updated> {
        all.iter().map(|at| self.update(*at)).collect()
    }

    /// Whether what becomes of a number depends on its own gradient and states alone, all of which are of the weight's shape:
    /// then ranks can have a part of every weight each.
    fn is_element_wise(&self) -> bool {
        false
    }

    /// What it does besides once in some steps; `None`: nothing.
    fn refresh(&self) -> Option<Refresh> {
        None
    }

    /// The new states of a weight once in those steps, before the update, in the order of [`Optimizer::states`].
    fn refreshed(&self, at: Refreshing<'_>) -> Vec<Tensor> {
        at.states.to_vec()
    }
}

/// What an optimizer does besides its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// In each so many steps, and at the first.
    pub every: u64,
    /// Whether it takes an estimate of the diagonal of the loss's Hessian.
    pub by_curvature: bool,
}

/// What states are made new from.
#[derive(Clone, Copy, Debug)]
pub struct Refreshing<'a> {
    /// The shape of the weight.
    pub shape: &'a Shape,
    /// Its states, in the order of [`Optimizer::states`].
    pub states: &'a [Tensor],
    /// An estimate of the diagonal of the Hessian, of the weight's shape, if one was asked for.
    pub curvature: Option<&'a Tensor>,
}

/// What an update of a weight goes by.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The weight, in f32.
    pub weight: &'a Tensor,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// The states, in the order of [`Optimizer::states`].
    pub states: &'a [Tensor],
    /// The learning rate of its group: one f32.
    pub learning_rate: &'a Tensor,
    /// The decay of its group, times the learning rate.
    pub weight_decay: f32,
    /// What the gradient is to be multiplied by, by clipping and for the scale of the loss: one f32.
    pub scale: &'a Tensor,
    /// The number of this step as one f32, 1 at the first.
    pub step: &'a Tensor,
}

/// What an update gives.
#[derive(Clone, Debug)]
pub struct Updated {
    /// The new weight.
    pub weight: Tensor,
    /// The new states, in the order of [`Optimizer::states`].
    pub states: Vec<Tensor>,
}

/// The numbers that state one of the listed optimizers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyperparameters {
    /// Decay of matrices, times the learning rate.
    pub weight_decay: f32,
    /// First moment's share kept; the momentum of SGD. Adafactor has none.
    pub beta1: f32,
    /// Second moment's share kept; that of Lion's only moment. SGD has none, and Adafactor's follows from the step.
    pub beta2: f32,
}

/// The optimizers that a configuration can name: a file each, with what is usual and how it is made.
macro_rules! listed {
    ($($kind:ident in $file:ident),* $(,)?) => {
        $(mod $file;)*

        /// An optimizer that a configuration can name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[allow(missing_docs)]
        pub enum OptimizerKind { $($kind),* }

        impl OptimizerKind {
            /// All of them.
            pub const ALL: &[OptimizerKind] = &[$(OptimizerKind::$kind),*];

            /// The usual settings for language models. Lion goes with a rate that is smaller than AdamW's and SGD with one
            /// that is larger, so their decays, which are times the rate, are as much larger and smaller.
            pub fn usual(self) -> Hyperparameters {
                match self { $(OptimizerKind::$kind => $file::USUAL),* }
            }

            /// The rule with these settings, and those of weights that it is not meant for.
            pub fn grouped(self, settings: Hyperparameters) -> GroupedOptimizer {
                match self { $(OptimizerKind::$kind => $file::with(settings).into()),* }
            }
        }
    };
}

listed! {
    Adamw in adamw,
    Sgd in sgd,
    Lion in lion,
    Adafactor in adafactor,
    Muon in muon,
    Sophia in sophia,
    Soap in soap,
}

/// Whether a weight is a matrix between what a model takes and what it gives: its layers have numbers in their names, as
/// `h.0.mlp.c_fc.weight` has, and tables of tokens, heads and the first convolution have none.
pub fn is_hidden_matrix(name: &str, shape: &Shape) -> bool {
    shape.rank() >= 2 && name.split('.').any(|piece| piece.parse::<usize>().is_ok())
}

/// A rule for hidden matrices, and AdamW with its usual first moment for embeddings, heads, norms and biases.
fn of_hidden_matrices(rule: impl Optimizer + 'static, settings: Hyperparameters) -> GroupedOptimizer {
    let others = adamw::with(Hyperparameters { beta1: adamw::USUAL.beta1, ..settings });
    GroupedOptimizer::new(rule).rule_for(|name, shape| !is_hidden_matrix(name, shape), others)
}

#[cfg(test)]
mod tests;
