//! Convolutions with filters of one element: at every position, channels times weights, which are plain matrix products of
//! planes where they lie.
//!
//! Every element is one sum in the order of the depth, as in the other kernels, and goes on from image to image.

use super::{APART, Geometry, SumImages};
use crate::gemm::{BatchAxis, Gemm, Matrix, MatrixMut, Sizes};
use crate::{Element, In, Isa, Out};

/// The smallest planes whose rows are worth a product each.
const PLANE: usize = 32;

/// Such a convolution, as products.
#[derive(Clone, Copy, Debug)]
pub struct Pointwise {
    isa: Isa,
    geometry: Geometry,
    workers: usize,
}

impl Pointwise {
    /// If the convolution is one, for so many workers. It follows from the sizes of an image.
    pub fn of(isa: Isa, geometry: &Geometry, workers: usize) -> Option<Pointwise> {
        let Geometry { images, kernel, stride, padding, input, .. } = *geometry;
        let is_one = kernel == [1, 1] && stride == [1, 1] && padding == [0, 0];
        // Of no images, nothing would write the gradient of the weights.
        (is_one && images > 0 && input[0] * input[1] >= PLANE).then_some(Pointwise {
            isa,
            geometry: *geometry,
            workers,
        })
    }

    fn plane(&self) -> usize {
        self.geometry.input[0] * self.geometry.input[1]
    }

    /// The weights of a group, a row a filter.
    fn weights<T>(&self, elements: In<T>) -> Matrix<T> {
        Matrix { elements, row_stride: self.geometry.channels, column_stride: 1 }
    }

    fn planes<T>(&self, elements: In<T>) -> Matrix<T> {
        Matrix { elements, row_stride: self.plane(), column_stride: 1 }
    }

    /// Weights times the planes of every group of every image.
    fn correlated<T: Element>(
        &self,
        weights: Matrix<T>,
        sizes: [usize; 2],
        source: In<T>,
        target: Out<T>,
    ) -> Gemm<T, T> {
        let Geometry { images, groups, channels, filters, .. } = self.geometry;
        let ([sources, targets], plane) = (sizes, self.plane());
        let sizes = Sizes { rows: targets, columns: plane, depth: sources };
        let axis = |size, groups_apart: usize, weights| BatchAxis {
            size,
            a_stride: weights,
            b_stride: groups_apart * sources * plane,
            c_stride: groups_apart * targets * plane,
        };
        let target = MatrixMut { elements: target, row_stride: plane };
        let product = Gemm::new(self.isa, sizes, weights, self.planes(source), target);
        product
            .workers(self.workers)
            .columns_in_place()
            .batched(&[axis(images, groups, 0), axis(groups, 1, filters * channels)])
    }

    /// Convolution.
    pub fn forward<T: Element>(&self, x: In<T>, weights: In<T>, y: Out<T>) -> Gemm<T, T> {
        self.correlated(self.weights(weights), [self.geometry.channels, self.geometry.filters], x, y)
    }

    /// The gradient with respect to the input.
    pub fn backward<T: Element>(&self, g: In<T>, weights: In<T>, dx: Out<T>) -> Gemm<T, T> {
        let weights = self.weights(weights).transposed();
        self.correlated(weights, [self.geometry.filters, self.geometry.channels], g, dx)
    }

    fn weight_count(&self) -> usize {
        self.geometry.groups * self.geometry.filters * self.geometry.channels
    }

    /// Elements of scratch for the sums of the images, where each has its own; none where one goes on from the other.
    pub fn partials(&self) -> usize {
        if self.weight_count() <= APART { self.geometry.images * self.weight_count() } else { 0 }
    }

    /// Whether sums of an image have a row for each channel, and not for each filter: rows are read where they lie, and columns are packed,
    /// of which there are fewer then.
    fn has_channels_in_rows(&self) -> bool {
        self.partials() > 0 && self.geometry.channels > self.geometry.filters
    }

    /// The sum of what [`Pointwise::weight_gradient`] wrote to scratch.
    pub fn sum_images<T: Element>(&self, partials: In<f32>, y: Out<T>) -> SumImages<T> {
        let sum = SumImages::new(self.isa, partials, y);
        match self.has_channels_in_rows() {
            true => sum.transposing([self.geometry.channels, self.geometry.filters]),
            false => sum,
        }
    }

    /// The gradient with respect to the weights: to scratch of [`Pointwise::partials`] elements, which [`Pointwise::sum_images`] adds
    /// up; or if it has none, to the result, one image after another, going on from what it holds if told so.
    pub fn weight_gradient<T: Element>(
        &self,
        [x, g]: [In<T>; 2],
        partials: Out<f32>,
        y: Out<f32>,
        accumulate: bool,
    ) -> Vec<Gemm<T, T>> {
        let Geometry { images, groups, channels, filters, .. } = self.geometry;
        let plane = self.plane();
        let [rows, columns] = if self.has_channels_in_rows() { [channels, filters] } else { [filters, channels] };
        let sizes = Sizes { rows, columns, depth: plane };
        let axis = |size, groups_apart: usize| BatchAxis {
            size,
            a_stride: groups_apart * rows * plane,
            b_stride: groups_apart * columns * plane,
            c_stride: groups_apart * filters * channels,
        };
        let from = |elements: In<T>, start: usize| {
            self.planes(In::new(elements.as_ptr().wrapping_add(start), elements.len() - start))
        };
        let product = |image: usize, target: Out<f32>| {
            let (g, x) = (from(g, image * groups * filters * plane), from(x, image * groups * channels * plane));
            let target = MatrixMut { elements: target, row_stride: columns };
            let [a, b] = if self.has_channels_in_rows() { [x, g] } else { [g, x] };
            Gemm::new(self.isa, sizes, a, b.transposed(), target).workers(self.workers)
        };
        if !partials.is_empty() {
            return vec![product(0, partials).batched(&[axis(images, groups), axis(groups, 1)])];
        }
        let of_image =
            |image: usize| product(image, y).batched(&[axis(groups, 1)]).accumulating(accumulate || image > 0);
        (0..images).map(of_image).collect()
    }
}
