//! Two-dimensional convolution, and its gradients with respect to either operand.
//!
//! The three are one bilinear form: every product of a source element, a weight and a target. The result and its
//! gradient with respect to the input are both correlations of planes with weights ([`Correlation`]); the gradient
//! with respect to the weights is a product of planes with planes ([`WeightGradient`]). All of them copy the sources of
//! a rectangle of positions to scratch once (`frame`) and multiply them there in register tiles, which read the
//! sources of each tap of the filter where they lie: the matrix of all taps never exists. Correlations with filters
//! of 3 x 3 that move by one, and their gradients, are computed in fewer products (`winograd`, `winograd_weights`). Filters
//! of one element are matrix products ([`Pointwise`]).

mod ahead;
mod axis;
mod correlation;
mod direct;
mod frame;
mod plane;
mod pointwise;
mod rows;
mod slide;
mod sum_images;
mod tile;
mod vector;
mod ways;
mod weight_gradient;
mod winograd;
mod winograd_tiles;
mod winograd_weights;

#[cfg(test)]
mod tests;

pub use correlation::{Correlation, CorrelationPlan, PackWeights};
pub use pointwise::Pointwise;
pub use sum_images::SumImages;
pub use weight_gradient::{WeightGradient, WeightGradientPlan};

/// The sizes of a convolution. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Images in the batch.
    pub images: usize,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Input channels of each group.
    pub channels: usize,
    /// Output channels of each group.
    pub filters: usize,
    /// The size of an input plane.
    pub input: [usize; 2],
    /// The size of a filter.
    pub kernel: [usize; 2],
    /// The size of an output plane.
    pub output: [usize; 2],
    /// How far the window moves from one output to the next.
    pub stride: [usize; 2],
    /// Zeros around the input, on each side.
    pub padding: [usize; 2],
    /// How far apart the input elements under a filter lie.
    pub dilation: [usize; 2],
}

impl Geometry {
    /// Weights between one channel and one filter.
    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }
}

/// The most weights of which every image has a sum of its own, so that there are parts enough. More are enough parts.
const APART: usize = 96 * 1024;
/// Multiplications of a part: enough to be worth handing to another thread, few enough to balance.
const PART_PRODUCTS: usize = 512 * 1024;
