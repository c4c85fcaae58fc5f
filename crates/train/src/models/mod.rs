//! Causal language models, written once on tensors: what one is, and the families that are built in. Models of images are in
//! [`vision`].

mod causal;
mod config;
mod families;
mod presets;
mod products;
mod rope;
pub mod vision;

pub use causal::{Blocks, CausalModel, IGNORED_TARGET, KeyValueContext, WholeSequences};
pub(crate) use config::MOST_LAYERS;
pub use config::ModelConfig;
pub use families::Family;
pub use presets::{PRESETS, Preset};
pub use rope::RopeScaling;

pub use crate::parameters::{Initializer, Parameter, Parameters};

#[cfg(test)]
mod tests;
