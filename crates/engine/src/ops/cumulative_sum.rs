//! Sums along an axis of all elements up to each one.

use super::*;
use gradus_cuda::{Source, sources};
use gradus_kernels::cumulative as kernel;

/// Each element is the sum of all up to it along the axis, or of all from it on.
#[derive(Debug)]
pub struct CumulativeSum {
    axis: usize,
    reverse: bool,
}

impl Operation for CumulativeSum {
    fn name(&self) -> &'static str {
        "cumulative_sum"
    }

    fn attributes(&self) -> String {
        format!("axis {}{}", self.axis, if self.reverse { ", reversed" } else { "" })
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let back = CumulativeSum { axis: self.axis, reverse: !self.reverse };
        let g = at.gradient(0);
        vec![Some(g.trace().apply_one(back, &[&g]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let again = |tangent: &Tensor| {
            tangent.trace().apply_one(CumulativeSum { axis: self.axis, reverse: self.reverse }, &[tangent])
        };
        vec![at.tangent(0).map(again)]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(1, inputs, outputs)
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

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        let x = inputs[0];
        vec![Reals::from_fn(&x.shape, |at| {
            let summed = if self.reverse { at[self.axis]..x.shape[self.axis] } else { 0..at[self.axis] + 1 };
            let element = |place: usize| {
                let mut from = at.to_vec();
                from[self.axis] = place;
                x.at(&from)
            };
            summed.map(element).sum()
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let rows: [(&[usize], isize); 7] =
            [(&[5], 0), (&[3, 7], -1), (&[4, 5], 0), (&[2, 3, 4], 1), (&[0, 3], 1), (&[2, 0], 1), (&[3, 40, 130], 1)];
        rows.map(|(shape, axis)| {
            Case::new(&format!("{shape:?} along {axis}"), &[shape], move |x| vec![x[0].cumulative_sum(axis)])
        })
        .into()
    }
}

impl Kernels for CumulativeSum {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let shape = x.shape();
        let (axis, inner) = (shape[self.axis], shape[self.axis + 1..].iter().product());
        with_float!(x.dtype, T => {
            linker.job(kernel::CumulativeSum::<T>::new(x.read(), y.write(), axis, inner, self.reverse));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (x, y) = (linker.input(0), linker.output(0));
        let (axis, inner) = (x.shape[self.axis], x.shape[self.axis + 1..].iter().product::<usize>());
        let lines = x.elements().checked_div(axis).unwrap_or(0);
        let (entry, blocks) = match inner >= 32 {
            true => ("cumulative_lines", lines.div_ceil(THREADS)),
            false => ("cumulative_blocks", lines),
        };
        let source = Source::new(entry, sources::CUMULATIVE).operand("x", &x).operand("y", &y).size("LINES", lines);
        let source = source.size("AXIS", axis).size("INNER", inner).constant("REVERSE", self.reverse as u8);
        linker.launch(source.constant("THREADS", THREADS).launch(blocks, THREADS));
        Ok(())
    }
}

impl Tensor {
    /// The sum of all elements up to each one along an axis, itself among them. Sums are rounded for each result only.
    #[track_caller]
    pub fn cumulative_sum(&self, axis: isize) -> Tensor {
        let Some(axis) = self.axis("cumulative_sum", axis) else { return self.trace().poisoned() };
        self.trace().apply_one(CumulativeSum { axis, reverse: false }, &[self])
    }
}
