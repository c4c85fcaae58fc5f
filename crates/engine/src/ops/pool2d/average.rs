//! The mean of each window.

use super::*;

/// The mean of each window, zeros in the padding included: `[n, c, h, w] -> [n, c, oh, ow]`.
#[derive(Debug)]
pub struct AvgPool2d {
    window: Pool2dOptions,
}

/// `g: [n, c, oh, ow] -> dx: [n, c, h, w]`: each element's share in its windows, for planes of this size.
#[derive(Debug)]
pub struct AvgPool2dGradient {
    window: Pool2dOptions,
    input: [usize; 2],
}

impl Operation for AvgPool2d {
    fn name(&self) -> &'static str {
        "avg_pool2d"
    }

    fn attributes(&self) -> String {
        self.window.attributes()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        Ok(vec![TensorType::new(inputs[0].dtype, self.window.outputs(&inputs[0].shape)?)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let op = AvgPool2dGradient { window: self.window, input: plane(&at.inputs[0].shape()) };
        vec![Some(at.inputs[0].trace().apply_one(op, &[&at.gradient(0)]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let op = AvgPool2d { window: self.window };
        vec![at.tangent(0).map(|tangent| tangent.trace().apply_one(op, &[tangent]))]
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
        vec![Reals::from_fn(&outputs[0].shape, |output| {
            let sum: f64 = self.window.elements(&x.shape, output).map(|input| x.at(&input)).sum();
            sum / self.window.window_elements() as f64
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, shape, window) in shapes() {
            cases.push(Case::new(name, &[&shape], move |x| vec![x[0].avg_pool2d(window)]));
        }
        cases.push(Case::new("one axis", &[&[2, 3, 9]], |x| {
            vec![x[0].avg_pool1d(Pool1dOptions { kernel: 3, stride: 2, padding: 1 })]
        }));
        cases
    }
}

impl Operation for AvgPool2dGradient {
    fn name(&self) -> &'static str {
        "avg_pool2d_gradient"
    }

    fn attributes(&self) -> String {
        format!("input {:?}, {}", self.input, self.window.attributes())
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        unless_planes("the gradient of the result", &inputs[0])?;
        let shape = inputs[0].shape.with(2, self.input[0]).with(3, self.input[1]);
        Mismatch::unless_shape("the gradient of the result", &inputs[0], &self.window.outputs(&shape)?)?;
        Ok(vec![TensorType::new(inputs[0].dtype, shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.inputs[0].trace().apply_one(AvgPool2d { window: self.window }, &[&at.gradient(0)]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let op = AvgPool2dGradient { window: self.window, input: self.input };
        vec![at.tangent(0).map(|tangent| tangent.trace().apply_one(op, &[tangent]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let operations = inputs[0].shape.elements().saturating_mul(self.window.window_elements());
        Cost { work: Work::Elements, operations: operations as u64, bytes: Cost::traffic(inputs, outputs) }
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
        for output in super::super::reals::indices(&inputs[0].shape) {
            let share = inputs[0].at(&output) / self.window.window_elements() as f64;
            for input in self.window.elements(&outputs[0].shape, &output) {
                *dx.at_mut(&input) += share;
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
            cases.push(Case::new(name, &[&output], move |g| {
                vec![g[0].trace().apply_one(AvgPool2dGradient { window, input }, &[&g[0]])]
            }));
        }
        cases
    }
}

impl Kernels for AvgPool2d {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let sizes = self.window.sizes(x.shape(), y.shape());
        with_float!(x.dtype, T => {
            linker.job(kernel::AveragePool::<T>::new(linker.isa(), sizes, x.read(), y.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let source = self.window.cuda("avg_pool", [&x, &y], y.elements()).address(x.address).address(y.address);
        linker.launch(source.launch(y.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Kernels for AvgPool2dGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (g, dx) = (linker.input(0), linker.output(0));
        let sizes = self.window.sizes(dx.shape(), g.shape());
        with_float!(g.dtype, T => {
            linker.job(kernel::AveragePoolGradient::<T>::new(linker.isa(), sizes, g.read(), dx.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (g, dx) = (linker.input(0), linker.output(0));
        let source = self.window.cuda("avg_pool_gradient", [&dx, &g], dx.elements());
        let source = source.address(g.address).address(dx.address);
        linker.launch(source.launch(dx.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Tensor {
    /// The mean of each window of planes `[n, c, h, w]`. Zeros of the padding count.
    #[track_caller]
    pub fn avg_pool2d(&self, options: Pool2dOptions) -> Tensor {
        self.trace().apply_one(AvgPool2d { window: options }, &[self])
    }

    /// The mean of each window of rows `[n, c, l]`. Zeros of the padding count.
    #[track_caller]
    pub fn avg_pool1d(&self, options: Pool1dOptions) -> Tensor {
        let Some(x) = self.as_planes("avg_pool1d") else { return self.trace().poisoned() };
        self.trace().apply_one(AvgPool2d { window: options.into() }, &[&x]).without_plane_rows()
    }
}
