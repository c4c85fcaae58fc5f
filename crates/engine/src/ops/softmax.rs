//! Softmax along the last axis.

use super::*;
use gradus_cuda::{Source, sources};
use gradus_kernels::softmax as kernel;

/// Softmax along the last axis, or its logarithm.
#[derive(Debug)]
pub struct Softmax {
    logarithm: bool,
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn attributes(&self) -> String {
        if self.logarithm { "logarithm".to_string() } else { String::new() }
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        Mismatch::unless_rank("the operand", &inputs[0], 1)?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (y, g) = (&at.outputs[0], &at.gradient(0));
        let gradient = match self.logarithm {
            true => g - &(&y.exp() * &g.sum_keep(&[-1])),
            false => y * &(g - &(g * y).sum_keep(&[-1])),
        };
        vec![Some(gradient)]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let y = &at.outputs[0];
        let tangent = |t: &Tensor| match self.logarithm {
            true => t - &(&y.exp() * t).sum_keep(&[-1]),
            false => y * &(t - &(t * y).sum_keep(&[-1])),
        };
        vec![at.tangent(0).map(tangent)]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(12, inputs, outputs)
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
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        let mut data = Vec::with_capacity(inputs[0].data.len());
        for row in inputs[0].rows() {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            data.extend(row.iter().map(|x| match self.logarithm {
                true => x - largest - total.ln(),
                false => (x - largest).exp() / total,
            }));
        }
        vec![Reals::new(&inputs[0].shape, data)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for shape in [&[3, 5][..], &[1], &[2, 3, 33], &[4, 1], &[0, 4], &[70, 300]] {
            cases.push(Case::new("softmax", &[shape], |x| vec![x[0].softmax(-1)]));
            cases.push(Case::new("log-softmax", &[shape], |x| vec![x[0].log_softmax(-1)]));
        }
        cases.push(Case::new("along another axis", &[&[3, 4, 2]], |x| vec![x[0].softmax(1)]));
        let wide = CaseInput::uniform([2, 40], -60.0, 60.0);
        cases.push(Case::with_inputs("far apart", vec![wide], |x| vec![x[0].softmax(-1)]));
        cases
    }
}

impl Kernels for Softmax {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let (_, columns) = x.layout.shape.rows_and_columns();
        with_float!(x.dtype, T => {
            linker.job(kernel::Softmax::<T>::new(linker.isa(), x.read(), y.write(), columns, self.logarithm));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let columns = x.shape.last().copied().unwrap_or(1);
        let rows = x.elements() / columns.max(1);
        let threads = gradus_cuda::threads_for(columns);
        let source = Source::new("softmax", sources::SOFTMAX).operand("x", &x).operand("y", &y);
        let source = source.size("COLUMNS", columns).constant("THREADS", threads);
        linker.launch(source.constant("LOGARITHM", self.logarithm as u8).launch(rows, threads));
        Ok(())
    }
}

impl Tensor {
    /// Softmax along an axis.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        self.softmax_along(axis, false)
    }

    /// The logarithm of the softmax along an axis, without overflow.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        self.softmax_along(axis, true)
    }

    #[track_caller]
    fn softmax_along(&self, axis: isize, logarithm: bool) -> Tensor {
        let Some(axis) = self.axis("softmax", axis) else { return self.trace().poisoned() };
        let moved = self.transpose(axis as isize, -1);
        self.trace().apply_one(Softmax { logarithm }, &[&moved]).transpose(axis as isize, -1)
    }
}
