//! Joins element-wise chains: a result that only one other element-wise operation reads never reaches memory.

use super::Rewrite;
use crate::graph::{Graph, Node, Part, Source, Value};
use crate::ops::{Argument, Elementwise, Form, Function, Instruction, Lowering, ScalarProgram};
use crate::plan::{FusionLimits, Request};
use crate::{DType, TensorType};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn fuse(graph: &Graph, request: &Request, limits: FusionLimits) -> (Graph, Request) {
    let readers = count_readers(graph, request);
    let mut rewrite = Rewrite::of(graph);
    // By node of the new graph: its program, and whether a single reader may take it in.
    let mut programs: HashMap<usize, (Elementwise, bool)> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let inputs = rewrite.inputs(node);
        let Some(program) = elementwise_of(node) else {
            rewrite.push(index, Node { inputs, ..node.clone() });
            continue;
        };
        let Fused { program, inputs, part } = join(program, node.part, &inputs, &rewrite.new, &programs, limits);
        let node = Node { source: Source::Op(Arc::new(program.clone())), inputs, part, ..node.clone() };
        let new = rewrite.push(index, node);
        programs.insert(new, (program, readers[index] == 1));
    }
    rewrite.finish(request)
}

/// How many nodes read each node; being asked for by the request counts as many.
fn count_readers(graph: &Graph, request: &Request) -> Vec<usize> {
    let mut readers = vec![0; graph.nodes().len()];
    for node in graph.nodes() {
        let mut sources: Vec<usize> = node.inputs.iter().map(|input| input.node).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.into_iter().for_each(|source| readers[source] += 1);
    }
    request.roots().for_each(|root| readers[root.node] += 2);
    readers
}

pub(super) fn elementwise_of(node: &Node) -> Option<Elementwise> {
    match node.op()?.form() {
        Form::Elementwise(program) => Some(program.clone()),
        _ => None,
    }
}

/// A program that others were taken into, what it reads, and the part of the step that all of it belongs to.
struct Fused {
    program: Elementwise,
    inputs: Vec<Value>,
    part: Part,
}

/// The program with those of its operands taken in that only it reads.
fn join(
    outer: Elementwise,
    mut part: Part,
    inputs: &[Value],
    graph: &Graph,
    programs: &HashMap<usize, (Elementwise, bool)>,
    limits: FusionLimits,
) -> Fused {
    let mut joined = Joined::default();
    let mut arguments: Vec<Argument> = vec![];
    // Operands that stay need room of their own.
    let mut room = limits.inputs.saturating_sub(inputs.len());
    let mut instructions_left = limits.instructions.saturating_sub(outer.program.instructions.len());
    for (position, &input) in inputs.iter().enumerate() {
        let ty = graph.ty(input);
        // What is read twice is computed once.
        if let Some(earlier) = inputs[..position].iter().position(|&earlier| earlier == input) {
            arguments.push(arguments[earlier]);
            continue;
        }
        if let Some(number) = constant_behind(input, graph) {
            arguments.push(Argument::Constant(number));
            continue;
        }
        let inner = programs.get(&input.node).filter(|(inner, single)| {
            *single
                && ty.shape == outer.shape
                && ty.dtype.is_float()
                && (outer.dtype.is_float() || !reads_integers(input, graph))
                && inner.input_count <= room + 1
                && inner.program.instructions.len() < instructions_left
        });
        arguments.push(match inner {
            Some((inner, _)) => {
                room = (room + 1).saturating_sub(inner.input_count);
                instructions_left -= inner.program.instructions.len() + 1;
                let taken = &graph.nodes()[input.node];
                part = part.with(taken.part);
                let operands: Vec<Argument> = taken.inputs.iter().map(|&source| joined.input(source)).collect();
                let result = joined.append(&inner.program, &operands);
                joined.round(result, ty)
            }
            None => joined.input(input),
        });
    }
    let result = joined.append(&outer.program, &arguments);
    let program = ScalarProgram { instructions: joined.instructions, result };
    let program = Elementwise { program, input_count: joined.inputs.len(), ..outer };
    Fused { program, inputs: joined.inputs, part }
}

/// Whether a value is made from integers. What lies between them and other integers was asked for: it rounds.
fn reads_integers(value: Value, graph: &Graph) -> bool {
    graph.nodes()[value.node].inputs.iter().any(|&input| graph.ty(input).dtype.is_integer())
}

/// The number that fills a value, if it is a constant behind views.
fn constant_behind(value: Value, graph: &Graph) -> Option<f32> {
    let node = &graph.nodes()[value.node];
    let op = node.op()?;
    if let Lowering::View(_) = op.lowering() {
        return constant_behind(node.inputs[0], graph);
    }
    let Form::Elementwise(Elementwise { program, dtype: DType::F32, input_count: 0, .. }) = op.form() else {
        return None;
    };
    match program {
        ScalarProgram { instructions, result: Argument::Constant(number) } if instructions.is_empty() => Some(*number),
        _ => None,
    }
}

#[derive(Default)]
pub(super) struct Joined {
    pub instructions: Vec<Instruction>,
    inputs: Vec<Value>,
}

impl Joined {
    fn input(&mut self, value: Value) -> Argument {
        let known = self.inputs.iter().position(|&input| input == value);
        Argument::Input(known.unwrap_or_else(|| {
            self.inputs.push(value);
            self.inputs.len() - 1
        }))
    }

    /// Adds a program on these operands and gives its result.
    pub fn append(&mut self, program: &ScalarProgram, operands: &[Argument]) -> Argument {
        let base = self.instructions.len();
        let moved = |argument: Argument| match argument {
            Argument::Input(index) => operands[index],
            Argument::Result(index) => Argument::Result(base + index),
            constant => constant,
        };
        for instruction in &program.instructions {
            // What is not used may name anything, and is left behind.
            let mut arguments = [Argument::Constant(0.0); 3];
            for (to, &from) in arguments.iter_mut().zip(instruction.used()) {
                *to = moved(from);
            }
            self.instructions.push(Instruction { function: instruction.function, arguments });
        }
        moved(program.result)
    }

    /// What storing the number in its element type, and loading it again, would make of it.
    pub fn round(&mut self, argument: Argument, ty: &TensorType) -> Argument {
        let function = match ty.dtype {
            DType::Bf16 => Function::RoundBf16,
            DType::F16 => Function::RoundF16,
            _ => return argument,
        };
        let arguments = [argument, Argument::Constant(0.0), Argument::Constant(0.0)];
        self.instructions.push(Instruction { function, arguments });
        Argument::Result(self.instructions.len() - 1)
    }
}
