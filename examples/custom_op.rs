//! An operation of one's own: a kernel that is a plain function, a gradient, and the tests that gradus runs on its own. Then
//! the shorter ways: an element-wise function, a gradient for a function there is, and a part that is made again.

use gradus::backend::Cpu;
use gradus::ops::{
    Case, Cost, Cut, Differentiation, Effect, Form, Linearization, Lowering, Numbers, NumbersMut, Operation, Reals,
    SliceKernel,
};
use gradus::{
    Array, DType, GradientTape, Mismatch, Result, Routine, Tensor, TensorType, Trace, custom_gradient, gradient,
};

/// `log(sum(exp(x)))` of each row, in one pass that cannot overflow.
#[derive(Debug)]
struct LogSumExp;

/// The logarithm of the sum of exponentials of each row: [r, c] to [r].
#[track_caller]
fn log_sum_exp(x: &Tensor) -> Tensor {
    x.trace().apply_one(LogSumExp, &[x])
}

impl Operation for LogSumExp {
    fn name(&self) -> &'static str {
        "log_sum_exp"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let TensorType { dtype, shape } = &inputs[0];
        if *dtype != DType::F32 {
            return Err(Mismatch::DType(format!("takes f32, not {dtype}; cast first")));
        }
        match shape.rank() == 2 && shape[1] > 0 {
            true => Ok(vec![TensorType::new(DType::F32, [shape[0]])]),
            false => Err(Mismatch::Shape(format!("takes rows, [r, c], not {shape}; reshape it"))),
        }
    }

    /// The gradient is the softmax of the rows, made of tensors: so it can be differentiated again.
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let column = |rows: &Tensor| rows.reshape([rows.size(0), 1]);
        let softmax = (&at.inputs[0] - column(&at.outputs[0])).exp();
        vec![Some(softmax * column(&at.gradient(0)))]
    }

    /// How the result changes with the operand: each row's tangent, weighed by the softmax.
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let rows = &at.outputs[0];
        let softmax = (&at.inputs[0] - rows.reshape([rows.size(0), 1])).exp();
        vec![at.tangent(0).map(|tangent| (softmax * tangent).sum(&[-1]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { operations: 20 * inputs[0].shape.elements() as u64, ..Cost::per_element(0, inputs, outputs) }
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
        let of_row = |row: &[f64]| row.iter().map(|x| x.exp()).sum::<f64>().ln();
        vec![Reals::new(&outputs[0].shape, inputs[0].rows().map(of_row).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Slices(self)
    }

    fn cases() -> Vec<Case> {
        let shapes: [&[usize]; 4] = [&[3, 5], &[1, 1], &[0, 4], &[900, 40]];
        shapes.map(|shape| Case::new(&format!("{shape:?}"), &[shape], |x| vec![log_sum_exp(&x[0])])).into()
    }
}

impl SliceKernel for LogSumExp {
    fn cut(&self, _inputs: &[TensorType]) -> Cut {
        Cut::Rows(vec![0])
    }

    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        let columns = inputs[0].shape()[1];
        let rows = inputs[0].of::<f32>().chunks_exact(columns);
        for (row, y) in rows.zip(outputs[0].of::<f32>()) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            *y = largest + row.iter().map(|x| (x - largest).exp()).sum::<f32>().ln();
        }
    }
}

fn main() -> Result<()> {
    gradus::testing::check_operation::<LogSumExp>();
    println!("log_sum_exp: every case on every kernel, element type and number of threads, differentiated twice");

    let tape = GradientTape::new()?;
    let x = tape.watch(Array::new([2, 3], &[1.0f32, 2.0, 3.0, 1000.0, 0.0, 1000.0])?);
    let y = log_sum_exp(&x);
    let slope = &tape.gradient(&y, &[&x])?[0];
    let read = tape.read_all(&[&y, slope])?;
    println!("of [1, 2, 3] and [1000, 0, 1000]: {:.4?}, slopes {:.4?}", read[0].to_f64(), read[1].to_f64());
    assert!((read[0].to_f64()[0] - 3.4076).abs() < 1e-3 && (read[1].to_f64()[3] - 0.5).abs() < 1e-3);

    // An element-wise function: its gradient is derived.
    let mish = Tensor::elementwise([&x], |[x]| x * (x.exp() + 1.0).log().tanh());
    let slope = &tape.gradient(&mish, &[&x])?[0];
    println!("mish of 1: {:.4}, slope {:.4}", tape.read(&mish)?.to_f64()[0], tape.read(slope)?.to_f64()[0]);
    assert!((tape.read(slope)?.to_f64()[0] - 1.0490).abs() < 1e-3);

    // A gradient for a function there is: numbers are rounded, and their gradient passes.
    let whole = |x: &[Tensor]| vec![x[0].cast(DType::I32).cast(DType::F32)];
    let rounded = &custom_gradient(&[&(&x * 0.4)], whole, |_, _, gradients| vec![Some(gradients[0].clone())])[0];
    let slope = &tape.gradient(&(rounded * rounded), &[&x])?[0];
    println!("rounded 0.4 x, squared: slopes {:.2?}", tape.read(slope)?.to_f64());
    assert_eq!(tape.read(slope)?.to_f64()[2], (2.0 * 0.4f32) as f64);

    println!("kept: {} KB; made again: {} KB", transients(false)? / 1024, transients(true)? / 1024);
    assert!(transients(true)? < transients(false)?);
    Ok(())
}

/// The bytes of all results of a step of eight layers, whose insides are made again for the gradient or not.
fn transients(checkpointed: bool) -> Result<usize> {
    let trace = Trace::new();
    let w = trace.zero_state("w", DType::F32, [32, 32]);
    let mut x = trace.input("x", DType::F32, [1024, 32]);
    for _ in 0..8 {
        let layer = || (x.matmul(&w).tanh() * x.sigmoid()).softmax(-1);
        let next = if checkpointed { trace.checkpoint(layer) } else { layer() };
        x = next;
    }
    let slope = &gradient(&x.sum_of_squares(&[0, 1]), &[&w])?[0];
    let step = Routine::new("step").assign(&w, &(&w - slope));
    Ok(trace.compile(&Cpu::new(1)?, &[step])?.plan().regions.transients)
}
