//! How far rounding may move the results of a computation, found from the computation itself: the reference is
//! evaluated again with every number that an operation stores, and that its type cannot hold, moved by one rounding.

use super::numbers::Random;
use crate::graph::{Graph, Source, Value};
use crate::ops::{Lowering, Reals};
use crate::{Array, DType, TensorType};

/// Evaluations with numbers moved; each moves every one of them up or down at random.
const SAMPLES: u64 = 4;

/// What kernels add to the roundings that are seen between operations: operands rounded as they are read, sums in
/// another order, a last bit of a function.
const INSIDE: f64 = 4.0;

/// The largest relative change of a number that is stored in this type.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2f64.powi(-24),
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        DType::F64 | DType::I32 | DType::U32 => 0.0,
    }
}

/// For each result, how far any of its numbers may be from the exact one: as far as the roundings before it may move it,
/// and its own.
pub fn allowed(
    graph: &Graph,
    results: &[Value],
    exact: &[Reals],
    leaf: impl Fn(usize) -> Option<Vec<f64>>,
) -> Vec<f64> {
    let largest =
        |result: &Reals| result.data.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    let own = |(value, exact): (&Value, &Reals)| 2.0 * unit(graph.ty(*value).dtype) * largest(exact);
    let mut allowed: Vec<f64> = results.iter().zip(exact).map(own).collect();
    for sample in 0..SAMPLES {
        let moved = moved(graph, results, &leaf, &mut Random::new(sample));
        for ((allowed, moved), exact) in allowed.iter_mut().zip(&moved).zip(exact) {
            let distance = |(a, b): (&f64, &f64)| if a.is_finite() && b.is_finite() { (a - b).abs() } else { 0.0 };
            let farthest = moved.data.iter().zip(&exact.data).map(distance).fold(0.0, f64::max);
            *allowed = f64::max(*allowed, INSIDE * farthest);
        }
    }
    allowed
}

/// The results, with every number that an operation stores moved by one rounding.
fn moved(
    graph: &Graph,
    results: &[Value],
    leaf: impl Fn(usize) -> Option<Vec<f64>>,
    random: &mut Random,
) -> Vec<Reals> {
    let mut values: Vec<Vec<Reals>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let given = |numbers: Option<Vec<f64>>| {
            vec![Reals::new(&node.outputs[0].shape, numbers.expect("a case has inputs and constants alone"))]
        };
        values.push(match &node.source {
            Source::Input(_) | Source::State(..) => given(leaf(index)),
            Source::Constant(array) => given(Some(array.to_f64())),
            Source::Op(op) => {
                let inputs: Vec<&Reals> = node.inputs.iter().map(|input| &values[input.node][input.output]).collect();
                let mut outputs = op.reference(&inputs, &node.outputs);
                if !matches!(op.lowering(), Lowering::View(_) | Lowering::Identity) {
                    outputs.iter_mut().zip(&node.outputs).for_each(|(output, ty)| round(output, ty, random));
                }
                outputs
            }
        });
    }
    results.iter().map(|result| values[result.node][result.output].clone()).collect()
}

/// Moves the numbers that the type cannot hold; those that it can, such as a class or the largest of some numbers, stay
/// what they are in any kernel.
fn round(output: &mut Reals, ty: &TensorType, random: &mut Random) {
    let (unit, held) = (unit(ty.dtype), Array::from_f64(ty.clone(), &output.data).unwrap().to_f64());
    for (x, held) in output.data.iter_mut().zip(held) {
        if *x != held {
            *x *= 1.0 + [unit, -unit][random.below(2)];
        }
    }
}
