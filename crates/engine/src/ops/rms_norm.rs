//! RMS norm along the last axis, and its gradient: layer norm without mean and bias.

use super::layer_norm::{
    Around, beside_rows, check_gradient_operands, check_operands, gradient_blocks, in_f32, link_norm_gradient,
    row_type, sum_of_rows,
};
use super::*;
use crate::DType;
use gradus_kernels::norm::{self as kernel, gradient as gradient_kernel};

/// Rows divided by their root mean square, times a gain.
///
/// Takes x `[..., c]` and gain `[c]`; gives y `[..., c]`, and in f32 the inverse root mean square of each row `[...]`.
#[derive(Debug)]
pub struct RmsNorm {
    epsilon: f32,
    /// What y is stored in, if that is not the type of x.
    stored: Option<DType>,
}

/// The gradients of x and gain, from x, gain, the inverse root mean square of each row, and the gradient of y.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmsNormGradient {
    around: Around,
}

/// RMS norm made of plain operations, in f32 within.
fn decomposed(epsilon: f32, stored: DType, inputs: &[Tensor]) -> Vec<Tensor> {
    let [x, gain] = &in_f32(inputs)[..] else { unreachable!("RMS norm has two operands") };
    let inverse = 1.0 / ((x * x).mean(&[-1]) + epsilon).sqrt();
    vec![(x * beside_rows(&inverse) * gain).cast(stored), inverse]
}

/// The gradient made of plain operations, in f32 within.
fn decomposed_gradient(inputs: &[Tensor]) -> Vec<Tensor> {
    let [x, gain, inverse, g] = &in_f32(inputs)[..] else { unreachable!("the gradient has four operands") };
    let inverse = &beside_rows(inverse);
    let normalized = &(x * inverse);
    let weighted = &(g * gain);
    let x_gradient = inverse * (weighted - normalized * (weighted * normalized).mean_keep(&[-1]));
    let gradients = [x_gradient, sum_of_rows(&(g * normalized))];
    gradients.into_iter().map(|gradient| gradient.cast(inputs[0].dtype())).collect()
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn attributes(&self) -> String {
        let stored = self.stored.map_or(String::new(), |dtype| format!(", stored in {dtype}"));
        format!("epsilon {:?}{stored}", self.epsilon)
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_operands(&inputs[0], &[&inputs[1]], self.epsilon)?;
        let y = TensorType::new(self.stored.unwrap_or(inputs[0].dtype), &inputs[0].shape);
        Ok(vec![y, row_type(&inputs[0])])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if at.has_gradient(1) {
            return at.through(|inputs| decomposed(self.epsilon, at.outputs[0].dtype(), inputs));
        }
        let operands = [&at.inputs[0], &at.inputs[1], &at.outputs[1], &at.gradient(0)];
        at.inputs[0].trace().apply(RmsNormGradient::default(), &operands).into_iter().map(Some).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| decomposed(self.epsilon, at.outputs[0].dtype(), inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(4, inputs, outputs)
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
        let [x, gain] = inputs else { unreachable!("as outputs() says") };
        let (mut y, mut inverses) = (vec![], vec![]);
        for row in x.rows() {
            let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let inverse = 1.0 / (mean_square + self.epsilon as f64).sqrt();
            y.extend(row.iter().zip(&gain.data).map(|(x, gain)| x * inverse * gain));
            inverses.push(inverse);
        }
        vec![Reals::new(&outputs[0].shape, y), Reals::new(&outputs[1].shape, inverses)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for shape in [&[3, 5][..], &[7], &[2, 3, 33], &[0, 4], &[83, 400]] {
            let columns = &shape[shape.len() - 1..];
            cases.push(Case::new(&format!("{shape:?}"), &[shape, columns], |x| vec![x[0].rms_norm(&x[1], 1e-5)]));
        }
        // A row of one element is nearly a step at zero.
        let one =
            vec![CaseInput::filled([4, 1], Fill::AwayFromZero(-2.0, 2.0, 0.5)), CaseInput::uniform([1], 0.5, 2.0)];
        cases.push(Case::with_inputs("one column", one, |x| vec![x[0].rms_norm(&x[1], 1e-5)]));
        cases.push(Case::new("with its statistic", &[&[2, 3, 9], &[9]], |x| {
            x[0].trace().apply(RmsNorm { epsilon: 0.1, stored: None }, &[&x[0], &x[1]])
        }));
        cases
    }
}

impl Kernels for RmsNorm {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, gain) = (linker.input(0), linker.input(1));
        let (y, inverse) = (linker.output(0), linker.output(1));
        if y.dtype != x.dtype {
            return Err(Unsupported(y.dtype));
        }
        let (_, columns) = x.shape().rows_and_columns();
        with_float!(x.dtype, T => {
            let operands = kernel::Operands::<T> {
                x: x.read(),
                gain: gain.read(),
                bias_and_mean: None,
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
            bias_and_mean: None,
            y: &linker.output(0),
            inverse_deviation: &linker.output(1),
        };
        linker.launch(gradus_cuda::norm(&operands, self.epsilon));
        Ok(())
    }
}

impl RmsNormGradient {
    /// The results made of plain operations.
    fn decomposed(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let (operands, added) = self.around.split(inputs);
        self.around.decomposed(added, decomposed_gradient(operands))
    }
}

impl Operation for RmsNormGradient {
    fn name(&self) -> &'static str {
        "rms_norm_gradient"
    }

    fn attributes(&self) -> String {
        self.around.attributes()
    }

    fn output_count(&self) -> usize {
        2 + self.around.more_outputs()
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_operands(&inputs[0], &[&inputs[1]], 0.0)?;
        check_gradient_operands(&inputs[0], &[&inputs[2]], &inputs[3])?;
        self.around.outputs(inputs.get(4), vec![inputs[0].clone(), inputs[1].clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(11, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        self.around.in_place(3)
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        self.around.accumulates(1..2)
    }

    fn form(&self) -> Form<'_> {
        Form::Rows(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (operands, added) = self.around.split(inputs);
        let [x, gain, inverse, g] = operands else { unreachable!("as outputs() says") };
        let columns = gain.data.len();
        let (mut x_gradient, mut gain_gradient) = (vec![], vec![0.0; columns]);
        for (row, (x, g)) in x.rows().zip(g.rows()).enumerate() {
            let inverse = inverse.data[row];
            let weighted: Vec<f64> = g.iter().zip(&gain.data).map(|(g, gain)| g * gain).collect();
            let stretch = weighted.iter().zip(x).map(|(w, x)| w * x * inverse).sum::<f64>() / columns as f64;
            for i in 0..columns {
                x_gradient.push(inverse * (weighted[i] - x[i] * inverse * stretch));
                gain_gradient[i] += g[i] * x[i] * inverse;
            }
        }
        let results = vec![Reals::new(&outputs[0].shape, x_gradient), Reals::new(&outputs[1].shape, gain_gradient)];
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
                CaseInput::uniform(rows, 0.5, 1.5),
                CaseInput::uniform(shape, -2.0, 2.0),
            ];
            Case::with_inputs(&format!("{shape:?}"), inputs, |x| {
                x[0].trace().apply(RmsNormGradient::default(), &[&x[0], &x[1], &x[2].cast(DType::F32), &x[3]])
            })
        };
        // More than one block. Finite differences of so many elements would be slow, and the others show them.
        let mut large = case(&[17, 1000]);
        large.inputs = large.inputs.into_iter().map(CaseInput::without_gradient).collect();
        let small = [&[3, 5][..], &[7], &[1, 1], &[4, 1], &[2, 3, 33], &[0, 4]];
        small.into_iter().map(case).chain([large]).collect()
    }
}

impl Kernels for RmsNormGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, gain, inverse, g) = (linker.input(0), linker.input(1), linker.input(2), linker.input(3));
        if g.dtype != x.dtype || self.around.is_something() {
            return Err(Unsupported(g.dtype));
        }
        let blocks = gradient_blocks(x.shape());
        let shares = linker.scratch(blocks.shares(1));
        with_float!(x.dtype, T => {
            let operands = gradient_kernel::Operands::<T> {
                x: x.read(),
                gain: gain.read(),
                inverse_deviation: inverse.read(),
                y_gradient: g.read(),
                mean_and_bias_gradient: None,
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
        let added = self.around.has_added().then(|| linker.input(4));
        let [copy, sums] = self.around.further(linker, 2);
        let operands = gradus_cuda::NormGradient {
            x: &linker.input(0),
            gain: &linker.input(1),
            mean: None,
            inverse_deviation: &linker.input(2),
            y_gradient: &linker.input(3),
            added: added.as_ref(),
            x_gradient: &linker.output(0),
            copy: copy.as_ref(),
            sums_copy: sums.is_some(),
        };
        link_norm_gradient(linker, &operands, sums);
        Ok(())
    }
}

impl RowOperation for RmsNorm {
    fn reading(&self, _input: usize, _dtype: DType) -> Option<Arc<dyn Operation>> {
        None
    }

    fn storing(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(RmsNorm { stored: Some(dtype), ..*self }))
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

impl RowOperation for RmsNormGradient {
    fn reading(&self, input: usize, _dtype: DType) -> Option<Arc<dyn Operation>> {
        (input == 3).then(|| Arc::new(*self) as Arc<dyn Operation>)
    }

    fn storing(&self, _dtype: DType) -> Option<Arc<dyn Operation>> {
        None
    }

    fn adding(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(RmsNormGradient { around: self.around.adding()? }))
    }

    fn copying(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(RmsNormGradient { around: self.around.copying(dtype)? }))
    }

    fn summing(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(RmsNormGradient { around: self.around.summing()? }))
    }
}

impl Tensor {
    /// Rows along the last axis divided by their root mean square, times a gain for every column. `epsilon` is
    /// added to the mean square.
    #[track_caller]
    pub fn rms_norm(&self, gain: &Tensor, epsilon: f32) -> Tensor {
        self.trace().apply(RmsNorm { epsilon, stored: None }, &[self, gain]).swap_remove(0)
    }
}
