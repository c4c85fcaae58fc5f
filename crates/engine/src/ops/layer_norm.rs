//! Layer norm along the last axis, and its gradient.

use super::*;
use crate::{DType, Shape};
use gradus_kernels::norm::{self as kernel, gradient as gradient_kernel};

/// Rows with mean 0 and variance 1, times a gain, plus a bias.
///
/// Takes x `[..., c]`, gain `[c]` and bias `[c]`; gives y `[..., c]`, and in f32 the mean and the inverse standard
/// deviation of each row `[...]`.
#[derive(Debug)]
pub struct LayerNorm {
    epsilon: f32,
    /// What y is stored in, if that is not the type of x.
    stored: Option<DType>,
}

/// The gradients of x, gain and bias, from x, gain, the mean and inverse standard deviation of each row, and the
/// gradient of y.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerNormGradient {
    around: Around,
}

/// What the gradient of a norm does besides: the planner has it take in the passes around it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    /// Whether a last operand is added to the gradient of x.
    adds: bool,
    /// The type of a further result that is the gradient of x again.
    copies: Option<DType>,
    /// Whether the sums of that over all rows are a last result.
    sums: bool,
}

impl Around {
    pub fn attributes(self) -> String {
        let adds = if self.adds { "adds" } else { "" };
        let sums = if self.sums { " sums" } else { "" };
        self.copies.map_or(adds.to_string(), |dtype| format!("{adds} copies {dtype}{sums}"))
    }

    /// Whether there is anything.
    pub fn is_something(self) -> bool {
        self.adds || self.copies.is_some()
    }

    /// Whether there is a last operand to add.
    pub fn has_added(self) -> bool {
        self.adds
    }

    /// How many further results there are: a copy, and its sums.
    pub fn more_outputs(self) -> usize {
        self.copies.is_some() as usize + self.sums as usize
    }

    /// Which results are sums over rows, of a gradient whose own are these.
    pub fn accumulates(self, own: std::ops::Range<usize>) -> Vec<usize> {
        let further = self.sums.then_some(own.end + 1);
        own.chain(further).collect()
    }

    /// The copy of the gradient of x among the results of a gradient that has so many of its own, and its sums.
    pub fn further(self, linker: &CudaLinker<'_>, own: usize) -> [Option<gradus_cuda::Operand>; 2] {
        [self.copies.map(|_| linker.output(own)), self.sums.then(|| linker.output(own + 1))]
    }

    pub fn adding(self) -> Option<Around> {
        (!self.adds && self.copies.is_none()).then_some(Around { adds: true, ..self })
    }

    pub fn copying(self, dtype: DType) -> Option<Around> {
        self.copies.is_none().then_some(Around { copies: Some(dtype), ..self })
    }

    pub fn summing(self) -> Option<Around> {
        (self.copies.is_some() && !self.sums).then_some(Around { sums: true, ..self })
    }

    /// Checks what is added to the gradient of x, and gives the types of the results with the copy of that.
    pub fn outputs(
        self,
        added: Option<&TensorType>,
        mut outputs: Vec<TensorType>,
    ) -> Result<Vec<TensorType>, Mismatch> {
        if self.adds {
            let added = added.ok_or_else(|| Mismatch::Shape("takes an operand to add".to_string()))?;
            Mismatch::unless_same_float(&[outputs[0].clone(), added.clone()])?;
            Mismatch::unless_shape("what is added", added, &outputs[0].shape)?;
        }
        outputs.extend(self.copies.map(|dtype| TensorType::new(dtype, &outputs[0].shape)));
        let (_, columns) = outputs[0].shape.rows_and_columns();
        outputs.extend(self.sums.then(|| TensorType::new(DType::F32, [columns])));
        Ok(outputs)
    }

    pub fn reference(self, added: Option<&&Reals>, mut results: Vec<Reals>) -> Vec<Reals> {
        if let Some(added) = added.filter(|_| self.adds) {
            results[0].data.iter_mut().zip(&added.data).for_each(|(sum, added)| *sum += added);
        }
        results.extend(self.copies.map(|_| results[0].clone()));
        if self.sums {
            let columns = results[1].data.len();
            let mut sums = vec![0.0; columns];
            results[0].rows().for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
            results.push(Reals::new(Shape::from([columns]), sums));
        }
        results
    }

    /// The results made of plain operations.
    pub fn decomposed(self, added: Option<&Tensor>, mut results: Vec<Tensor>) -> Vec<Tensor> {
        if let Some(added) = added.filter(|_| self.adds) {
            results[0] = &results[0] + added;
        }
        results.extend(self.copies.map(|dtype| results[0].cast(dtype)));
        let sums = self.sums.then(|| results.last().map(|copy| sum_of_rows(&copy.cast(DType::F32)))).flatten();
        results.extend(sums);
        results
    }

    /// The operands of the gradient itself, and what is added.
    pub fn split<T>(self, inputs: &[T]) -> (&[T], Option<&T>) {
        match self.adds {
            true => (&inputs[..inputs.len() - 1], inputs.last()),
            false => (inputs, None),
        }
    }

    /// Which results may be written over which operands: the first over x, the gradient of y, or what is added.
    pub fn in_place(self, y_gradient: usize) -> Vec<(usize, usize)> {
        let added = self.adds.then_some((0, y_gradient + 1));
        [(0, 0), (0, y_gradient)].into_iter().chain(added).collect()
    }
}

/// What layer norm and RMS norm ask of x, of what each column has one of, and of the epsilon.
pub(super) fn check_operands(x: &TensorType, columns: &[&TensorType], epsilon: f32) -> Result<(), Mismatch> {
    let types: Vec<TensorType> = [x].into_iter().chain(columns.iter().copied()).cloned().collect();
    Mismatch::unless_same_float(&types)?;
    Mismatch::unless_rank("the operand", x, 1)?;
    let (_, count) = x.shape.rows_and_columns();
    if count == 0 {
        return Err(Mismatch::Shape("rows of no elements cannot be normalized; leave the operand out".to_string()));
    }
    for ty in columns {
        Mismatch::unless_shape("gain and bias", ty, &Shape::from([count]))?;
    }
    check_epsilon(epsilon)
}

/// What every norm asks of its epsilon.
pub(super) fn check_epsilon(epsilon: f32) -> Result<(), Mismatch> {
    if epsilon >= 0.0 && epsilon.is_finite() {
        return Ok(());
    }
    Err(Mismatch::Parameter(format!("epsilon must be a number from 0 up, such as 1e-5, not {epsilon}")))
}

/// What the gradients of norms ask of what each row has one of, and of the gradient of y.
pub(super) fn check_gradient_operands(
    x: &TensorType,
    rows: &[&TensorType],
    y_gradient: &TensorType,
) -> Result<(), Mismatch> {
    for ty in rows {
        Mismatch::unless_shape("the statistics of the rows", ty, &x.shape.without_last(1))?;
        if ty.dtype != DType::F32 {
            return Err(Mismatch::DType(format!(
                "takes the statistics of the rows in f32, not {}; cast them",
                ty.dtype
            )));
        }
    }
    Mismatch::unless_float(y_gradient)?;
    Mismatch::unless_shape("the gradient", y_gradient, &x.shape)
}

/// The type of a number for each row: always f32.
pub(super) fn row_type(x: &TensorType) -> TensorType {
    TensorType::new(DType::F32, x.shape.without_last(1))
}

/// A number for each row, as a column beside the rows.
pub(super) fn beside_rows(statistic: &Tensor) -> Tensor {
    let mut shape = statistic.shape().to_vec();
    shape.push(1);
    statistic.reshape(shape)
}

/// How the sums over the rows of a norm's gradient are cut: the axis before the last is a sequence of rows.
pub(super) fn gradient_blocks(x: &Shape) -> gradient_kernel::Blocks {
    let (rows, columns) = x.rows_and_columns();
    let sequence = if x.rank() > 2 { x[x.rank() - 2] } else { rows };
    gradient_kernel::Blocks::new(rows.checked_div(sequence).unwrap_or(0), sequence, columns)
}

/// The sum over all axes but the last.
pub(super) fn sum_of_rows(x: &Tensor) -> Tensor {
    let axes = x.all_axes();
    x.sum(&axes[..axes.len().saturating_sub(1)])
}

/// Layer norm made of plain operations, in f32 within.
fn decomposed(epsilon: f32, stored: DType, inputs: &[Tensor]) -> Vec<Tensor> {
    let [x, gain, bias] = &in_f32(inputs)[..] else { unreachable!("layer norm has three operands") };
    let mean = x.mean(&[-1]);
    let inverse = 1.0 / (x.variance(&[-1]) + epsilon).sqrt();
    let y = (x - beside_rows(&mean)) * beside_rows(&inverse) * gain + bias;
    vec![y.cast(stored), mean, inverse]
}

/// The gradient made of plain operations, in f32 within.
fn decomposed_gradient(inputs: &[Tensor]) -> Vec<Tensor> {
    let [x, gain, mean, inverse, g] = &in_f32(inputs)[..] else { unreachable!("the gradient has five operands") };
    let inverse = &beside_rows(inverse);
    let normalized = &((x - beside_rows(mean)) * inverse);
    let weighted = &(g * gain);
    let stretch = (weighted * normalized).mean_keep(&[-1]);
    let x_gradient = inverse * (weighted - weighted.mean_keep(&[-1]) - normalized * stretch);
    let gradients = [x_gradient, sum_of_rows(&(g * normalized)), sum_of_rows(g)];
    gradients.into_iter().map(|gradient| gradient.cast(inputs[0].dtype())).collect()
}

pub(super) fn in_f32(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.cast(DType::F32)).collect()
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn attributes(&self) -> String {
        let stored = self.stored.map_or(String::new(), |dtype| format!(", stored in {dtype}"));
        format!("epsilon {:?}{stored}", self.epsilon)
    }

    fn output_count(&self) -> usize {
        3
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_operands(&inputs[0], &[&inputs[1], &inputs[2]], self.epsilon)?;
        let row = row_type(&inputs[0]);
        let y = TensorType::new(self.stored.unwrap_or(inputs[0].dtype), &inputs[0].shape);
        Ok(vec![y, row.clone(), row])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if at.has_gradient(1) || at.has_gradient(2) {
            return at.through(|inputs| decomposed(self.epsilon, at.outputs[0].dtype(), inputs));
        }
        let ([x, gain, _], [_, mean, inverse]) = (at.inputs, at.outputs) else { unreachable!("as outputs() says") };
        let operands = [x, gain, mean, inverse, &at.gradient(0)];
        x.trace().apply(LayerNormGradient::default(), &operands).into_iter().map(Some).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| decomposed(self.epsilon, at.outputs[0].dtype(), inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(8, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Rows(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let [x, gain, bias] = inputs else { unreachable!("as outputs() says") };
        let (mut y, mut means, mut inverses) = (vec![], vec![], vec![]);
        for row in x.rows() {
            let count = row.len() as f64;
            let mean = row.iter().sum::<f64>() / count;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let inverse = 1.0 / (variance + self.epsilon as f64).sqrt();
            y.extend((0..row.len()).map(|i| (row[i] - mean) * inverse * gain.data[i] + bias.data[i]));
            means.push(mean);
            inverses.push(inverse);
        }
        let shaped = |output: usize, data: Vec<f64>| Reals::new(&outputs[output].shape, data);
        vec![shaped(0, y), shaped(1, means), shaped(2, inverses)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for shape in [&[3, 5][..], &[7], &[1, 1], &[4, 1], &[2, 3, 33], &[0, 4], &[83, 400]] {
            let columns = &shape[shape.len() - 1..];
            let name = format!("{shape:?}");
            cases.push(Case::new(&name, &[shape, columns, columns], |x| vec![x[0].layer_norm(&x[1], &x[2], 1e-5)]));
        }
        cases.push(Case::new("with its statistics", &[&[2, 3, 9], &[9], &[9]], |x| {
            x[0].trace().apply(LayerNorm { epsilon: 0.1, stored: None }, &[&x[0], &x[1], &x[2]])
        }));
        let far = CaseInput::uniform([4, 50], 30.0, 34.0);
        let column = || CaseInput::uniform([50], -2.0, 2.0);
        let norm = |x: &[Tensor]| vec![x[0].layer_norm(&x[1], &x[2], 1e-5)];
        cases.push(Case::with_inputs("far from zero", vec![far, column(), column()], norm).within(3e-5));
        cases.extend(super::batch_norm::cases());
        cases
    }
}

impl Kernels for LayerNorm {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, gain, bias) = (linker.input(0), linker.input(1), linker.input(2));
        let (y, mean, inverse) = (linker.output(0), linker.output(1), linker.output(2));
        if y.dtype != x.dtype {
            return Err(Unsupported(y.dtype));
        }
        let (_, columns) = x.shape().rows_and_columns();
        with_float!(x.dtype, T => {
            let operands = kernel::Operands::<T> {
                x: x.read(),
                gain: gain.read(),
                bias_and_mean: Some((bias.read(), mean.write())),
                y: y.write(),
                inverse_deviation: inverse.write(),
            };
            linker.job(kernel::Norm::new(linker.isa(), operands, columns, self.epsilon));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let operands = gradus_cuda::Norm {
            x: &linker.input(0),
            gain: &linker.input(1),
            bias_and_mean: Some((&linker.input(2), &linker.output(1))),
            y: &linker.output(0),
            inverse_deviation: &linker.output(2),
        };
        linker.launch(gradus_cuda::norm(&operands, self.epsilon));
        Ok(())
    }
}

impl LayerNormGradient {
    /// The results made of plain operations.
    fn decomposed(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let (operands, added) = self.around.split(inputs);
        self.around.decomposed(added, decomposed_gradient(operands))
    }
}

impl Operation for LayerNormGradient {
    fn name(&self) -> &'static str {
        "layer_norm_gradient"
    }

    fn attributes(&self) -> String {
        self.around.attributes()
    }

    fn output_count(&self) -> usize {
        3 + self.around.more_outputs()
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, 5 + self.around.has_added() as usize)?;
        check_operands(&inputs[0], &[&inputs[1]], 0.0)?;
        check_gradient_operands(&inputs[0], &[&inputs[2], &inputs[3]], &inputs[4])?;
        let outputs = vec![inputs[0].clone(), inputs[1].clone(), inputs[1].clone()];
        self.around.outputs(inputs.get(5), outputs)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(14, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        self.around.in_place(4)
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        self.around.accumulates(1..3)
    }

    fn form(&self) -> Form<'_> {
        Form::Rows(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (operands, added) = self.around.split(inputs);
        let [x, gain, mean, inverse, g] = operands else { unreachable!("as outputs() says") };
        let columns = gain.data.len();
        let mut x_gradient = vec![];
        let (mut gain_gradient, mut bias_gradient) = (vec![0.0; columns], vec![0.0; columns]);
        for (row, (x, g)) in x.rows().zip(g.rows()).enumerate() {
            let inverse = inverse.data[row];
            let normalized: Vec<f64> = x.iter().map(|x| (x - mean.data[row]) * inverse).collect();
            let weighted: Vec<f64> = g.iter().zip(&gain.data).map(|(g, gain)| g * gain).collect();
            let shift = weighted.iter().sum::<f64>() / columns as f64;
            let stretch = weighted.iter().zip(&normalized).map(|(w, n)| w * n).sum::<f64>() / columns as f64;
            for i in 0..columns {
                x_gradient.push(inverse * (weighted[i] - shift - normalized[i] * stretch));
                gain_gradient[i] += g[i] * normalized[i];
                bias_gradient[i] += g[i];
            }
        }
        let shaped = |output: usize, data: Vec<f64>| Reals::new(&outputs[output].shape, data);
        let results = vec![shaped(0, x_gradient), shaped(1, gain_gradient), shaped(2, bias_gradient)];
        self.around.reference(added, results)
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |shape: &[usize]| {
            let (rows, columns) = (&shape[..shape.len() - 1], &shape[shape.len() - 1..]);
            let inputs = vec![
                CaseInput::uniform(shape, -2.0, 2.0),
                CaseInput::uniform(columns, -2.0, 2.0),
                CaseInput::uniform(rows, -0.5, 0.5),
                CaseInput::uniform(rows, 0.5, 1.5),
                CaseInput::uniform(shape, -2.0, 2.0),
            ];
            Case::with_inputs(&format!("{shape:?}"), inputs, |x| {
                let (mean, inverse) = (x[2].cast(DType::F32), x[3].cast(DType::F32));
                x[0].trace().apply(LayerNormGradient::default(), &[&x[0], &x[1], &mean, &inverse, &x[4]])
            })
        };
        // More than one block. Finite differences of so many elements would be slow, and the others show them.
        let mut large = case(&[17, 1000]);
        large.inputs = large.inputs.into_iter().map(CaseInput::without_gradient).collect();
        let small = [&[3, 5][..], &[7], &[1, 1], &[4, 1], &[2, 3, 33], &[0, 4]];
        small.into_iter().map(case).chain([large]).collect()
    }
}

impl Kernels for LayerNormGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, gain, mean, inverse, g) =
            (linker.input(0), linker.input(1), linker.input(2), linker.input(3), linker.input(4));
        if g.dtype != x.dtype || self.around.is_something() {
            return Err(Unsupported(g.dtype));
        }
        let blocks = gradient_blocks(x.shape());
        let shares = linker.scratch(blocks.shares(2));
        with_float!(x.dtype, T => {
            let operands = gradient_kernel::Operands::<T> {
                x: x.read(),
                gain: gain.read(),
                inverse_deviation: inverse.read(),
                y_gradient: g.read(),
                mean_and_bias_gradient: Some((mean.read(), linker.output(2).write())),
                x_gradient: linker.output(0).write(),
                gain_gradient: linker.output(1).write(),
            };
            let (row_gradients, column_sums) =
                gradient_kernel::jobs(linker.isa(), operands, blocks, shares, linker.accumulates(1));
            linker.job(row_gradients);
            linker.job(column_sums);
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let added = self.around.has_added().then(|| linker.input(5));
        let [copy, sums] = self.around.further(linker, 3);
        let operands = gradus_cuda::NormGradient {
            x: &linker.input(0),
            gain: &linker.input(1),
            mean: Some(&linker.input(2)),
            inverse_deviation: &linker.input(3),
            y_gradient: &linker.input(4),
            added: added.as_ref(),
            x_gradient: &linker.output(0),
            copy: copy.as_ref(),
            sums_copy: sums.is_some(),
        };
        link_norm_gradient(linker, &operands, sums);
        Ok(())
    }
}

/// Links the gradient of a norm for CUDA: the rows' gradients, and the sums over them that are the other results, those of the
/// copy last.
pub(super) fn link_norm_gradient(
    linker: &mut CudaLinker<'_>,
    operands: &gradus_cuda::NormGradient<'_>,
    sums: Option<gradus_cuda::Operand>,
) {
    let (launch, shares) = gradus_cuda::norm_gradient(operands, |bytes| linker.scratch(bytes));
    linker.launch(launch);
    let own = 1..1 + shares.shape[1] - sums.is_some() as usize;
    // The copy lies between.
    let of_copy = sums.map(|sums| (sums, linker.accumulates(own.end + 1)));
    let mut results: Vec<_> = own.map(|index| (linker.output(index), linker.accumulates(index))).collect();
    results.extend(of_copy);
    linker.launch(gradus_cuda::share_sums(&shares, &results));
}

impl RowOperation for LayerNorm {
    fn reading(&self, _input: usize, _dtype: DType) -> Option<Arc<dyn Operation>> {
        None
    }

    fn storing(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(LayerNorm { stored: Some(dtype), ..*self }))
    }

    fn adding(&self) -> Option<Arc<dyn Operation>> {
        None
    }

    fn copying(&self, _dtype: DType) -> Option<Arc<dyn Operation>> {
        None
    }

    fn summing(&self) -> Option<Arc<dyn Operation>> {
        None
    }
}

impl RowOperation for LayerNormGradient {
    fn reading(&self, input: usize, _dtype: DType) -> Option<Arc<dyn Operation>> {
        (input == 4).then(|| Arc::new(*self) as Arc<dyn Operation>)
    }

    fn storing(&self, _dtype: DType) -> Option<Arc<dyn Operation>> {
        None
    }

    fn adding(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(LayerNormGradient { around: self.around.adding()? }))
    }

    fn copying(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(LayerNormGradient { around: self.around.copying(dtype)? }))
    }

    fn summing(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(LayerNormGradient { around: self.around.summing()? }))
    }
}

impl Tensor {
    /// Rows along the last axis with mean 0 and variance 1, times a gain, plus a bias, one of each for every column.
    /// `epsilon` is added to the variance.
    #[track_caller]
    pub fn layer_norm(&self, gain: &Tensor, bias: &Tensor, epsilon: f32) -> Tensor {
        self.trace().apply(LayerNorm { epsilon, stored: None }, &[self, gain, bias]).swap_remove(0)
    }
}
