//! Cases on the CPU: each instruction set, element type, kind of operand and number of threads against the f64
//! reference, and against each other to the bit where they must agree.

use super::comparison::{compare, compare_each, relative};
use super::numbers::{Random, fill};
use super::rounding;
use crate::backend::{Backend, Cpu, evaluate};
use crate::graph::{Graph, Value};
use crate::ops::{Case, CaseInput, ListedOperation, Operation, Reals};
use crate::plan::{Options, Plan};
use crate::{Array, DType, Error, Program, Routine, Tensor, TensorType, Trace, gradient};
use gradus_kernels::Isa;
use std::any::Any;
use std::collections::BTreeSet;

/// How an operand comes to the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// As an input, densely.
    Dense,
    /// As a look at an input with its axes the other way round.
    Transposed,
    /// As every second element of an input, from the second on.
    Sliced,
    /// As a result that nothing else needs, so that it may be written over.
    Computed,
}

/// The whole of a case on one trace: its results and the gradients of a weighted sum of them.
struct Traced {
    trace: Trace,
    results: Vec<Tensor>,
    /// For each input of the trace: its name, type and numbers.
    feeds: Vec<(String, TensorType, Vec<f64>)>,
}

fn traced(case: &Case, numbers: &[Vec<f64>], dtype: DType, arrival: Arrival) -> Result<Traced, Error> {
    let trace = Trace::new();
    let mut feeds = vec![];
    let mut operands = vec![];
    for (index, (input, numbers)) in case.inputs.iter().zip(numbers).enumerate() {
        let dtype = if input.ty.dtype == DType::F32 { dtype } else { input.ty.dtype };
        let ty = TensorType::new(dtype, &input.ty.shape);
        operands.push(arrive(&trace, &format!("x{index}"), &ty, numbers, arrival, &mut feeds));
    }
    let mut results = (case.build)(&operands);
    let mut random = Random::new(5);
    let floats: Vec<&Tensor> = results.iter().filter(|result| result.dtype().is_float()).collect();
    let wanted: Vec<&Tensor> = operands
        .iter()
        .zip(&case.inputs)
        .filter(|(_, input)| input.differentiable)
        .map(|(operand, _)| operand)
        .collect();
    let mut gradients = vec![];
    if !floats.is_empty() {
        let sum = weighted_sum(&floats, &mut random);
        for operand in wanted {
            match gradient(&sum, &[operand]) {
                Ok(found) => gradients.extend(found),
                Err(Error::NoGradient { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    results.extend(gradients);
    trace.check()?;
    Ok(Traced { trace, results, feeds })
}

fn arrive(
    trace: &Trace,
    name: &str,
    ty: &TensorType,
    numbers: &[f64],
    arrival: Arrival,
    feeds: &mut Vec<(String, TensorType, Vec<f64>)>,
) -> Tensor {
    let mut input = |name: String, shape: Vec<usize>, numbers: Vec<f64>| {
        let tensor = trace.input(&name, ty.dtype, shape.clone());
        feeds.push((name, TensorType::new(ty.dtype, shape), numbers));
        tensor
    };
    let (rank, count) = (ty.shape.rank(), numbers.len());
    match arrival {
        Arrival::Dense => input(name.to_string(), ty.shape.to_vec(), numbers.to_vec()),
        Arrival::Transposed => {
            let backwards: Vec<isize> = (0..rank as isize).rev().collect();
            let reals = Reals::new(&ty.shape, numbers.to_vec());
            let shape: Vec<usize> = ty.shape.iter().rev().copied().collect();
            let turned = Reals::from_fn(&shape.clone().into(), |index| {
                reals.at(&index.iter().rev().copied().collect::<Vec<_>>())
            });
            input(name.to_string(), shape, turned.data).permute(&backwards)
        }
        Arrival::Sliced => {
            let spread: Vec<f64> = numbers.iter().flat_map(|&number| [number - 0.25, number]).collect();
            let mut shape = ty.shape.to_vec();
            match shape.last_mut() {
                Some(last) => *last *= 2,
                None => shape = vec![2],
            }
            let last = shape[shape.len() - 1];
            let sliced = input(name.to_string(), shape, spread).slice_by(-1, 1.min(last)..last, 2);
            sliced.reshape(&ty.shape)
        }
        Arrival::Computed => {
            let half = count / 2;
            let first = input(format!("{name}a"), vec![half], numbers[..half].to_vec());
            let second = input(format!("{name}b"), vec![count - half], numbers[half..].to_vec());
            Tensor::concat(&[&first, &second], 0).reshape(&ty.shape)
        }
    }
}

fn weighted_sum(outputs: &[&Tensor], random: &mut Random) -> Tensor {
    let mut total: Option<Tensor> = None;
    for output in outputs {
        let weights: Vec<f64> = (0..output.shape().elements()).map(|_| random.below(7) as f64 / 4.0 - 0.5).collect();
        let weights = output.trace().constant(Array::from_f64(output.ty(), &weights).unwrap());
        let term = (*output * weights).cast(DType::F32).sum_all();
        total = Some(match total {
            Some(total) => total + term,
            None => term,
        });
    }
    total.expect("there are outputs")
}

impl Traced {
    fn reference(&self) -> Vec<Reals> {
        let graph = self.trace.to_graph();
        evaluate(&graph, &self.values(), |node| self.fed(&graph, node))
    }

    /// How far the roundings of its element types may move each result.
    fn rounding(&self, reference: &[Reals]) -> Vec<f64> {
        let graph = self.trace.to_graph();
        rounding::allowed(&graph, &self.values(), reference, |node| self.fed(&graph, node))
    }

    fn values(&self) -> Vec<Value> {
        self.results.iter().map(|result| result.handle().unwrap()).collect()
    }

    fn fed(&self, graph: &Graph, node: usize) -> Option<Vec<f64>> {
        let label = graph.nodes()[node].label();
        let feed = self.feeds.iter().find(|(name, ..)| label == format!("input {name:?}"));
        feed.map(|(.., numbers)| numbers.clone())
    }

    fn routine(&self) -> Routine {
        let results = self.results.iter().enumerate();
        results.fold(Routine::new("case"), |routine, (index, result)| routine.output(&format!("y{index}"), result))
    }

    fn compile(&self, backend: &dyn Backend, options: Options) -> Program {
        let mut program = self.trace.compile_with(backend, &[self.routine()], options).unwrap();
        for (name, ty, numbers) in &self.feeds {
            program.write_array(name, &Array::from_f64(ty.clone(), numbers).unwrap()).unwrap();
        }
        program
    }

    fn plan(&self, backend: &dyn Backend, options: Options) -> Plan {
        self.trace.plan(backend, &[self.routine()], options).unwrap()
    }

    /// Runs twice: what a replay leaves behind must not change the next.
    fn run(&self, backend: &dyn Backend, options: Options) -> (Vec<Array>, Plan) {
        let mut program = self.compile(backend, options);
        program.run("case").unwrap();
        let read = |program: &Program| -> Vec<Array> {
            (0..self.results.len()).map(|index| program.read(&format!("y{index}")).unwrap()).collect()
        };
        let first = read(&program);
        program.run("case").unwrap();
        assert!(same_bits(&first, &read(&program)), "a second replay gives other bits");
        (first, program.plan().clone())
    }
}

fn same_bits(a: &[Array], b: &[Array]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes())
}

/// What is left of the numbers in a 16-bit type.
fn round(input: &CaseInput, dtype: DType, numbers: &[f64]) -> Vec<f64> {
    match input.ty.dtype {
        DType::F32 => Array::from_f64(TensorType::new(dtype, &input.ty.shape), numbers).unwrap().to_f64(),
        _ => numbers.to_vec(),
    }
}

/// Which operations of this plan may write a result over an operand.
fn kinds_with_a_rule(plan: &Plan) -> BTreeSet<&'static str> {
    let steps = plan.routines.iter().flat_map(|routine| &routine.steps);
    steps.filter(|step| !step.op.in_place().is_empty()).map(|step| step.op.name()).collect()
}

/// Which operations wrote a result over an operand in this plan.
fn in_place_kinds(plan: &Plan) -> BTreeSet<&'static str> {
    let mut kinds = BTreeSet::new();
    for step in plan.routines.iter().flat_map(|routine| &routine.steps) {
        let offset = |buffer: usize| (plan.buffers[buffer].offset, plan.buffers[buffer].bytes());
        for output in step.outputs.iter().filter(|output| offset(output.buffer).1 > 0) {
            if step.inputs.iter().any(|input| offset(input.buffer) == offset(output.buffer)) {
                kinds.insert(step.op.name());
            }
        }
    }
    kinds
}

/// What cases are run on.
pub struct KernelChecks {
    /// One thread of every instruction set, the best one last.
    levels: Vec<Cpu>,
    threaded: Vec<Cpu>,
    /// Operations with a rule for writing over an operand, and those that have done so.
    with_rule: BTreeSet<&'static str>,
    in_place: BTreeSet<&'static str>,
}

/// Everything that a planner may do turned off.
fn plain() -> Options {
    Options { simplify: false, in_place: false, reorder: false, share: false, ..Options::default() }
}

impl KernelChecks {
    /// On every instruction set that this machine has, and on several threads.
    pub fn new() -> Result<KernelChecks, Error> {
        let levels = Isa::available().into_iter().map(|isa| Cpu::with_isa(1, isa)).collect::<Result<_, _>>()?;
        let threaded = [2, 3, 4].into_iter().map(Cpu::new).collect::<Result<_, _>>()?;
        Ok(KernelChecks { levels, threaded, with_rule: BTreeSet::new(), in_place: BTreeSet::new() })
    }

    /// Runs the cases of an operation, of which at least one must use it.
    pub fn check(&mut self, entry: &ListedOperation) {
        let mut is_used = false;
        for case in (entry.cases)() {
            is_used |= self.check_case(&case, entry);
        }
        assert!(is_used, "no case of {} uses it", entry.type_name);
    }

    /// Operations whose rule for writing over an operand no case has tried.
    pub fn untried(&self) -> Vec<&'static str> {
        self.with_rule.difference(&self.in_place).copied().collect()
    }

    /// Whether the case uses the operation.
    fn check_case(&mut self, case: &Case, entry: &ListedOperation) -> bool {
        let what = format!("{}, {}", entry.type_name, case.name);
        let mut random = Random::new(11);
        let numbers: Vec<Vec<f64>> = case.inputs.iter().map(|input| fill(input, &mut random)).collect();
        let dense =
            traced(case, &numbers, DType::F32, Arrival::Dense).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (reference, best) = (dense.reference(), self.levels.last().expect("there is always one").clone());
        let allowed = relative(&reference, case.tolerance, 1e-2);
        for cpu in &self.levels {
            let (results, _) = dense.run(cpu, Options::default());
            compare_each(&format!("{what}, {}", cpu.isa()), &results, &reference, &allowed);
        }
        let (expected, planned) = dense.run(&best, Options::default());
        for cpu in &self.threaded {
            let (results, _) = dense.run(cpu, Options::default());
            assert!(same_bits(&results, &expected), "{what}: other bits on more threads");
        }
        let (results, _) = dense.run(&best, plain());
        assert!(same_bits(&results, &expected), "{what}: other bits with a plain plan");
        for arrival in [Arrival::Transposed, Arrival::Sliced, Arrival::Computed] {
            let viewed = traced(case, &numbers, DType::F32, arrival).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (results, plan) = viewed.run(&best, Options::default());
            compare_each(&format!("{what}, {arrival:?}"), &results, &reference, &allowed);
            self.with_rule.extend(kinds_with_a_rule(&plan));
            self.in_place.extend(in_place_kinds(&plan));
            let (results_plain, _) = viewed.run(&best, plain());
            assert!(same_bits(&results, &results_plain), "{what}, {arrival:?}: other bits with a plain plan");
        }
        for dtype in [DType::Bf16, DType::F16] {
            check_halves(case, &what, &numbers, dtype, &best);
        }
        let graph = dense.trace.to_graph();
        let is_it = |op: &dyn Operation| (op as &dyn Any).type_id() == entry.id;
        // Some are only put in by planners.
        let mut steps = planned.routines.iter().flat_map(|routine| &routine.steps);
        steps.any(|step| is_it(step.op.as_ref()))
            || graph.nodes().iter().any(|node| node.op().is_some_and(|op| is_it(op.as_ref())))
    }
}

/// Runs the cases of an operation on any machine, or those that `GRADUS_TEST_CASE` is part of the name of: dense operands and
/// views, in every element type, against the reference.
pub fn check_on(backend: &dyn Backend, entry: &ListedOperation) {
    let only = std::env::var("GRADUS_TEST_CASE").unwrap_or_default();
    for case in (entry.cases)().into_iter().filter(|case| case.name.contains(&only)) {
        let what = format!("{}, {}, on the {}", entry.type_name, case.name, backend.name());
        let mut random = Random::new(11);
        let numbers: Vec<Vec<f64>> = case.inputs.iter().map(|input| fill(input, &mut random)).collect();
        for arrival in [Arrival::Dense, Arrival::Transposed] {
            let traced = traced(&case, &numbers, DType::F32, arrival).unwrap_or_else(|error| panic!("{what}: {error}"));
            let reference = traced.reference();
            let (results, _) = traced.run(backend, Options::default());
            let allowed = relative(&reference, case.tolerance, 1e-2);
            compare_each(&format!("{what}, {arrival:?}"), &results, &reference, &allowed);
        }
        for dtype in [DType::Bf16, DType::F16] {
            let Some((halves, reference)) = in_halves(&case, &what, &numbers, dtype) else { continue };
            let (results, _) = halves.run(backend, Options::default());
            let mut allowed = halves.rounding(&reference);
            if case.rounds_inside {
                let inside = relative(&reference, 2.0 * rounding::unit(dtype), 1.0);
                allowed.iter_mut().zip(inside).for_each(|(allowed, inside)| *allowed = allowed.max(inside));
            }
            compare(&format!("{what}, {dtype}"), &results, &reference, &allowed);
        }
    }
}

/// The plans of an operation's cases for a machine: dense operands and views, in every element type.
pub fn plans_for(backend: &dyn Backend, entry: &ListedOperation) -> Vec<(String, Plan)> {
    let mut plans = vec![];
    for case in (entry.cases)() {
        let mut random = Random::new(11);
        let numbers: Vec<Vec<f64>> = case.inputs.iter().map(|input| fill(input, &mut random)).collect();
        for (dtype, arrival) in [
            (DType::F32, Arrival::Dense),
            (DType::F32, Arrival::Transposed),
            (DType::Bf16, Arrival::Dense),
            (DType::F16, Arrival::Dense),
        ] {
            let what = format!("{}, {}, {dtype}, {arrival:?}", entry.type_name, case.name);
            match traced(&case, &numbers, dtype, arrival) {
                Ok(traced) => plans.push((what, traced.plan(backend, Options::default()))),
                Err(Error::DType { .. }) if dtype != DType::F32 => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    plans
}

/// The case in a 16-bit type, with what the reference makes of it, if it takes that.
fn in_halves(case: &Case, what: &str, numbers: &[Vec<f64>], dtype: DType) -> Option<(Traced, Vec<Reals>)> {
    let rounded: Vec<Vec<f64>> = case.inputs.iter().zip(numbers).map(|(input, x)| round(input, dtype, x)).collect();
    match traced(case, &rounded, dtype, Arrival::Dense) {
        Ok(halves) => {
            let reference = halves.reference();
            Some((halves, reference))
        }
        Err(Error::DType { .. }) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// The case in a 16-bit type, if it takes that.
fn check_halves(case: &Case, what: &str, numbers: &[Vec<f64>], dtype: DType, cpu: &Cpu) {
    let Some((halves, reference)) = in_halves(case, what, numbers, dtype) else { return };
    let (results, _) = halves.run(cpu, Options::default());
    compare(&format!("{what}, {dtype}"), &results, &reference, &halves.rounding(&reference));
    let (results_plain, _) = halves.run(cpu, plain());
    assert!(same_bits(&results, &results_plain), "{what}, {dtype}: other bits with a plain plan");
}
