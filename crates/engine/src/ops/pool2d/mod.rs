//! Pooling of planes `[n, c, h, w]`: the largest or the mean of each window.

mod average;
mod max;

pub use average::{AvgPool2d, AvgPool2dGradient};
pub use max::{MaxPool2d, MaxPool2dGather, MaxPool2dGradient};

use super::conv2d::window_outputs;
use super::*;
use crate::Shape;
use gradus_cuda::{Operand, Source, sources};
use gradus_kernels::pooling as kernel;

/// Threads of a block of the CUDA kernels.
const THREADS: usize = 256;

/// The window and how it moves. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// The size of the window.
    pub kernel: [usize; 2],
    /// How far the window moves from one output to the next.
    pub stride: [usize; 2],
    /// What lies around the planes, on each side: at most half a window.
    pub padding: [usize; 2],
}

/// The window and how it moves along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool1dOptions {
    /// The size of the window.
    pub kernel: usize,
    /// How far the window moves from one output to the next.
    pub stride: usize,
    /// What lies around the rows, on each side: at most half a window.
    pub padding: usize,
}

impl Pool1dOptions {
    /// Windows of this size side by side.
    pub fn new(kernel: usize) -> Pool1dOptions {
        Pool1dOptions { kernel, stride: kernel, padding: 0 }
    }
}

impl From<Pool1dOptions> for Pool2dOptions {
    /// Of rows as planes of one row.
    fn from(options: Pool1dOptions) -> Pool2dOptions {
        let Pool1dOptions { kernel, stride, padding } = options;
        Pool2dOptions { kernel: [1, kernel], stride: [1, stride], padding: [0, padding] }
    }
}

impl Pool2dOptions {
    /// Windows of this size side by side.
    pub fn new(kernel: [usize; 2]) -> Pool2dOptions {
        Pool2dOptions { kernel, stride: kernel, padding: [0, 0] }
    }

    /// The shape of the result of pooling planes of this shape, or why they do not fit.
    fn outputs(&self, x: &Shape) -> Result<Shape, Mismatch> {
        let &[images, channels, h, w] = &x[..] else {
            return Err(Mismatch::Shape(format!("the operand must have 4 axes [n, c, h, w], not {}", x.rank())));
        };
        let size = |axis: usize, input: usize| {
            let (kernel, padding) = (self.kernel[axis], self.padding[axis]);
            if padding > kernel / 2 {
                let problem = format!("padding {padding} is more than half of the window's {kernel}; pad first");
                return Err(Mismatch::Parameter(problem));
            }
            window_outputs(input, kernel, self.stride[axis], padding, 1)
        };
        Ok([images, channels, size(0, h)?, size(1, w)?].into())
    }

    /// The sizes that the kernels take.
    fn sizes(&self, x: &Shape, y: &Shape) -> kernel::Windows {
        let Pool2dOptions { kernel, stride, padding } = *self;
        let (input, output) = ([x[2], x[3]], [y[2], y[3]]);
        kernel::Windows { planes: x[0] * x[1], input, kernel, stride, padding, output }
    }

    /// The CUDA kernel of this name over planes of these shapes, run for so many elements.
    fn cuda(&self, entry: &'static str, [x, y]: [&Operand; 2], count: usize) -> Source {
        let Pool2dOptions { kernel, stride, padding } = self;
        let (input, output) = ([x.shape[2], x.shape[3]], [y.shape[2], y.shape[3]]);
        let sizes =
            [("INPUT", &input), ("OUTPUT", &output), ("KERNEL", kernel), ("STRIDE", stride), ("PADDING", padding)];
        let mut source = Source::new(entry, sources::POOL).size("COUNT", count).size("ELEMENTS", x.elements());
        for (name, &[vertical, horizontal]) in sizes {
            source = source.constant(&format!("{name}_H"), format_args!("((i64){vertical})"));
            source = source.constant(&format!("{name}_W"), format_args!("((i64){horizontal})"));
        }
        source = source.constant("MAXIMUM", (entry == "max_pool") as u8).element("x_t", x.element);
        let source = source.constant("INPUT_GRADIENT", (entry == "avg_pool_gradient") as u8);
        source.size("RESULTS", y.elements()).constant("THREADS", THREADS)
    }

    /// The indices in `x` of the elements of the window that gives `y[output]`, row by row.
    fn elements(&self, x: &Shape, output: &[usize]) -> impl Iterator<Item = [usize; 4]> {
        let &[image, channel, oy, ox] = output else { unreachable!("planes have 4 axes") };
        let span = |axis: usize, at: usize, size: usize| {
            // Positions in the padded plane, so that none is negative.
            let (start, padding) = (at * self.stride[axis], self.padding[axis]);
            start.max(padding) - padding..(start + self.kernel[axis]).min(size + padding) - padding
        };
        let (rows, columns) = (span(0, oy, x[2]), span(1, ox, x[3]));
        rows.flat_map(move |y| columns.clone().map(move |x| [image, channel, y, x]))
    }

    fn window_elements(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn attributes(&self) -> String {
        let Pool2dOptions { kernel, stride, padding } = self;
        format!("window {kernel:?}, stride {stride:?}, padding {padding:?}")
    }
}

/// The last two axes of planes.
fn plane(x: &Shape) -> [usize; 2] {
    [x[2], x[3]]
}

/// Checks that an operand is made of planes.
fn unless_planes(what: &str, ty: &TensorType) -> Result<(), Mismatch> {
    match ty.shape.rank() {
        4 => Ok(()),
        rank => Err(Mismatch::Shape(format!("{what} must have 4 axes [n, c, h, w], not {rank}"))),
    }
}

/// The shapes that the cases share.
fn shapes() -> Vec<(&'static str, [usize; 4], Pool2dOptions)> {
    let window = |kernel, stride, padding| Pool2dOptions { kernel, stride, padding };
    vec![
        ("one number", [1, 1, 1, 1], window([1, 1], [1, 1], [0, 0])),
        ("side by side", [2, 3, 4, 6], window([2, 2], [2, 2], [0, 0])),
        ("with a rest", [1, 2, 5, 7], window([2, 3], [2, 3], [0, 0])),
        ("overlapping and padded", [2, 2, 5, 4], window([3, 3], [1, 2], [1, 1])),
        ("far apart", [1, 2, 7, 8], window([2, 1], [3, 4], [1, 0])),
        ("whole planes", [2, 3, 4, 5], window([4, 5], [1, 1], [0, 0])),
        ("no images", [0, 2, 4, 4], window([2, 2], [2, 2], [0, 0])),
        ("more than one part", [3, 5, 40, 41], window([3, 3], [2, 2], [1, 1])),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Pool1dOptions, Pool2dOptions};
    use crate::{DType, Tensor, Trace};

    fn refused(pool: impl Fn(&Tensor) -> Tensor) -> String {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [1, 2, 3, 4]);
        pool(&x).handle().expect_err("a window that does not fit").to_string()
    }

    #[test]
    fn what_does_not_fit_is_said_in_words() {
        let options = |kernel, padding| Pool2dOptions { kernel, stride: [2, 2], padding };
        let message = refused(|x| x.max_pool2d(options([2, 2], [0, 2])));
        assert!(message.contains("padding 2 is more than half of the window's 2"), "{message}");
        let message = refused(|x| x.avg_pool2d(options([6, 2], [1, 0])));
        assert!(message.contains("the smallest input that fits has 4"), "{message}");
        let message = refused(|x| x.max_pool2d(options([2, 0], [0, 0])));
        assert!(message.contains("must be at least 1"), "{message}");
        let message = refused(|x| x.max_pool1d(Pool1dOptions::new(2)));
        assert!(message.contains("takes tensors of 3 axes, not 4"), "{message}");
    }
}
