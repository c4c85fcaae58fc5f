//! What is asked of a tape: a part of the recording, told apart from others by what is computed, on which lines and from
//! which types; not by the numbers.

use crate::error::Location;
use crate::graph::{Graph, Initial, Node, Source, State, Value};
use crate::ops::{Argument, Elementwise, Form, ScalarProgram, types_of};
use crate::{Array, DType, Error, Result, Routine, Shape, Tensor, TensorType, Trace};
use std::any::TypeId;
use std::sync::Arc;

/// The routine of a question's program.
pub(super) const ROUTINE: &str = "read";

/// What a node is, in a structure's words.
const LEAF: usize = 0;
const ELEMENTWISE: usize = 1;
const OTHER: usize = 2;

/// What is asked for, but for the numbers.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Structure {
    operations: Vec<TypeId>,
    /// The nodes, each by what tells it apart, and the values that are read.
    words: Vec<usize>,
    /// What operations say of themselves, one after another.
    texts: String,
}

pub(super) struct Question {
    structure: Structure,
    /// The nodes that it takes, in the order of the recording.
    nodes: Vec<usize>,
    outputs: Vec<Value>,
    watched: Vec<Arc<Array>>,
    /// The numbers that the code had in it, as `2.0` in `x * 2.0`.
    numbers: Vec<f32>,
    location: Location,
}

/// A question as a trace of its own, in which the numbers are inputs.
pub(super) struct Template {
    pub trace: Trace,
    pub routine: Routine,
    /// The names of the inputs: watched numbers, then those of the code that vary.
    pub inputs: Vec<String>,
}

impl Question {
    pub fn of(trace: &Trace, tensors: &[&Tensor], location: Location) -> Result<Question> {
        if let Some(foreign) = tensors.iter().find(|tensor| !tensor.is_of(trace)) {
            return Err(foreign.foreign("read", location));
        }
        let outputs = tensors.iter().map(|tensor| tensor.handle()).collect::<Result<Vec<_>>>()?;
        let graph = trace.graph();
        let mut needed = vec![false; graph.nodes().len()];
        outputs.iter().for_each(|output| needed[output.node] = true);
        graph.mark_sources(&mut needed);
        let nodes = (0..needed.len()).filter(|&index| needed[index]).collect();
        let structure = Structure::default();
        let mut question = Question { structure, nodes, outputs, watched: vec![], numbers: vec![], location };
        question.describe(&graph)?;
        Ok(question)
    }

    fn describe(&mut self, graph: &Graph) -> Result<()> {
        let mut place_of = vec![0; graph.nodes().len()];
        for (place, &index) in self.nodes.iter().enumerate() {
            place_of[index] = place;
            let node = &graph.nodes()[index];
            self.structure.value(std::ptr::from_ref(node.location.0) as usize, node.inputs.len());
            node.inputs.iter().for_each(|input| self.structure.value(place_of[input.node], input.output));
            match &node.source {
                Source::Op(op) => {
                    self.structure.operations.extend(types_of(op.as_ref()));
                    match elementwise(node) {
                        Some(op) => self.structure.elementwise(op, &mut self.numbers),
                        None => self.structure.other(&op.attributes()),
                    }
                }
                _ => {
                    self.structure.leaf(&node.outputs[0]);
                    self.watched.push(numbers_of(node, self.location)?);
                }
            }
        }
        self.outputs.iter().for_each(|output| self.structure.value(place_of[output.node], output.output));
        Ok(())
    }

    pub fn structure(&self) -> &Structure {
        &self.structure
    }

    pub fn into_structure(self) -> Structure {
        self.structure
    }

    pub fn watched(&self) -> &[Arc<Array>] {
        &self.watched
    }

    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    pub fn output_names(&self) -> impl Iterator<Item = String> {
        (0..self.outputs.len()).map(|output| output.to_string())
    }

    /// The question with watched numbers as inputs, and with them those numbers of the code that vary.
    pub fn template(&self, recorded: &Trace, varies: &[bool]) -> Result<Template> {
        let (graph, trace) = (recorded.graph(), Trace::new());
        let mut varies = varies.iter();
        let mut tensors: Vec<Vec<Tensor>> = vec![vec![]; graph.nodes().len()];
        let (mut inputs, mut scalars) = (vec![], vec![]);
        for &index in &self.nodes {
            let node = &graph.nodes()[index];
            let mut operands: Vec<Tensor> =
                node.inputs.iter().map(|input| tensors[input.node][input.output].clone()).collect();
            let record = || match (&node.source, elementwise(node)) {
                (_, Some(op)) => {
                    let op = with_operands(op, &mut varies);
                    for _ in operands.len()..op.input_count {
                        let name = format!("number {}", scalars.len());
                        operands.push(trace.input(&name, DType::F32, []).broadcast(&op.shape));
                        scalars.push(name);
                    }
                    trace.apply(op, &operands.iter().collect::<Vec<_>>())
                }
                (Source::Op(op), None) => trace.apply_shared(op.clone(), &operands.iter().collect::<Vec<_>>()),
                _ => {
                    let (name, ty) = (format!("watched {}", inputs.len()), &node.outputs[0]);
                    inputs.push(name.clone());
                    vec![trace.input(&name, ty.dtype, &ty.shape)]
                }
            };
            tensors[index] = trace.in_part(node.part, || trace.attributing(node.location, node.part.layer, record));
        }
        let mut routine = Routine::new(ROUTINE);
        for (name, output) in self.output_names().zip(&self.outputs) {
            routine = routine.output(&name, &tensors[output.node][output.output]);
        }
        inputs.append(&mut scalars);
        Ok(Template { trace, routine, inputs })
    }
}

impl Structure {
    fn value(&mut self, node: usize, output: usize) {
        self.words.extend([node, output]);
    }

    fn leaf(&mut self, ty: &TensorType) {
        self.words.push(LEAF);
        self.ty(ty.dtype, &ty.shape);
    }

    fn other(&mut self, attributes: &str) {
        self.words.extend([OTHER, attributes.len()]);
        self.texts.push_str(attributes);
    }

    fn ty(&mut self, dtype: DType, shape: &Shape) {
        self.words.extend([dtype as usize, shape.rank()]);
        self.words.extend(shape.iter());
    }

    /// The program of an element-wise operation, with its numbers put aside.
    fn elementwise(&mut self, op: &Elementwise, numbers: &mut Vec<f32>) {
        self.words.push(ELEMENTWISE);
        self.ty(op.dtype, &op.shape);
        self.words.push(op.program.instructions.len());
        for instruction in &op.program.instructions {
            self.words.push(instruction.function as usize);
            instruction.used().iter().for_each(|&argument| self.argument(argument, numbers));
        }
        self.argument(op.program.result, numbers);
    }

    fn argument(&mut self, argument: Argument, numbers: &mut Vec<f32>) {
        match argument {
            Argument::Input(index) => self.words.extend([0, index]),
            Argument::Result(index) => self.words.extend([1, index]),
            Argument::Constant(number) => {
                self.words.push(2);
                numbers.push(number);
            }
        }
    }
}

fn elementwise(node: &Node) -> Option<&Elementwise> {
    match node.op()?.form() {
        Form::Elementwise(op) => Some(op),
        _ => None,
    }
}

/// The program with those of its numbers that vary as further operands.
fn with_operands<'a>(op: &Elementwise, varies: &mut impl Iterator<Item = &'a bool>) -> Elementwise {
    let mut op = op.clone();
    let ScalarProgram { instructions, result } = &mut op.program;
    let read = instructions.iter_mut().flat_map(|instruction| {
        let arity = instruction.function.arity();
        &mut instruction.arguments[..arity]
    });
    for argument in read.chain([result]) {
        if matches!(argument, Argument::Constant(_)) && *varies.next().expect("a mark for every number") {
            *argument = Argument::Input(op.input_count);
            op.input_count += 1;
        }
    }
    op
}

/// The numbers of a leaf; of an input there are none.
fn numbers_of(node: &Node, at: Location) -> Result<Arc<Array>> {
    match &node.source {
        Source::Constant(array) | Source::State(State { initial: Initial::Numbers(array), .. }) => Ok(array.clone()),
        Source::State(State { initial: Initial::Zeros, .. }) => {
            Ok(Arc::new(Array::zeros(node.outputs[0].dtype, &node.outputs[0].shape)?))
        }
        Source::Input(_) | Source::Op(_) => {
            let problem = format!("{} has no numbers on a tape; watch them instead", node.label());
            Err(Error::Routine { problem, at })
        }
    }
}
