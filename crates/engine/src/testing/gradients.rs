//! Derivatives of cases, first and second: against finite differences of the f64 reference, and computed by the kernels.

use super::comparison::{compare_each, relative};
use super::numbers::{Random, fill};
use super::rounding;
use crate::backend::{Cpu, evaluate};
use crate::graph::{Graph, Value};
use crate::ops::{Case, ListedOperation, Reals};
use crate::{Array, Error, Routine, Tensor, Trace, gradient};
use gradus_kernels::Isa;

/// Elements of each operand whose derivative is compared.
const SAMPLES: usize = 12;
const STEP: f64 = 1e-5;
/// Central differences in f64 are good to about STEP^2 plus rounding over STEP.
const TOLERANCE: f64 = 2e-6;

/// A case traced down to one number, with its gradients and a combination of them traced too.
struct Traced {
    trace: Trace,
    graph: Graph,
    inputs: Vec<Value>,
    numbers: Vec<Vec<f64>>,
    checked: Vec<usize>,
    objective: Value,
    /// By checked operand; `None` where the objective does not depend on it.
    gradients: Vec<Option<Value>>,
    combination: Option<Value>,
    second: Vec<Option<Value>>,
    /// The second derivatives that there are, to be computed.
    second_tensors: Vec<Tensor>,
}

fn traced(case: &Case, seed: u64) -> Traced {
    let mut random = Random::new(seed);
    let trace = Trace::new();
    let numbers: Vec<Vec<f64>> = case.inputs.iter().map(|input| fill(input, &mut random)).collect();
    let inputs: Vec<Tensor> = case
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| trace.input(&format!("x{index}"), input.ty.dtype, &input.ty.shape))
        .collect();
    let outputs: Vec<Tensor> = (case.build)(&inputs).into_iter().filter(|output| output.dtype().is_float()).collect();
    let objective = weighted_sum(&outputs, &mut random);
    let checked: Vec<usize> = (0..inputs.len()).filter(|&index| case.inputs[index].differentiable).collect();
    let derive = |of: &Tensor, index: &usize| match gradient(of, &[&inputs[*index]]) {
        Ok(mut found) => Some(found.remove(0)),
        Err(Error::NoGradient { .. }) => None,
        Err(error) => panic!("{}: {error}", case.name),
    };
    let gradients: Vec<Option<Tensor>> = checked.iter().map(|index| derive(&objective, index)).collect();
    let present: Vec<Tensor> = gradients.iter().flatten().cloned().collect();
    let combination = (!present.is_empty()).then(|| weighted_sum(&present, &mut random));
    let second: Vec<Option<Tensor>> =
        checked.iter().map(|index| combination.as_ref().and_then(|combination| derive(combination, index))).collect();
    trace.check().unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let value = |tensor: &Tensor| tensor.handle().unwrap();
    Traced {
        inputs: inputs.iter().map(value).collect(),
        objective: value(&objective),
        gradients: gradients.iter().map(|gradient| gradient.as_ref().map(value)).collect(),
        combination: combination.as_ref().map(value),
        second: second.iter().map(|gradient| gradient.as_ref().map(value)).collect(),
        second_tensors: second.into_iter().flatten().collect(),
        graph: trace.to_graph(),
        trace,
        numbers,
        checked,
    }
}

/// The sum of tensors' elements, each with a weight of its own.
pub(super) fn weighted_sum(outputs: &[Tensor], random: &mut Random) -> Tensor {
    let term = |output: &Tensor| {
        let weights: Vec<f32> = (0..output.shape().elements()).map(|_| random.uniform(0.5, 1.5) as f32).collect();
        let weights = output.trace().constant(Array::new(output.shape(), &weights).unwrap());
        (output * weights).sum_all()
    };
    outputs.iter().map(term).reduce(|a, b| a + b).expect("a case has an output that can be differentiated")
}

impl Traced {
    fn evaluate(&self, numbers: &[Vec<f64>], value: Value) -> Reals {
        evaluate(&self.graph, &[value], |node| self.fed(numbers, node)).remove(0)
    }

    fn fed(&self, numbers: &[Vec<f64>], node: usize) -> Option<Vec<f64>> {
        self.inputs.iter().position(|input| input.node == node).map(|at| numbers[at].clone())
    }

    /// The second derivatives by the kernels of every instruction set, beside those of the reference.
    fn compare_kernels(&self, case: &Case, what: &str) {
        let values: Vec<Value> = self.second.iter().flatten().copied().collect();
        let fed = |node| self.fed(&self.numbers, node);
        let reference = evaluate(&self.graph, &values, fed);
        let rounding = rounding::allowed(&self.graph, &values, &reference, fed);
        let stated = relative(&reference, case.tolerance, 0.0);
        let allowed: Vec<f64> = rounding.iter().zip(&stated).map(|(a, b)| a.max(*b)).collect();
        for isa in Isa::available() {
            let computed = self.computed(case, isa);
            compare_each(&format!("{what}: second derivative, {isa}"), &computed, &reference, &allowed);
        }
    }

    fn computed(&self, case: &Case, isa: Isa) -> Vec<Array> {
        let mut routine = Routine::new("case");
        for (index, derivative) in self.second_tensors.iter().enumerate() {
            routine = routine.output(&format!("d{index}"), derivative);
        }
        let mut program = self.trace.compile(&Cpu::with_isa(1, isa).unwrap(), &[routine]).unwrap();
        for (index, (input, numbers)) in case.inputs.iter().zip(&self.numbers).enumerate() {
            program.write_array(&format!("x{index}"), &Array::from_f64(input.ty.clone(), numbers).unwrap()).unwrap();
        }
        program.run("case").unwrap();
        (0..self.second_tensors.len()).map(|index| program.read(&format!("d{index}")).unwrap()).collect()
    }

    /// Compares the derivative of `of` by finite differences with `gradients`.
    fn compare(&self, of: Value, gradients: &[Option<Value>], what: &str) {
        let mut random = Random::new(99);
        for (&index, gradient) in self.checked.iter().zip(gradients) {
            let count = self.numbers[index].len();
            if count == 0 {
                continue;
            }
            let claimed = gradient.map(|gradient| self.evaluate(&self.numbers, gradient).data);
            let scale = claimed.iter().flatten().fold(1.0f64, |largest, x| largest.max(x.abs()));
            for _ in 0..SAMPLES.min(count) {
                let element = random.below(count);
                let shifted = |by: f64| {
                    let mut numbers = self.numbers.clone();
                    numbers[index][element] += by;
                    self.evaluate(&numbers, of).data[0]
                };
                let measured = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
                let claimed = claimed.as_ref().map_or(0.0, |claimed| claimed[element]);
                let error = (measured - claimed).abs() / scale;
                assert!(
                    error < TOLERANCE,
                    "{what}: operand {index}, element {element}: {claimed} is claimed, {measured} measured"
                );
            }
        }
    }
}

/// Compares the derivatives of an operation's cases.
pub fn check(entry: &ListedOperation) {
    let cases = (entry.cases)();
    assert!(!cases.is_empty(), "{} has no cases", entry.type_name);
    for case in cases.iter().filter(|case| case.inputs.iter().any(|input| input.differentiable)) {
        let what = format!("{}, {}", entry.type_name, case.name);
        let traced = traced(case, 7);
        traced.compare(traced.objective, &traced.gradients, &format!("{what}: first derivative"));
        if let Some(combination) = traced.combination {
            traced.compare(combination, &traced.second, &format!("{what}: second derivative"));
            if !traced.second_tensors.is_empty() {
                traced.compare_kernels(case, &what);
            }
        }
    }
}
