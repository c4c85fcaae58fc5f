//! Images: sets of them in files or drawn, batches decoded ahead, runs of `gradus train-images`, and what a trained model says.

mod classify;
mod config;
mod confusion;
mod decode;
mod drawn;
mod draws;
mod files;
mod font;
mod framing;
mod objective;
mod run;
mod set;
mod source;
mod view;

pub use classify::{Answer, classify};
pub use config::{ImagesConfig, Size};
pub use framing::{Filter, Fit, Framing, Odd};
pub use objective::Classifier;
pub use run::train;
pub use set::ImageSet;
pub use source::{ImageSource, Loading};
pub use view::Augmentation;

/// The inputs of an image model: pixels [b, h, w] as [`crate::models::vision::pixel`] makes them, and classes `[b]`.
pub const IMAGE: &str = "image";
/// See [`IMAGE`].
pub const LABEL: &str = "label";
/// Where images are mixed: the class of the other image, and what the own one counts for, `[b]` each.
pub const OTHER: &str = "other";
/// See [`OTHER`].
pub const SHARE: &str = "share";
