//! The reference: every operation's meaning, in f64, one after another. Slow, readable, and right by inspection;
//! the kernels are compared with it, and f64 programs run on it.

use super::{Backend, DeviceMemory, Executable, Timing};
use crate::graph::{Graph, Initial, Source, State, Value};
use crate::ops::{Effect, Elementwise, Matmul, Operation, Reals};
use crate::plan::{
    Absorption, Buffer, BufferId, BufferKind, FusionLimits, Machine, Operand, Plan, Reading, Scratch, Step,
};
use crate::{Array, DType, Error, Layout, Result, TensorType};

/// The backend that computes in f64, whatever the element types say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

struct ReferenceExecutable {
    plan: Plan,
    /// What each buffer holds, densely.
    values: Vec<Reals>,
}

impl Machine for Reference {
    fn alignment(&self) -> usize {
        64
    }

    fn workers(&self) -> usize {
        0
    }

    fn fusion(&self) -> FusionLimits {
        // Nothing is gained by a longer program.
        FusionLimits { inputs: 10, instructions: 48 }
    }

    fn absorbs(&self, _product: &Matmul, _epilogue: &Elementwise) -> Absorption {
        Absorption::InPlace
    }

    fn gives_aside(&self, _product: &Matmul, _epilogue: &Elementwise, _aside: &Elementwise) -> bool {
        false
    }

    fn shares_columns(&self, _product: &Matmul, _rows: usize) -> bool {
        true
    }

    fn holds_logits(&self) -> bool {
        true
    }

    fn multiplies_tf32(&self) -> bool {
        false
    }

    fn takes_in(&self, _op: &dyn Operation) -> bool {
        true
    }

    fn reads(&self, _op: &dyn Operation, _input: usize, _dtype: DType, _layout: &Layout) -> Reading {
        Reading::AsItLies
    }

    fn scratch(&self, _step: &Step) -> Result<Scratch> {
        Ok(Scratch::default())
    }

    fn seconds(&self, step: &Step) -> f64 {
        // A loop over numbers, a few nanoseconds each.
        step.cost().operations as f64 * 4e-9
    }
}

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(None)
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        let values = plan.buffers.iter().map(first_value).collect();
        Ok(Box::new(ReferenceExecutable { plan: plan.clone(), values }))
    }
}

/// What a buffer holds before the first replay.
fn first_value(buffer: &Buffer) -> Reals {
    match &buffer.kind {
        BufferKind::State(State { initial: Initial::Numbers(array), .. }) | BufferKind::Constant(array) => {
            Reals::new(array.shape(), array.to_f64())
        }
        _ => Reals::zeros(&buffer.ty),
    }
}

/// The results of a step by its operation's meaning, which must have as many numbers as the plan has room for.
pub(crate) fn results(step: &Step, inputs: &[Reals]) -> Result<Vec<Reals>> {
    let types: Vec<TensorType> = step.outputs.iter().map(Operand::ty).collect();
    let results = step.op.reference(&inputs.iter().collect::<Vec<_>>(), &types);
    let (given, wanted) = (results.iter().map(|result| result.data.len()), types.iter().map(|ty| ty.shape.elements()));
    if given.clone().eq(wanted.clone()) {
        return Ok(results);
    }
    let [given, wanted]: [Vec<usize>; 2] = [given.collect(), wanted.collect()];
    let problem = format!("`reference` gives results of {given:?} numbers; they must be of {wanted:?}");
    let inputs = step.inputs.iter().map(Operand::ty).collect();
    Err(Error::Parameter { op: step.op.name().to_string(), inputs, problem, at: step.location })
}

impl ReferenceExecutable {
    /// Replays a routine; after each step, `done` is told its number.
    fn replay(&mut self, routine: usize, done: &mut dyn FnMut(usize)) -> Result<()> {
        let routine = &self.plan.routines[routine];
        for (index, step) in routine.steps.iter().enumerate() {
            let look = |operand: &Operand| self.values[operand.buffer].picked(&operand.layout);
            let inputs: Vec<Reals> = step.inputs.iter().map(look).collect();
            if let Effect::Faults(check) = step.effect()
                && let Some(detail) = check.detail(&inputs[check.input()])
            {
                return Err(check.error(step.op.name(), step.inputs[check.input()].dtype, detail, step.location));
            }
            for (operand, value) in step.outputs.iter().zip(results(step, &inputs)?) {
                self.values[operand.buffer] = value;
            }
            done(index);
        }
        for &(state, new) in &routine.assigns {
            self.values[state] = self.values[new].clone();
        }
        Ok(())
    }
}

impl Executable for ReferenceExecutable {
    fn relink(&mut self, plan: &Plan) -> Result<()> {
        let mut values: Vec<Reals> = plan.buffers.iter().map(first_value).collect();
        let states = |plan: &Plan| -> Vec<BufferId> {
            let is_state = |id: &BufferId| matches!(plan.buffers[*id].kind, BufferKind::State(..));
            (0..plan.buffers.len()).filter(is_state).collect()
        };
        for (old, new) in states(&self.plan).into_iter().zip(states(plan)) {
            values[new] = self.values[old].clone();
        }
        *self = ReferenceExecutable { plan: plan.clone(), values };
        Ok(())
    }

    fn run(&mut self, routine: usize) -> Result<()> {
        self.replay(routine, &mut |_| {})
    }

    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()> {
        self.replay(routine, &mut timing.stopwatch(|_| ()))
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let ty = self.plan.buffers[buffer].ty.clone();
        self.values[buffer].data = Array::from_bytes(ty, bytes.to_vec())?.to_f64();
        Ok(())
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        let picked = self.values[operand.buffer].picked(&operand.layout);
        let array = Array::from_f64(operand.ty(), &picked.data).expect("a number for every element of a look");
        bytes.copy_from_slice(array.bytes());
        Ok(())
    }

    fn addresses(&self) -> Option<std::ops::Range<usize>> {
        None
    }

    fn look(&self, _buffer: BufferId) -> Option<&[u8]> {
        None
    }

    fn look_mut(&mut self, _buffer: BufferId) -> Option<&mut [u8]> {
        None
    }
}

/// Computes the values that `outputs` need straight from the graph, with no plan between. `leaf` may give the
/// numbers of inputs, states and constants; where it gives none, a state's or constant's own are taken.
pub fn evaluate(graph: &Graph, outputs: &[Value], leaf: impl Fn(usize) -> Option<Vec<f64>>) -> Vec<Reals> {
    let mut needed = vec![false; graph.nodes().len()];
    outputs.iter().for_each(|output| needed[output.node] = true);
    for index in (0..graph.nodes().len()).rev() {
        if needed[index] {
            graph.nodes()[index].inputs.iter().for_each(|input| needed[input.node] = true);
        }
    }
    let mut values: Vec<Vec<Reals>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        if !needed[index] {
            values.push(vec![]);
            continue;
        }
        let given = |own: Option<Vec<f64>>| {
            let numbers = leaf(index).or(own).unwrap_or_else(|| vec![0.0; node.outputs[0].shape.elements()]);
            vec![Reals::new(&node.outputs[0].shape, numbers)]
        };
        values.push(match &node.source {
            Source::Input(_) | Source::State(State { initial: Initial::Zeros, .. }) => given(None),
            Source::State(State { initial: Initial::Numbers(array), .. }) | Source::Constant(array) => {
                given(Some(array.to_f64()))
            }
            Source::Op(op) => {
                let inputs: Vec<&Reals> = node.inputs.iter().map(|input| &values[input.node][input.output]).collect();
                op.reference(&inputs, &node.outputs)
            }
        });
    }
    outputs.iter().map(|output| values[output.node][output.output].clone()).collect()
}
