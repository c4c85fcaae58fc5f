//! Optimizer updates: weights and their moments move on in one pass over memory, each over its own bytes.
//!
//! An optimizer is a struct of its settings; its `update` takes the tensors by name and gives the new ones by name.

mod adafactor;
mod adamw;
mod clip;
mod lion;
mod sgd;

pub use adafactor::{Adafactor, AdafactorInputs, AdafactorOutputs, SecondMoment};
pub use adamw::{AdamW, AdamWInputs, AdamWOutputs};
pub use clip::{clip_by_global_norm, clip_by_value};
pub use lion::{Lion, LionInputs, LionOutputs};
pub use sgd::{Sgd, SgdInputs, SgdOutputs};

use super::*;
use crate::backend::LinkedOperand;
use crate::{DType, Shape};
use gradus_cuda::{Source, sources};
use gradus_kernels::updates as kernel;

/// Checks the operands that every update starts with, weight and gradient, and that what follows is `moments`
/// tensors like the weight and then `numbers` single numbers, the gradient's scale last; gives the types of the results.
fn outputs_of_update(inputs: &[TensorType], moments: usize, numbers: usize) -> Result<Vec<TensorType>, Mismatch> {
    Mismatch::unless_count(inputs, 2 + moments + numbers)?;
    let weight = &inputs[0];
    Mismatch::unless_float(&inputs[1])?;
    Mismatch::unless_shape("the gradient, like the weight,", &inputs[1], &weight.shape)?;
    for (index, input) in inputs.iter().enumerate().filter(|(index, _)| *index != 1) {
        if input.dtype != DType::F32 {
            let problem = format!(
                "takes weights, moments and numbers in f32, not {}; only the gradient may be of another type",
                input.dtype
            );
            return Err(Mismatch::DType(problem));
        }
        match index {
            0 => (),
            _ if index < 2 + moments => Mismatch::unless_shape("a moment, like the weight,", input, &weight.shape)?,
            _ => Mismatch::unless_shape("the learning rate (and the step, and the scale)", input, &Shape::default())?,
        }
    }
    Ok(vec![weight.clone(); 1 + moments])
}

/// Checks that a setting lies in its range.
fn check_setting(
    name: &str,
    setting: f32,
    range: impl std::ops::RangeBounds<f32>,
    words: &str,
) -> Result<(), Mismatch> {
    if range.contains(&setting) {
        return Ok(());
    }
    Err(Mismatch::Parameter(format!("{name} is {setting}; it must be {words}")))
}

/// Checks a factor by which a moment is kept.
fn check_beta(name: &str, beta: f32) -> Result<(), Mismatch> {
    check_setting(name, beta, 0.0..1.0, "at least 0 and below 1")
}

/// Checks a number that must be finite and not negative.
fn check_not_negative(name: &str, setting: f32) -> Result<(), Mismatch> {
    check_setting(name, setting, 0.0..f32::INFINITY, "finite and not negative")
}

/// Links an update: operands are weight, gradient and moments, and that of index `scale`; results are weight and moments.
fn link_update<R: kernel::Rule>(linker: &mut Linker<'_>, rule: R, scale: usize) -> Result<(), Unsupported> {
    let moved = |from: LinkedOperand, to: LinkedOperand| kernel::Moved { from: from.read(), to: to.write() };
    let gradient = linker.input(1);
    let gradient = match gradient.dtype {
        DType::F32 => kernel::Gradient::F32(gradient.read()),
        DType::Bf16 => kernel::Gradient::Bf16(gradient.read()),
        DType::F16 => kernel::Gradient::F16(gradient.read()),
        other => return Err(Unsupported(other)),
    };
    let weight = moved(linker.input(0), linker.output(0));
    let moments: Vec<kernel::Moved> =
        (0..R::MOMENTS).map(|index| moved(linker.input(2 + index), linker.output(1 + index))).collect();
    let gradient = kernel::Scaled { gradient, scale: linker.input(scale).read() };
    linker.job(kernel::Update::new(linker.isa(), rule, weight, gradient, &moments));
    Ok(())
}

/// Links an update for CUDA by a rule, of which the constants are given: operands are weight, gradient and moments, and those
/// of these indices; results are weight and moments.
fn link_cuda_update(
    linker: &mut CudaLinker<'_>,
    rule: &str,
    constants: &[(&str, f32)],
    [learning_rate, step, scale]: [usize; 3],
) {
    const THREADS: usize = 256;
    /// Vectors of each thread, so that a block's factors serve for more than one.
    const ITEMS: usize = 4;
    let (gradient, moments) = (linker.input(1), learning_rate - 2);
    let (weight, count) = (linker.input(0), gradient.elements());
    let moved: Vec<_> = (0..moments).flat_map(|at| [linker.input(2 + at), linker.output(1 + at)]).collect();
    let mut dense = vec![&weight, &gradient];
    dense.extend(&moved);
    let new_weight = linker.output(0);
    dense.push(&new_weight);
    let vector = gradus_cuda::common_vector(count, &dense);
    // A rule of one moment follows no address of a second.
    let moment = |at: usize| moved[2 * at.min(moments - 1)].address;
    let new_moment = |at: usize| moved[2 * at.min(moments - 1) + 1].address;
    let mut source = Source::new("update", sources::UPDATE);
    for &(name, number) in constants {
        source = source.number(name, number);
    }
    source = source.code(rule).address(weight.address).operand("g", &gradient).address(moment(0)).address(moment(1));
    for number in [learning_rate, step, scale] {
        source = source.address(linker.input(number).address);
    }
    source = source.address(new_weight.address).address(new_moment(0)).address(new_moment(1)).size("COUNT", count);
    source = source.constant("MOMENTS", moments).constant("VECTOR", vector);
    source = source.constant("ITEMS", ITEMS).constant("THREADS", THREADS);
    linker.launch(source.launch(count.div_ceil(ITEMS * vector * THREADS), THREADS));
}

/// The results of a formula applied to every element, as every update's meaning is: `numbers` holds, for one
/// element, weight, scaled gradient and moments.
fn reference_of_update<const N: usize>(inputs: &[&Reals], formula: impl Fn(&[f64]) -> [f64; N]) -> Vec<Reals> {
    let mut results = vec![inputs[0].clone(); N];
    let scale = inputs[inputs.len() - 1].data[0];
    for element in 0..inputs[0].data.len() {
        let mut numbers: Vec<f64> = inputs[..1 + N].iter().map(|input| input.data[element]).collect();
        numbers[1] *= scale;
        for (result, number) in results.iter_mut().zip(formula(&numbers)) {
            result.data[element] = number;
        }
    }
    results
}

/// The operands of a case: a weight, a gradient and so many moments, all positive if their root is taken.
fn case_inputs(shape: &[usize], moments: &[Fill]) -> Vec<CaseInput> {
    let weight = CaseInput::uniform(shape, -2.0, 2.0);
    let gradient = CaseInput::filled(shape, Fill::AwayFromZero(-2.0, 2.0, 0.25));
    let moments = moments.iter().map(|fill| CaseInput::filled(shape, fill.clone()));
    [weight, gradient].into_iter().chain(moments).collect()
}

/// A single number, as learning rates, steps and scales are.
fn case_number(number: f64) -> CaseInput {
    CaseInput::filled([], Fill::Numbers(vec![number]))
}

/// Shapes that every update is tried with: small, a single number, and nothing.
const CASE_SHAPES: [&[usize]; 4] = [&[3, 5], &[], &[1], &[2, 0]];

/// A shape of more than one part of the kernels.
const LARGE_SHAPE: &[usize] = &[130, 140];

/// The same without gradients: a large case is there for the kernels, and finite differences of it are slow.
fn undifferentiated(mut case: Case) -> Case {
    case.inputs.iter_mut().for_each(|input| input.differentiable = false);
    case
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Trace};

    type Outcome = std::result::Result<crate::graph::Value, String>;

    #[test]
    fn an_update_says_what_does_not_fit() {
        let problem = |op: Sgd, weight: (DType, &[usize]), buffer: &[usize], rate: &[usize]| {
            let trace = Trace::new();
            let new = op.update(SgdInputs {
                weight: &trace.input("weight", weight.0, weight.1),
                gradient: &trace.input("gradient", DType::Bf16, [2, 3]),
                buffer: &trace.input("buffer", DType::F32, buffer),
                learning_rate: &trace.input("rate", DType::F32, rate),
                scale: &trace.input("scale", DType::F32, []),
            });
            new.weight.handle().map_err(|error| match error {
                Error::Shape { problem, .. } | Error::DType { problem, .. } | Error::Parameter { problem, .. } => {
                    problem
                }
                other => panic!("{other}"),
            })
        };
        let plain = Sgd::default();
        let fits = (DType::F32, &[2, 3][..]);
        assert!(problem(plain, fits, &[2, 3], &[]).is_ok());
        let fails = |result: Outcome, part: &str| {
            let problem = result.unwrap_err();
            assert!(problem.contains(part), "{problem}");
        };
        fails(problem(plain, (DType::Bf16, &[2, 3]), &[2, 3], &[]), "in f32, not bf16");
        fails(problem(plain, (DType::F32, &[3]), &[3], &[]), "the gradient, like the weight, must be of shape [3]");
        fails(problem(plain, fits, &[3], &[]), "a moment, like the weight, must be of shape [2, 3]");
        fails(
            problem(plain, fits, &[2, 3], &[1]),
            "the learning rate (and the step, and the scale) must be of shape []",
        );
        fails(problem(Sgd { momentum: 1.0, ..plain }, fits, &[2, 3], &[]), "momentum is 1; it must be at least 0");
        fails(problem(Sgd { weight_decay: f32::NAN, ..plain }, fits, &[2, 3], &[]), "weight_decay is NaN");
    }
}
