//! The Walsh-Hadamard transform of rows, by butterflies: n log n where a matrix product takes n squared.

use gradus::ops::{
    Case, Cost, Cut, Differentiation, Effect, Form, Linearization, Lowering, Numbers, NumbersMut, Operation, Reals,
    SliceKernel, Work,
};
use gradus::{DType, Mismatch, Tensor, TensorType};

/// The transform of the last axis, scaled so that it is its own inverse. Sizes are powers of two.
#[derive(Debug)]
pub struct Hadamard;

/// The transform of a tensor's last axis.
#[track_caller]
pub fn hadamard(x: &Tensor) -> Tensor {
    x.trace().apply_one(Hadamard, &[x])
}

impl Operation for Hadamard {
    fn name(&self) -> &'static str {
        "hadamard"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let x = &inputs[0];
        if x.dtype != DType::F32 {
            return Err(Mismatch::DType(format!("takes f32, not {}; cast first", x.dtype)));
        }
        match x.shape.last() {
            Some(size) if size.is_power_of_two() => Ok(vec![x.clone()]),
            _ => Err(Mismatch::Shape("the last axis must be a power of two; pad it".to_string())),
        }
    }

    // The transform is its own transpose.
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(hadamard(&at.gradient(0)))]
    }

    // It is linear.
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(hadamard)]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let size = inputs[0].shape.last().copied().unwrap_or(1);
        Cost::per_element(1 + u64::from(size.ilog2()), inputs, outputs).as_work(Work::Elements)
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

    /// Row `i` of the matrix has the sign of the parity of `i & j` at column `j`.
    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        let transformed = inputs[0].rows().flat_map(|row| {
            let sign = |i: usize, j: usize| if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
            let scale = (row.len() as f64).sqrt().recip();
            let number = move |i| row.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum::<f64>() * scale;
            (0..row.len()).map(number)
        });
        vec![Reals::new(&inputs[0].shape, transformed.collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Slices(self)
    }

    fn cases() -> Vec<Case> {
        let shapes: [&[usize]; 6] = [&[1], &[3, 8], &[2, 3, 4], &[0, 4], &[700, 64], &[5, 1024]];
        shapes.map(|shape| Case::new(&format!("{shape:?}"), &[shape], |x| vec![hadamard(&x[0])])).into()
    }
}

impl SliceKernel for Hadamard {
    fn cut(&self, inputs: &[TensorType]) -> Cut {
        if inputs[0].shape.rank() > 1 { Cut::Rows(vec![0]) } else { Cut::Whole }
    }

    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        let size = inputs[0].shape().last().copied().unwrap_or(1);
        let scale = (size as f32).sqrt().recip();
        let y = outputs[0].of::<f32>();
        y.copy_from_slice(inputs[0].of());
        for row in y.chunks_exact_mut(size) {
            butterflies(row);
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

fn butterflies(row: &mut [f32]) {
    let mut half = 1;
    while half < row.len() {
        for pair in row.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            left.iter_mut().zip(right).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        half *= 2;
    }
}
