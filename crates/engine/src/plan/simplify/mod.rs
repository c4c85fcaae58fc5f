//! Fewer nodes for the same numbers: only what is needed, each thing once, element-wise chains in one, and in the
//! products that they follow.

mod absorb;
mod aside;
mod continuing;
mod fuse;
mod losses;
mod rows;
mod share;

use super::{Machine, MarkRequest, Request};
use crate::Array;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Effect, Lowering, Operation, types_of};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;

/// The part of a graph that a request needs, simplified if asked for.
pub(super) fn simplify(graph: &Graph, request: &Request, machine: &dyn Machine, simplify: bool) -> (Graph, Request) {
    let mut rooted = prune(graph, request);
    if simplify {
        rooted = merge(&rooted.0, &rooted.1);
        rooted = continuing::continue_at_once(&rooted.0, &rooted.1);
        rooted = fuse::fuse(&rooted.0, &rooted.1, machine.fusion());
        rooted = prune(&rooted.0, &rooted.1);
        rooted = losses::with_gradients(&rooted.0, &rooted.1, machine).unwrap_or(rooted);
        rooted = rows::take_in(&rooted.0, &rooted.1, machine).unwrap_or(rooted);
        rooted = absorb::absorb(&rooted.0, &rooted.1, machine);
        rooted = rows::sum_columns(&rooted.0, &rooted.1, machine);
    }
    rooted
}

/// The same, with products of the same columns as one; nothing, if there are none that the machine would have so. What they are made
/// of and what they give is then needed at once, which may take more memory.
pub(super) fn sharing_columns(graph: &Graph, request: &Request, machine: &dyn Machine) -> Option<(Graph, Request)> {
    share::columns(graph, request, machine)
}

/// A graph under construction, with where each value of the old one went.
pub(super) struct Rewrite<'a> {
    old: &'a Graph,
    pub new: Graph,
    map: HashMap<Value, Value>,
}

impl<'a> Rewrite<'a> {
    pub fn of(old: &'a Graph) -> Rewrite<'a> {
        Rewrite { old, new: Graph::default(), map: HashMap::new() }
    }

    /// Where the operands of an old node are in the new graph.
    pub fn inputs(&self, node: &Node) -> Vec<Value> {
        node.inputs.iter().map(|input| self.map[input]).collect()
    }

    /// Whether something stands for an old node already.
    pub fn has(&self, index: usize) -> bool {
        self.map.contains_key(&Value { node: index, output: 0 })
    }

    /// Adds a node that stands for an old one.
    pub fn push(&mut self, index: usize, node: Node) -> usize {
        let node = self.new.push(node);
        self.stand_in(index, node);
        node
    }

    /// Lets values of the new graph stand for the results of an old node.
    fn pass(&mut self, index: usize, values: &[Value]) {
        for (output, &value) in (0..self.old.nodes()[index].outputs.len()).zip(values) {
            self.map.insert(Value { node: index, output }, value);
        }
    }

    /// Lets a node of the new graph stand for an old one.
    pub fn stand_in(&mut self, index: usize, node: usize) {
        for output in 0..self.old.nodes()[index].outputs.len() {
            self.map.insert(Value { node: index, output }, Value { node, output });
        }
    }

    /// Lets a value of the new graph stand for an old one.
    pub fn replace(&mut self, old: Value, new: Value) {
        self.map.insert(old, new);
    }

    pub fn finish(self, request: &Request) -> (Graph, Request) {
        let outputs = request.outputs.iter().map(|(name, value)| (name.clone(), self.map[value])).collect();
        let assigns = request.assigns.iter().map(|(state, value)| (self.map[state], self.map[value])).collect();
        let given = |mark: &MarkRequest| mark.given.iter().map(|value| self.map[value]).collect();
        let marks = request.marks.iter().map(|mark| MarkRequest { given: given(mark), ..mark.clone() }).collect();
        (self.new, Request { outputs, assigns, marks, ..request.clone() })
    }
}

impl Request {
    /// Every value that the request names.
    pub(super) fn roots(&self) -> impl Iterator<Item = Value> {
        let assigned = self.assigns.iter().flat_map(|&(state, value)| [state, value]);
        let given = self.marks.iter().flat_map(|mark| mark.given.iter().copied());
        self.outputs.iter().map(|&(_, value)| value).chain(assigned).chain(given)
    }
}

/// Only what the request needs.
fn prune(graph: &Graph, request: &Request) -> (Graph, Request) {
    let mut needed = vec![false; graph.nodes().len()];
    request.roots().for_each(|root| needed[root.node] = true);
    for index in (0..needed.len()).rev() {
        if needed[index] {
            graph.nodes()[index].inputs.iter().for_each(|input| needed[input.node] = true);
        }
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate().filter(|(index, _)| needed[*index]) {
        let inputs = rewrite.inputs(node);
        rewrite.push(index, Node { inputs, ..node.clone() });
    }
    rewrite.finish(request)
}

/// What a node is told by: its operation and its operands.
pub(crate) type Identity = ([TypeId; 2], String, Vec<Value>);

pub(crate) fn identity(op: &dyn Operation, inputs: &[Value]) -> Identity {
    (types_of(op), op.attributes(), inputs.to_vec())
}

/// Equal operations on equal operands are one, and so are constants that hold the same; what only gives its operands is
/// left out.
fn merge(graph: &Graph, request: &Request) -> (Graph, Request) {
    let mut rewrite = Rewrite::of(graph);
    let mut seen: HashMap<Identity, usize> = HashMap::new();
    let mut constants: HashMap<Arc<Array>, usize> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let inputs = rewrite.inputs(node);
        let op = match &node.source {
            Source::Constant(array) => {
                match constants.get(array) {
                    Some(&earlier) => rewrite.stand_in(index, earlier),
                    None => drop(constants.insert(array.clone(), rewrite.push(index, node.clone()))),
                }
                continue;
            }
            Source::Op(op) if matches!(op.lowering(), Lowering::Identity) => {
                rewrite.pass(index, &inputs);
                continue;
            }
            Source::Op(op) if op.effect(&graph.input_types(node)) != Effect::Collective => op,
            _ => {
                rewrite.push(index, Node { inputs, ..node.clone() });
                continue;
            }
        };
        let key = identity(op.as_ref(), &inputs);
        match seen.get(&key) {
            Some(&earlier) => rewrite.stand_in(index, earlier),
            None => {
                let node = rewrite.push(index, Node { inputs, ..node.clone() });
                seen.insert(key, node);
            }
        }
    }
    rewrite.finish(request)
}
