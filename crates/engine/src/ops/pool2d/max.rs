//! The largest element of each window.
//!
//! Which element that is, is a result too; the gradient goes to those elements, and its own gradient comes from
//! them: a scatter and a gather, each the gradient of the other.

use super::super::gather::cuda_gather;
use super::*;
use crate::DType;

/// The largest element of each window, and its position in the plane: `[n, c, h, w] -> 2 x [n, c, oh, ow]`. The
/// first of equal ones is taken, and NaN before any number.
#[derive(Debug)]
pub struct MaxPool2d {
    window: Pool2dOptions,
}

/// `indices, g: [n, c, oh, ow] -> dx: [n, c, h, w]`: each number added at its position in a plane of this size.
#[derive(Debug)]
pub struct MaxPool2dGradient {
    input: [usize; 2],
}

/// `indices: [n, c, oh, ow], x: [n, c, h, w] -> [n, c, oh, ow]`: the elements at these positions in the planes.
#[derive(Debug)]
pub struct MaxPool2dGather;

impl Operation for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn attributes(&self) -> String {
        self.window.attributes()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        let shape = self.window.outputs(&inputs[0].shape)?;
        if plane(&inputs[0].shape).into_iter().product::<usize>() > i32::MAX as usize {
            return Err(Mismatch::Shape(format!("planes can have at most {} elements", i32::MAX)));
        }
        Ok(vec![TensorType::new(inputs[0].dtype, &shape), TensorType::new(DType::I32, &shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let op = MaxPool2dGradient { input: plane(&at.inputs[0].shape()) };
        vec![Some(at.inputs[0].trace().apply_one(op, &[&at.outputs[1], &at.gradient(0)]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let gather = |tangent: &Tensor| tangent.trace().apply_one(MaxPool2dGather, &[&at.outputs[1], tangent]);
        vec![at.tangent(0).map(gather), None]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(self.window.window_elements() as u64, inputs, outputs)
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
        let x = inputs[0];
        let is_larger = |a: f64, b: f64| a > b || (a.is_nan() && !b.is_nan());
        let chosen = |output: &[usize]| {
            let elements = self.window.elements(&x.shape, output);
            elements.reduce(|best, at| if is_larger(x.at(&at), x.at(&best)) { at } else { best }).expect("a window")
        };
        let position = |[_, _, row, column]: [usize; 4]| (row * x.shape[3] + column) as f64;
        vec![
            Reals::from_fn(&outputs[0].shape, |output| x.at(&chosen(output))),
            Reals::from_fn(&outputs[0].shape, |output| position(chosen(output))),
        ]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, shape, window) in shapes() {
            let distinct = CaseInput::filled(shape, Fill::Distinct);
            cases.push(Case::with_inputs(name, vec![distinct], move |x| {
                x[0].trace().apply(MaxPool2d { window }, &[&x[0]])
            }));
        }
        let distinct = CaseInput::filled([2, 3, 9], Fill::Distinct);
        cases.push(Case::with_inputs("one axis", vec![distinct], |x| {
            vec![x[0].max_pool1d(Pool1dOptions { kernel: 3, stride: 2, padding: 1 })]
        }));
        let equal = CaseInput::filled([1, 1, 2, 4], Fill::Numbers(vec![1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 2.0]));
        cases.push(Case::with_inputs("the first of equal ones", vec![equal.without_gradient()], |x| {
            x[0].trace()
                .apply(MaxPool2d { window: Pool1dOptions { kernel: 2, stride: 1, padding: 0 }.into() }, &[&x[0]])
        }));
        cases
    }
}

/// The index in the planes of `x` of the position that `indices[output]` names; `None` if it is outside.
fn named(indices: &Reals, output: &[usize], x: &Shape) -> Option<[usize; 4]> {
    let position = indices.at(output);
    let is_inside = (0.0..(x[2] * x[3]) as f64).contains(&position);
    is_inside.then(|| [output[0], output[1], position as usize / x[3], position as usize % x[3]])
}

/// Checks the indices that a window's choice left.
fn unless_indices(indices: &TensorType) -> Result<(), Mismatch> {
    unless_planes("the indices", indices)?;
    match indices.dtype {
        DType::I32 => Ok(()),
        other => Err(Mismatch::DType(format!("takes indices of i32, not {other}; cast them"))),
    }
}

impl Operation for MaxPool2dGradient {
    fn name(&self) -> &'static str {
        "max_pool2d_gradient"
    }

    fn attributes(&self) -> String {
        format!("input {:?}", self.input)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        unless_indices(&inputs[0])?;
        Mismatch::unless_float(&inputs[1])?;
        Mismatch::unless_shape("the gradient of the result", &inputs[1], &inputs[0].shape)?;
        let shape = inputs[1].shape.with(2, self.input[0]).with(3, self.input[1]);
        Ok(vec![TensorType::new(inputs[1].dtype, shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let gathered = at.inputs[1].trace().apply_one(MaxPool2dGather, &[&at.inputs[0], &at.gradient(0)]);
        vec![None, Some(gathered)]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let op = MaxPool2dGradient { input: self.input };
        vec![at.tangent(1).map(|tangent| tangent.trace().apply_one(op, &[&at.inputs[0], tangent]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::Elements,
            operations: inputs[1].shape.elements() as u64,
            bytes: Cost::traffic(inputs, outputs),
        }
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
        for output in super::super::reals::indices(&inputs[1].shape) {
            if let Some(input) = named(inputs[0], &output, &outputs[0].shape) {
                *dx.at_mut(&input) += inputs[1].at(&output);
            }
        }
        vec![dx]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, shape, window) in shapes() {
            let output = window.outputs(&shape.into()).expect("a case that fits");
            let input = [shape[2], shape[3]];
            let indices = CaseInput::integers(DType::I32, &output, input[0] * input[1]);
            let inputs = vec![indices, CaseInput::uniform(&output, -2.0, 2.0)];
            cases.push(Case::with_inputs(name, inputs, move |x| {
                vec![x[0].trace().apply_one(MaxPool2dGradient { input }, &[&x[0], &x[1]])]
            }));
        }
        cases
    }
}

impl Operation for MaxPool2dGather {
    fn name(&self) -> &'static str {
        "max_pool2d_gather"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        unless_indices(&inputs[0])?;
        Mismatch::unless_float(&inputs[1])?;
        unless_planes("the operand", &inputs[1])?;
        if inputs[0].shape[..2] != inputs[1].shape[..2] {
            let problem = "there must be as many planes of indices as of elements, in the same order";
            return Err(Mismatch::Shape(problem.to_string()));
        }
        Ok(vec![TensorType::new(inputs[1].dtype, &inputs[0].shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let op = MaxPool2dGradient { input: plane(&at.inputs[1].shape()) };
        vec![None, Some(at.inputs[1].trace().apply_one(op, &[&at.inputs[0], &at.gradient(0)]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let gather = |tangent: &Tensor| tangent.trace().apply_one(MaxPool2dGather, &[&at.inputs[0], tangent]);
        vec![at.tangent(1).map(gather)]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { work: Work::Elements, operations: 0, bytes: Cost::traffic(inputs, outputs) }
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
        vec![Reals::from_fn(&outputs[0].shape, |output| {
            named(inputs[0], output, &inputs[1].shape).map_or(0.0, |input| inputs[1].at(&input))
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, shape, window) in shapes() {
            let output = window.outputs(&shape.into()).expect("a case that fits");
            let indices = CaseInput::integers(DType::I32, &output, shape[2] * shape[3]);
            let inputs = vec![indices, CaseInput::uniform(shape, -2.0, 2.0)];
            cases.push(Case::with_inputs(name, inputs, |x| {
                vec![x[0].trace().apply_one(MaxPool2dGather, &[&x[0], &x[1]])]
            }));
        }
        cases
    }
}

impl Kernels for MaxPool2d {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, values, indices) = (linker.input(0), linker.output(0), linker.output(1));
        let sizes = self.window.sizes(x.shape(), values.shape());
        with_float!(x.dtype, T => {
            let job = kernel::MaxPool::<T>::new(linker.isa(), sizes, x.read(), values.write(), indices.write());
            linker.job(job);
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (x, values, indices) = (linker.input(0), linker.output(0), linker.output(1));
        let source = self.window.cuda("max_pool", [&x, &values], values.elements()).address(x.address);
        let source = source.address(values.address).address(indices.address);
        linker.launch(source.launch(values.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

/// Elements of a plane.
fn plane_elements(x: &Shape) -> usize {
    x[2] * x[3]
}

fn cuda_plane_elements(x: &Operand) -> usize {
    x.shape[2] * x.shape[3]
}

impl Kernels for MaxPool2dGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (indices, g, dx) = (linker.input(0), linker.input(1), linker.output(0));
        let sizes = [plane_elements(g.shape()), plane_elements(dx.shape())];
        with_float!(g.dtype, T => {
            let job = kernel::ScatterPlanes::<T>::new(linker.isa(), sizes, indices.read(), g.read(), dx.write());
            linker.job(job);
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (index, updates, y) = (linker.input(0), linker.input(1), linker.output(0));
        linker.zero(y.address, y.elements() * y.element.size());
        let [index_axis, axis] = [&index, &y].map(cuda_plane_elements);
        let at = gradus_cuda::ScatterAdd { index: &index, updates: &updates, y: &y, axis, index_axis, inner: 1 };
        // An index outside of the plane is passed over.
        let no_fault = None::<fn(Source) -> Source>;
        for launch in gradus_cuda::scatter_add(&at, no_fault, |bytes| linker.scratch(bytes)) {
            linker.launch(launch);
        }
        Ok(())
    }
}

impl Kernels for MaxPool2dGather {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (indices, x, y) = (linker.input(0), linker.input(1), linker.output(0));
        let sizes = [plane_elements(x.shape()), plane_elements(y.shape())];
        with_float!(x.dtype, T => {
            let job = kernel::GatherPlanes::<T>::new(linker.isa(), sizes, indices.read(), x.read(), y.write());
            linker.job(job);
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (indices, x, y) = (linker.input(0), linker.input(1), linker.output(0));
        let [axis, index_axis] = [&x, &indices].map(cuda_plane_elements);
        // An index outside of the plane gives 0.
        let source = cuda_gather(&x, &indices, &y, [axis, index_axis, 1]).constant("FAULTS", 0);
        linker.launch(source.launch(y.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Tensor {
    /// The largest element of each window of planes `[n, c, h, w]`.
    #[track_caller]
    pub fn max_pool2d(&self, options: Pool2dOptions) -> Tensor {
        self.trace().apply_one(MaxPool2d { window: options }, &[self])
    }

    /// The largest element of each window of rows `[n, c, l]`.
    #[track_caller]
    pub fn max_pool1d(&self, options: Pool1dOptions) -> Tensor {
        let Some(x) = self.as_planes("max_pool1d") else { return self.trace().poisoned() };
        self.trace().apply_one(MaxPool2d { window: options.into() }, &[&x]).without_plane_rows()
    }
}
