//! Two-dimensional convolution, and convolution along one axis as its special case.
//!
//! Convolution is linear in the input and in the weights. So its gradients are two more such operations, and the
//! gradients of these are again among the three.

mod methods;
mod sizes;

pub(super) use sizes::window_outputs;
pub use sizes::{Conv1dOptions, Conv2dOptions};

use super::*;
use crate::{DType, Shape};
use gradus_cuda::{Source, sources};
use gradus_kernels::conv::{self as kernel, Geometry};
use methods::{Row, output_of, plane, shapes};
use sizes::{cost, every_product, input_shape, output_shape, size, weight_shape};
use std::sync::Arc;

/// `x: [n, c, h, w], weight: [o, c / groups, kh, kw] -> y: [n, o, oh, ow]`, without turning the filters around.
#[derive(Debug)]
pub struct Conv2d {
    options: Conv2dOptions,
}

/// `g: [n, o, oh, ow], weight -> dx: [n, c, h, w]`: the gradient with respect to an input of planes of this size.
#[derive(Debug)]
pub struct Conv2dInputGradient {
    options: Conv2dOptions,
    input: [usize; 2],
}

/// `x: [n, c, h, w], g: [n, o, oh, ow] -> dweight`: the gradient with respect to filters of this size.
#[derive(Debug)]
pub struct Conv2dWeightGradient {
    options: Conv2dOptions,
    kernel: [usize; 2],
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn attributes(&self) -> String {
        self.options.attributes()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let dtype = Mismatch::unless_same_float(inputs)?;
        let geometry = self.options.geometry(&inputs[0].shape, &inputs[1].shape)?;
        Ok(vec![TensorType::new(dtype, output_shape(&geometry))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (x, weight, g) = (&at.inputs[0], &at.inputs[1], &at.gradient(0));
        vec![
            at.wants(0).then(|| self.options.input_gradient(g, weight, plane(x))),
            at.wants(1).then(|| self.options.weight_gradient(x, g, plane(weight))),
        ]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.bilinear([0, 1], |x, weight| self.options.convolve(x, weight))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        cost(&self.geometry_of(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let mut y = Reals::zeros(&outputs[0]);
        let geometry = self.geometry_of(&inputs[0].shape, &inputs[1].shape);
        every_product(&geometry, |at_x, at_weight, at_y| {
            *y.at_mut(at_y) += inputs[0].at(at_x) * inputs[1].at(at_weight);
        });
        vec![y]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, x, weight, options) in shapes() {
            let build = move |t: &[Tensor]| vec![t[0].conv2d(&t[1], None, options)];
            cases.push(Case::new(name, &[&x, &weight], build));
        }
        cases.push(Case::new("with bias", &[&[2, 3, 4, 5], &[2, 3, 2, 2], &[2]], |t| {
            vec![t[0].conv2d(&t[1], Some(&t[2]), Conv2dOptions::default())]
        }));
        cases.push(Case::new("one axis", &[&[2, 3, 9], &[4, 3, 3], &[4]], |t| {
            vec![t[0].conv1d(&t[1], Some(&t[2]), Conv1dOptions { padding: 1, ..Default::default() })]
        }));
        cases.push(Case::new("one axis, strided, dilated, in groups", &[&[1, 4, 17], &[6, 2, 3]], |t| {
            vec![t[0].conv1d(&t[1], None, Conv1dOptions { stride: 2, padding: 3, dilation: 2, groups: 2 })]
        }));
        cases
    }
}

impl Operation for Conv2dInputGradient {
    fn name(&self) -> &'static str {
        "conv2d_input_gradient"
    }

    fn attributes(&self) -> String {
        format!("input {:?}, {}", self.input, self.options.attributes())
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let dtype = Mismatch::unless_same_float(inputs)?;
        let geometry = self.geometry(&inputs[0].shape, &inputs[1].shape)?;
        Mismatch::unless_shape("the gradient of the output", &inputs[0], &output_shape(&geometry))?;
        Ok(vec![TensorType::new(dtype, input_shape(&geometry))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (g, weight, gx) = (&at.inputs[0], &at.inputs[1], &at.gradient(0));
        vec![
            at.wants(0).then(|| self.options.convolve(gx, weight)),
            at.wants(1).then(|| self.options.weight_gradient(gx, g, plane(weight))),
        ]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.bilinear([0, 1], |g, weight| self.options.input_gradient(g, weight, self.input))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        cost(&self.geometry_of(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let mut dx = Reals::zeros(&outputs[0]);
        let geometry = self.geometry_of(&inputs[0].shape, &inputs[1].shape);
        every_product(&geometry, |at_x, at_weight, at_y| {
            *dx.at_mut(at_x) += inputs[0].at(at_y) * inputs[1].at(at_weight);
        });
        vec![dx]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |(name, x, weight, options): Row| {
            let g = output_of(&x, &weight, options);
            Case::new(name, &[&g, &weight], move |t| vec![options.input_gradient(&t[0], &t[1], [x[2], x[3]])])
        };
        shapes().into_iter().map(case).collect()
    }
}

impl Operation for Conv2dWeightGradient {
    fn name(&self) -> &'static str {
        "conv2d_weight_gradient"
    }

    fn attributes(&self) -> String {
        format!("kernel {:?}, {}", self.kernel, self.options.attributes())
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let dtype = Mismatch::unless_same_float(inputs)?;
        let geometry = self.geometry(&inputs[0].shape, &inputs[1].shape)?;
        Mismatch::unless_shape("the gradient of the output", &inputs[1], &output_shape(&geometry))?;
        Ok(vec![TensorType::new(dtype, weight_shape(&geometry))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (x, g, gweight) = (&at.inputs[0], &at.inputs[1], &at.gradient(0));
        vec![
            at.wants(0).then(|| self.options.input_gradient(g, gweight, plane(x))),
            at.wants(1).then(|| self.options.convolve(x, gweight)),
        ]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.bilinear([0, 1], |x, g| self.options.weight_gradient(x, g, self.kernel))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        cost(&self.geometry_of(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![0]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let mut dweight = Reals::zeros(&outputs[0]);
        let geometry = self.geometry_of(&inputs[0].shape, &inputs[1].shape);
        every_product(&geometry, |at_x, at_weight, at_y| {
            *dweight.at_mut(at_weight) += inputs[0].at(at_x) * inputs[1].at(at_y);
        });
        vec![dweight]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |(name, x, weight, options): Row| {
            let g = output_of(&x, &weight, options);
            Case::new(name, &[&x, &g], move |t| vec![options.weight_gradient(&t[0], &t[1], [weight[2], weight[3]])])
        };
        shapes().into_iter().map(case).collect()
    }
}

impl Conv2d {
    fn geometry_of(&self, x: &Shape, weight: &Shape) -> Geometry {
        self.options.geometry(x, weight).expect("shapes that were checked")
    }
}

impl Conv2dInputGradient {
    fn geometry(&self, g: &Shape, weight: &Shape) -> Result<Geometry, Mismatch> {
        let channels = self.options.groups * size(weight, 1);
        let x = [size(g, 0), channels, self.input[0], self.input[1]];
        self.options.geometry(&x.into(), weight)
    }

    fn geometry_of(&self, g: &Shape, weight: &Shape) -> Geometry {
        self.geometry(g, weight).expect("shapes that were checked")
    }
}

impl Conv2dWeightGradient {
    fn geometry(&self, x: &Shape, g: &Shape) -> Result<Geometry, Mismatch> {
        let channels = size(x, 1) / self.options.groups.max(1);
        let weight = [size(g, 1), channels, self.kernel[0], self.kernel[1]];
        self.options.geometry(x, &weight.into())
    }

    fn geometry_of(&self, x: &Shape, g: &Shape) -> Geometry {
        self.geometry(x, g).expect("shapes that were checked")
    }
}

impl Kernels for Conv2d {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let geometry = self.geometry_of(linker.input(0).shape(), linker.input(1).shape());
        if let Some(pointwise) = kernel::Pointwise::of(linker.isa(), &geometry, linker.workers()) {
            let (x, weights, y) = (linker.input(0), linker.input(1), linker.output(0));
            with_float!(x.dtype, T => {
                linker.job(pointwise.forward::<T>(x.read(), weights.read(), y.write()));
            });
            return Ok(());
        }
        correlate(linker, kernel::CorrelationPlan::forward(linker.isa(), &geometry))
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let geometry = self.geometry_of(&linker.input(0).shape.into(), &linker.input(1).shape.into());
        link_cuda(linker, "conv", &geometry);
        Ok(())
    }
}

impl Kernels for Conv2dInputGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let geometry = self.geometry_of(linker.input(0).shape(), linker.input(1).shape());
        if let Some(pointwise) = kernel::Pointwise::of(linker.isa(), &geometry, linker.workers()) {
            let (g, weights, dx) = (linker.input(0), linker.input(1), linker.output(0));
            with_float!(g.dtype, T => {
                linker.job(pointwise.backward::<T>(g.read(), weights.read(), dx.write()));
            });
            return Ok(());
        }
        correlate(linker, kernel::CorrelationPlan::backward(linker.isa(), &geometry))
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let geometry = self.geometry_of(&linker.input(0).shape.into(), &linker.input(1).shape.into());
        link_cuda(linker, "conv_input_gradient", &geometry);
        Ok(())
    }
}

/// Links the CUDA kernel of this name, of two operands: a thread has a result, or of the weights' gradient a block.
fn link_cuda(linker: &mut CudaLinker<'_>, entry: &'static str, geometry: &Geometry) {
    const THREADS: usize = 256;
    let (a, b, y) = (linker.input(0), linker.input(1), linker.output(0));
    let mut source = Source::new(entry, sources::CONV).operand("x", &a).operand("b", &b).operand("y", &y);
    let Geometry { images, groups, channels, filters, .. } = *geometry;
    let counts = [("IMAGES", images), ("GROUPS", groups), ("CHANNELS", channels), ("FILTERS", filters)];
    for (name, count) in counts {
        source = source.constant(name, format_args!("((i64){count})"));
    }
    let Geometry { input, kernel, output, stride, padding, dilation, .. } = *geometry;
    let planes = [("INPUT", input), ("KERNEL", kernel), ("OUTPUT", output)];
    for (name, [vertical, horizontal]) in
        planes.into_iter().chain([("STRIDE", stride), ("PADDING", padding), ("DILATION", dilation)])
    {
        source = source.constant(&format!("{name}_H"), format_args!("((i64){vertical})"));
        source = source.constant(&format!("{name}_W"), format_args!("((i64){horizontal})"));
    }
    source = source.constant("ACCUMULATES", linker.accumulates(0) as usize);
    let results = y.elements();
    let blocks = if entry == "conv_weight_gradient" { results } else { results.div_ceil(THREADS) };
    linker.launch(source.size("COUNT", results).constant("THREADS", THREADS).launch(blocks, THREADS));
}

/// Links the correlation of the first operand with the second, the weights.
fn correlate(linker: &mut Linker<'_>, plan: Arc<kernel::CorrelationPlan>) -> Result<(), Unsupported> {
    let (source, weights, target) = (linker.input(0), linker.input(1), linker.output(0));
    let packed = linker.scratch::<f32>(plan.packed());
    with_float!(source.dtype, T => {
        linker.job(kernel::PackWeights::<T>::new(&plan, weights.read(), packed));
        linker.job(kernel::Correlation::<T>::new(&plan, source.read(), packed.as_in(), target.write()));
    });
    Ok(())
}

impl Kernels for Conv2dWeightGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, g, y) = (linker.input(0), linker.input(1), linker.output(0));
        let geometry = self.geometry_of(x.shape(), g.shape());
        let goes_on = linker.accumulates(0);
        let pointwise = kernel::Pointwise::of(linker.isa(), &geometry, linker.workers());
        // Sums of images that go on from one another gather in the result, in f32.
        if let Some(pointwise) = pointwise.filter(|pointwise| pointwise.partials() > 0 || y.dtype == DType::F32) {
            let partials = linker.scratch::<f32>(pointwise.partials());
            let sums = if y.dtype == DType::F32 { y.write() } else { partials };
            with_float!(x.dtype, T => {
                for job in pointwise.weight_gradient::<T>([x.read(), g.read()], partials, sums, goes_on) {
                    linker.job(job);
                }
                if !partials.is_empty() {
                    linker.job(pointwise.sum_images::<T>(partials.as_in(), y.write()).accumulating(goes_on));
                }
            });
            return Ok(());
        }
        let plan = kernel::WeightGradientPlan::new(linker.isa(), &geometry);
        let partials = linker.scratch::<f32>(plan.partials());
        with_float!(x.dtype, T => {
            let job = kernel::WeightGradient::<T>::new(&plan, x.read(), g.read(), partials, y.write());
            linker.job(job.accumulating(goes_on));
            if !partials.is_empty() {
                let sum = kernel::SumImages::<T>::new(linker.isa(), partials.as_in(), y.write());
                linker.job(sum.accumulating(goes_on));
            }
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let geometry = self.geometry_of(&linker.input(0).shape.into(), &linker.input(1).shape.into());
        link_cuda(linker, "conv_weight_gradient", &geometry);
        Ok(())
    }
}
