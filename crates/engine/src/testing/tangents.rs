//! Tangents of cases: against finite differences of the f64 reference; and Hessians times vectors, which must be the same
//! forward over reverse and reverse over reverse, in the reference and by the kernels.

use super::comparison::{compare_each, relative};
use super::gradients::weighted_sum;
use super::numbers::{Random, fill};
use super::rounding;
use crate::backend::{Cpu, evaluate};
use crate::graph::{Graph, Value};
use crate::ops::{Case, ListedOperation, Reals};
use crate::{Array, Routine, Tensor, Trace, gradient_or_zeros, hessian_vector_product, jacobian_vector_product};

const STEP: f64 = 1e-5;
/// Central differences in f64 are good to about STEP^2 plus rounding over STEP.
const TOLERANCE: f64 = 2e-6;
/// Two orders of the same arithmetic in f64, but for the constants in what fused operations are made of, which are f32.
const SAME: f64 = 5e-7;
/// Elements of the operands of a small case, at most.
const SMALL: usize = 400;

/// A case with a direction for every operand that can be differentiated by, and what is found along it.
struct Traced {
    trace: Trace,
    graph: Graph,
    /// Operands and directions, by the names that they have in the trace.
    fed: Vec<(String, Value, Array)>,
    /// How many of these are operands; a direction is `None` where the operand does not change.
    directions: Vec<Option<Vec<f64>>>,
    outputs: Vec<Value>,
    tangents: Vec<Tensor>,
    /// The Hessian of a weighted sum of the outputs times the direction, forward over reverse and reverse over reverse.
    products: Vec<Tensor>,
    reversed: Vec<Value>,
}

fn traced(case: &Case, seed: u64) -> Traced {
    let mut random = Random::new(seed);
    let trace = Trace::new();
    let mut fed = vec![];
    let mut input = |name: String, array: Array| {
        let tensor = trace.input(&name, array.ty().dtype, array.shape());
        fed.push((name, tensor.handle().unwrap(), array));
        tensor
    };
    let numbers: Vec<Vec<f64>> = case.inputs.iter().map(|input| fill(input, &mut random)).collect();
    let of_type = |index: usize, numbers: &[f64]| Array::from_f64(case.inputs[index].ty.clone(), numbers).unwrap();
    let inputs: Vec<Tensor> =
        (0..numbers.len()).map(|index| input(format!("x{index}"), of_type(index, &numbers[index]))).collect();
    let changing: Vec<usize> = (0..inputs.len()).filter(|&index| case.inputs[index].differentiable).collect();
    let mut directions = vec![None; inputs.len()];
    let mut vectors = vec![];
    for &index in &changing {
        let direction: Vec<f64> = numbers[index].iter().map(|_| random.uniform(-1.0, 1.0) as f32 as f64).collect();
        vectors.push(input(format!("v{index}"), of_type(index, &direction)));
        directions[index] = Some(direction);
    }
    let outputs: Vec<Tensor> = (case.build)(&inputs).into_iter().filter(|output| output.dtype().is_float()).collect();
    let changing: Vec<&Tensor> = changing.iter().map(|&index| &inputs[index]).collect();
    let vectors: Vec<&Tensor> = vectors.iter().collect();
    let fails = |error| panic!("{}: {error}", case.name);
    let tangents =
        jacobian_vector_product(&outputs.iter().collect::<Vec<_>>(), &changing, &vectors).unwrap_or_else(fails);
    let objective = weighted_sum(&outputs, &mut random);
    let products = hessian_vector_product(&objective, &changing, &vectors).unwrap_or_else(fails);
    let slopes = gradient_or_zeros(&objective, &changing).unwrap_or_else(fails);
    let along = slopes.iter().zip(&vectors).map(|(slope, &vector)| (slope * vector).sum_all());
    let along = along.reduce(|a, b| a + b).expect("a case that can be differentiated");
    let reversed = gradient_or_zeros(&along, &changing).unwrap_or_else(fails);
    let values = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.handle().unwrap()).collect::<Vec<_>>();
    let (outputs, reversed) = (values(&outputs), values(&reversed));
    Traced { graph: trace.to_graph(), trace, fed, directions, outputs, tangents, products, reversed }
}

impl Traced {
    /// What values are where the operands have gone so far along the direction.
    fn evaluate(&self, values: &[Value], far: f64) -> Vec<Reals> {
        evaluate(&self.graph, values, |node| {
            let at = self.fed.iter().position(|(_, value, _)| value.node == node)?;
            let mut numbers = self.fed[at].2.to_f64();
            if let Some(Some(direction)) = self.directions.get(at) {
                numbers.iter_mut().zip(direction).for_each(|(x, v)| *x += far * v);
            }
            Some(numbers)
        })
    }

    fn handles(tensors: &[Tensor]) -> Vec<Value> {
        tensors.iter().map(|tensor| tensor.handle().unwrap()).collect()
    }

    fn compare_differences(&self, what: &str) {
        let claimed = self.evaluate(&Self::handles(&self.tangents), 0.0);
        let [before, after] = [-STEP, STEP].map(|far| self.evaluate(&self.outputs, far));
        for (index, claimed) in claimed.iter().enumerate() {
            let scale = claimed.data.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
            for (element, claimed) in claimed.data.iter().enumerate() {
                let measured = (after[index].data[element] - before[index].data[element]) / (2.0 * STEP);
                assert!(
                    (measured - claimed).abs() / scale < TOLERANCE,
                    "{what}: tangent of result {index}, element {element}: {claimed} is claimed, {measured} measured"
                );
            }
        }
    }

    fn compare_orders(&self, what: &str) {
        let forward = self.evaluate(&Self::handles(&self.products), 0.0);
        let reverse = self.evaluate(&self.reversed, 0.0);
        for (index, (forward, reverse)) in forward.iter().zip(&reverse).enumerate() {
            let scale = reverse.data.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
            for (element, (forward, reverse)) in forward.data.iter().zip(&reverse.data).enumerate() {
                assert!(
                    (forward - reverse).abs() / scale < SAME,
                    "{what}: product {index}, element {element}: {forward} forward over reverse, {reverse} reversed twice"
                );
            }
        }
    }

    /// Tangents and products by the kernels of the best instruction set, beside those of the reference.
    fn compare_kernels(&self, case: &Case, what: &str) {
        let asked: Vec<&Tensor> = self.tangents.iter().chain(&self.products).collect();
        let values: Vec<Value> = asked.iter().map(|tensor| tensor.handle().unwrap()).collect();
        let reference = self.evaluate(&values, 0.0);
        let fed = |node| self.fed.iter().find(|(_, value, _)| value.node == node).map(|(_, _, array)| array.to_f64());
        let rounding = rounding::allowed(&self.graph, &values, &reference, fed);
        let stated = relative(&reference, case.tolerance, 0.0);
        let allowed: Vec<f64> = rounding.iter().zip(&stated).map(|(a, b)| a.max(*b)).collect();
        let mut routine = Routine::new("case");
        for (index, tensor) in asked.iter().enumerate() {
            routine = routine.output(&format!("t{index}"), tensor);
        }
        let mut program = self.trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        for (name, _, array) in &self.fed {
            program.write_array(name.as_str(), array).unwrap();
        }
        program.run("case").unwrap();
        let computed: Vec<Array> = (0..asked.len()).map(|index| program.read(&format!("t{index}")).unwrap()).collect();
        compare_each(&format!("{what}: tangents and Hessian"), &computed, &reference, &allowed);
    }
}

/// Compares the tangents of an operation's cases, and of small ones their Hessians times vectors: large ones are there for
/// kernels, and the rules know no sizes.
pub fn check(entry: &ListedOperation) {
    for case in (entry.cases)().iter().filter(|case| case.inputs.iter().any(|input| input.differentiable)) {
        let what = format!("{}, {}", entry.type_name, case.name);
        let traced = traced(case, 11);
        traced.compare_differences(&what);
        if case.inputs.iter().all(|input| input.ty.shape.elements() <= SMALL) {
            traced.compare_orders(&what);
            traced.compare_kernels(case, &what);
        }
    }
}
