//! A loss is computed with its gradient, where what each row's loss counts does not depend on it: the logits, by far the
//! most work of both, are computed once.

use super::Rewrite;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Accumulation, Form, Operation};
use crate::plan::{Machine, Request};
use std::collections::HashMap;
use std::sync::Arc;

/// A loss and its gradient, by their nodes.
struct Pair {
    gradient: usize,
    op: Arc<dyn Operation>,
    /// What each row's loss counts.
    row_gradient: Value,
    /// The earlier sums that the gradient goes on from, if it does.
    earlier: Vec<Value>,
}

/// The graph with such pairs as one, if there are any.
pub(super) fn with_gradients(graph: &Graph, request: &Request, machine: &dyn Machine) -> Option<(Graph, Request)> {
    let mut pairs: HashMap<usize, Pair> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        if let Some((loss, pair)) = pair(graph, index, node).filter(|(_, pair)| machine.takes_in(pair.op.as_ref())) {
            pairs.entry(loss).or_insert(pair);
        }
    }
    if pairs.is_empty() {
        return None;
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        match pairs.get(&index) {
            Some(pair) => push_pair(&mut rewrite, graph, index, pair),
            None if rewrite.has(index) => {}
            None => push(&mut rewrite, index, node),
        }
    }
    Some(rewrite.finish(request))
}

fn push(rewrite: &mut Rewrite<'_>, index: usize, node: &Node) {
    let inputs = rewrite.inputs(node);
    rewrite.push(index, Node { inputs, ..node.clone() });
}

/// The loss that the gradient at this node is of, if both can be computed together.
fn pair(graph: &Graph, index: usize, node: &Node) -> Option<(usize, Pair)> {
    let op = node.op()?;
    let (form, operands) = match op.form() {
        Form::Accumulation(sums) => (sums.inner().form(), sums.operands()),
        form => (form, node.inputs.len()),
    };
    let Form::LossGradient(gradient) = form else { return None };
    let (total, row_gradient, earlier) = (node.inputs[3], node.inputs[4], node.inputs[operands..].to_vec());
    let loss = &graph.nodes()[total.node];
    let Form::Loss(op) = loss.op()?.form() else { return None };
    let same = total.output == 1 && loss.inputs[..] == node.inputs[..3];
    let is_state = |sum: &Value| matches!(graph.nodes()[sum.node].source, Source::State(..));
    if !same || ancestors(graph, row_gradient.node)[total.node] || !earlier.iter().all(is_state) {
        return None;
    }
    let both = Arc::new(op.with(gradient)?);
    let op: Arc<dyn Operation> = match earlier.is_empty() {
        true => both,
        false => Arc::new(Accumulation::of(both, loss.inputs.len() + 1)),
    };
    Some((total.node, Pair { gradient: index, op, row_gradient, earlier }))
}

/// The nodes that a node is made from, itself included.
fn ancestors(graph: &Graph, node: usize) -> Vec<bool> {
    let mut among = vec![false; node + 1];
    among[node] = true;
    for index in (0..=node).rev() {
        if among[index] {
            graph.nodes()[index].inputs.iter().for_each(|input| among[input.node] = true);
        }
    }
    among
}

/// Adds the operation that does both where the loss was, after what each row's loss counts.
fn push_pair(rewrite: &mut Rewrite<'_>, graph: &Graph, loss: usize, pair: &Pair) {
    let among = ancestors(graph, pair.row_gradient.node).into_iter().enumerate().filter(|&(_, among)| among);
    // Earlier sums are states, which are there from the beginning.
    for index in among.map(|(index, _)| index).chain(pair.earlier.iter().map(|sum| sum.node)) {
        if !rewrite.has(index) {
            push(rewrite, index, &graph.nodes()[index]);
        }
    }
    let (node, gradient) = (&graph.nodes()[loss], &graph.nodes()[pair.gradient]);
    let inputs = node.inputs.iter().copied().chain([pair.row_gradient]).chain(pair.earlier.clone()).collect();
    let outputs = node.outputs.iter().chain(&gradient.outputs).cloned().collect();
    let both = Node { source: Source::Op(pair.op.clone()), inputs, outputs, ..gradient.clone() };
    let inputs = rewrite.inputs(&both);
    let new = rewrite.push(loss, Node { inputs, ..both });
    for output in 0..gradient.outputs.len() {
        let result = Value { node: new, output: node.outputs.len() + output };
        rewrite.replace(Value { node: pair.gradient, output }, result);
    }
}
