//! Two-dimensional convolution, and its gradients with respect to either operand.
//!
//! The three are one bilinear form: every product of a source element, a weight and a target. The result and its
//! gradient with respect to the input are both correlations of planes with weights ([`Correlation`]); the gradient
//! with respect to the weights is a product of planes with planes ([`WeightGradient`]). All of them gather the
//! sources of a chunk of positions into scratch as a matrix and multiply it there in register tiles, so the matrix
//! of all positions never exists.

mod correlation;
mod gather;
mod tile;
mod weight_gradient;

#[cfg(test)]
mod tests;

pub use correlation::{Correlation, CorrelationPlan, PackWeights};
pub use weight_gradient::{SumPartials, WeightGradient, WeightGradientPlan};

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

/// Multiplications of a part: enough to be worth handing to another thread, few enough to balance.
const PART_PRODUCTS: usize = 512 * 1024;
/// Rows of the gathered matrix that are in scratch at once.
const ROWS: usize = 128;
/// Rows of the product that a part computes.
const BLOCK: usize = 64;

/// Positions that are gathered at once when the matrix has `rows` rows: what the first-level cache can hold.
fn chunk_positions(rows: usize, positions: usize) -> usize {
    let fitting = 64 * ROWS / rows.clamp(16, ROWS);
    fitting.next_multiple_of(64).min(positions.next_multiple_of(64))
}
