//! From nodes to steps: views become layouts of their operand's buffer, every other value gets a buffer, and a
//! dense copy is put in where the machine does not read a layout, or not in that type.

use super::{
    Buffer, BufferId, BufferKind, Machine, Mark, MarkRequest, Operand, PlannedRoutine, Reading, Request, Step,
};
use crate::error::Location;
use crate::graph::{Graph, Node, Part, Source, Value};
use crate::ops::{Elementwise, Lowering, Operation};
use crate::{Array, DType, TensorType};
use std::collections::HashMap;
use std::sync::Arc;

/// A routine's steps in the order of the graph. Assignments only name the new values, and nothing is known yet of what
/// steps take.
pub(super) struct Lowered(pub PlannedRoutine);

/// All buffers of a plan; those that persist are the same for every routine.
#[derive(Clone, Default)]
pub(super) struct Buffers {
    pub all: Vec<Buffer>,
    leaves: HashMap<Leaf, BufferId>,
}

/// What tells leaves apart: their name, or for constants what they hold.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Leaf {
    Named(Arc<str>),
    Constant(Arc<Array>),
}

impl Buffers {
    /// A buffer for every input and state, whether or not a routine uses it: their names always work.
    pub fn of_leaves(graph: &Graph) -> Buffers {
        let mut buffers = Buffers::default();
        for node in graph.nodes() {
            if let Source::Input(_) | Source::State(..) = node.source {
                buffers.leaf(&node.source, &node.outputs[0]);
            }
        }
        buffers
    }

    pub fn add(&mut self, kind: BufferKind, ty: TensorType) -> BufferId {
        self.all.push(Buffer::new(kind, ty));
        self.all.len() - 1
    }

    fn leaf(&mut self, source: &Source, ty: &TensorType) -> BufferId {
        let (leaf, kind) = match source {
            Source::Input(name) => (Leaf::Named(name.clone()), BufferKind::Input(name.clone())),
            Source::State(state) => (Leaf::Named(state.name.clone()), BufferKind::State(state.clone())),
            Source::Constant(array) => (Leaf::Constant(array.clone()), BufferKind::Constant(array.clone())),
            Source::Op(_) => unreachable!("an operation is not a leaf"),
        };
        if let Some(&known) = self.leaves.get(&leaf) {
            return known;
        }
        let id = self.add(kind, ty.clone());
        self.leaves.insert(leaf, id);
        id
    }
}

/// What a step says of where it comes from.
#[derive(Clone, Copy)]
struct Origin {
    location: Location,
    part: Part,
}

impl Origin {
    fn of(node: &Node) -> Origin {
        Origin { location: node.location, part: node.part }
    }
}

struct Lowerer<'a> {
    buffers: &'a mut Buffers,
    machine: &'a dyn Machine,
    steps: Vec<Step>,
    operands: HashMap<Value, Operand>,
    /// Dense copies already made, by what they are copies of.
    copies: Vec<(Operand, Operand)>,
}

/// The steps of a request, in the order of the graph.
pub(super) fn lower(graph: &Graph, request: &Request, buffers: &mut Buffers, machine: &dyn Machine) -> Lowered {
    let mut lowerer = Lowerer { buffers, machine, steps: vec![], operands: HashMap::new(), copies: vec![] };
    for (index, node) in graph.nodes().iter().enumerate() {
        lowerer.node(index, node);
    }
    let location = graph.nodes().last().map_or_else(Location::caller, |node| node.location);
    let end = Origin { location, part: Part::default() };
    let assigns = lowerer.assigns(request, end);
    let kept = request.outputs.iter().map(|(name, value)| (name.clone(), lowerer.kept(value, &assigns, end)));
    let outputs = kept.collect();
    let marks = request.marks.iter().map(|mark| lowerer.mark(mark, &assigns, end)).collect();
    Lowered(PlannedRoutine {
        name: request.name.clone(),
        times_per_step: request.times_per_step,
        steps: lowerer.steps,
        outputs,
        assigns,
        marks,
        apart: request.apart,
    })
}

impl Lowerer<'_> {
    fn node(&mut self, index: usize, node: &Node) {
        let Source::Op(op) = &node.source else {
            let buffer = self.buffers.leaf(&node.source, &node.outputs[0]);
            self.operands.insert(Value { node: index, output: 0 }, Operand::dense(buffer, &node.outputs[0]));
            return;
        };
        let inputs: Vec<Operand> = node.inputs.iter().map(|input| self.operands[input].clone()).collect();
        match op.lowering() {
            Lowering::View(rule) => {
                for output in 0..node.outputs.len() {
                    let mut operand = inputs[0].clone();
                    let layout = rule.view(output, &operand.layout).unwrap_or_else(|| {
                        operand = self.dense_copy(&operand, operand.dtype, Origin::of(node));
                        rule.view(output, &operand.layout).expect("a dense operand can be viewed")
                    });
                    self.operands.insert(Value { node: index, output }, Operand { layout, ..operand });
                }
            }
            Lowering::Kernels(_) | Lowering::Slices(_) => self.kernels(index, node, op, &inputs),
            Lowering::Identity => {
                for (output, operand) in inputs.into_iter().take(node.outputs.len()).enumerate() {
                    self.operands.insert(Value { node: index, output }, operand);
                }
            }
            Lowering::SideBySide(axis, _) => match side_by_side(&inputs, axis) {
                Some(operand) => {
                    self.operands.insert(Value { node: index, output: 0 }, operand);
                }
                None => self.kernels(index, node, op, &inputs),
            },
        }
    }

    fn kernels(&mut self, index: usize, node: &Node, op: &Arc<dyn Operation>, inputs: &[Operand]) {
        let mut taken = Vec::with_capacity(inputs.len());
        for (position, input) in inputs.iter().enumerate() {
            taken.push(match self.machine.reads(op.as_ref(), position, input.dtype, &input.layout) {
                Reading::AsItLies => input.clone(),
                Reading::Copied(dtype) => self.dense_copy(input, dtype, Origin::of(node)),
                Reading::Converted(dtype) => self.converted(input, dtype, Origin::of(node)),
            });
        }
        let outputs = self.step(op.clone(), taken, &node.outputs, Origin::of(node));
        for (output, operand) in outputs.into_iter().enumerate() {
            self.operands.insert(Value { node: index, output }, operand);
        }
    }

    fn step(
        &mut self,
        op: Arc<dyn Operation>,
        inputs: Vec<Operand>,
        types: &[TensorType],
        Origin { location, part }: Origin,
    ) -> Vec<Operand> {
        let outputs: Vec<Operand> =
            types.iter().map(|ty| Operand::dense(self.buffers.add(BufferKind::Transient, ty.clone()), ty)).collect();
        self.steps.push(Step {
            op,
            inputs,
            outputs: outputs.clone(),
            scratch: None,
            seconds: 0.0,
            location,
            part,
            again: false,
        });
        outputs
    }

    fn dense_copy(&mut self, operand: &Operand, dtype: DType, origin: Origin) -> Operand {
        if let Some((_, copy)) = self.copies.iter().find(|(of, copy)| of == operand && copy.dtype == dtype) {
            return copy.clone();
        }
        let copy = self.fresh_copy(operand, dtype, origin);
        self.copies.push((operand.clone(), copy.clone()));
        copy
    }

    /// An operand in another element type. Where it is all of its buffer looked at in another way, so it is of the
    /// converted buffer: whoever looks at that in yet another way needs no further copy.
    fn converted(&mut self, operand: &Operand, dtype: DType, origin: Origin) -> Operand {
        let ty = self.buffers.all[operand.buffer].ty.clone();
        let (layout, count) = (&operand.layout, ty.shape.elements());
        let is_all = operand.dtype == ty.dtype && layout.shape.elements() == count && layout.end() == count;
        if !is_all {
            return self.dense_copy(operand, dtype, origin);
        }
        let copy = self.dense_copy(&Operand::dense(operand.buffer, &ty), dtype, origin);
        Operand { layout: operand.layout.clone(), ..copy }
    }

    fn fresh_copy(&mut self, operand: &Operand, dtype: DType, origin: Origin) -> Operand {
        let ty = TensorType::new(dtype, &operand.layout.shape);
        self.step(Arc::new(Elementwise::dense_copy(ty.clone())), vec![operand.clone()], &[ty], origin).swap_remove(0)
    }

    /// For each assigned state, a buffer of its own that will hold the new value.
    fn assigns(&mut self, request: &Request, end: Origin) -> Vec<(BufferId, BufferId)> {
        let mut assigns: Vec<(BufferId, BufferId)> = vec![];
        for (state, value) in &request.assigns {
            let state = self.operands[state].buffer;
            let mut new = self.operands[value].clone();
            let is_own = matches!(self.buffers.all[new.buffer].kind, BufferKind::Transient)
                && new.is_whole(&self.buffers.all)
                && assigns.iter().all(|&(_, taken)| taken != new.buffer);
            if !is_own {
                new = self.fresh_copy(&new, new.dtype, end);
            }
            assigns.push((state, new.buffer));
        }
        assigns
    }

    /// What the caller reads later on: as it is, unless it is a state that will have changed by then.
    fn kept(&mut self, value: &Value, assigns: &[(BufferId, BufferId)], end: Origin) -> Operand {
        let operand = self.operands[value].clone();
        match operand.layout.is_dense() && assigns.iter().all(|&(state, _)| state != operand.buffer) {
            true => operand,
            false => self.fresh_copy(&operand, operand.dtype, end),
        }
    }

    /// A mark whose place is still to be found.
    fn mark(&mut self, request: &MarkRequest, assigns: &[(BufferId, BufferId)], end: Origin) -> Mark {
        let MarkRequest { moment, group, states, given } = request;
        let state = |name: &Arc<str>| self.buffers.leaves[&Leaf::Named(name.clone())];
        let buffers = states.iter().map(state).collect();
        let given = given.iter().map(|value| self.kept(value, assigns, end)).collect();
        Mark { moment: *moment, group: *group, at: 0, buffers, given }
    }
}

/// One look at operands that lie side by side along an axis of one buffer.
fn side_by_side(operands: &[Operand], axis: usize) -> Option<Operand> {
    let mut joined = operands.first()?.clone();
    for operand in &operands[1..] {
        let (layout, next) = (&joined.layout, &operand.layout);
        let end = layout.offset + layout.shape[axis] * layout.strides[axis];
        if operand.buffer != joined.buffer || next.strides != layout.strides || next.offset != end {
            return None;
        }
        joined.layout.shape = layout.shape.with(axis, layout.shape[axis] + next.shape[axis]);
    }
    Some(joined)
}
