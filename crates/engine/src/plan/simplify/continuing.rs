//! An operation that is computed for some of its results, and once more to go on from earlier sums, is computed once: the
//! one that goes on gives the other results too.

use super::{Identity, Rewrite, identity};
use crate::graph::{Graph, Node, Source};
use crate::ops::{Accumulation, Form};
use crate::plan::Request;
use std::collections::HashMap;

pub(super) fn continue_at_once(graph: &Graph, request: &Request) -> (Graph, Request) {
    let going_on = going_on(graph, request);
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        if rewrite.has(index) {
            continue;
        }
        let Some(later) = going_on[index] else {
            let inputs = rewrite.inputs(node);
            rewrite.push(index, Node { inputs, ..node.clone() });
            continue;
        };
        // The earlier sums are states, which are there from the beginning.
        let continued = &graph.nodes()[later];
        for input in &continued.inputs {
            if !rewrite.has(input.node) {
                rewrite.push(input.node, graph.nodes()[input.node].clone());
            }
        }
        let inputs = rewrite.inputs(continued);
        let new = rewrite.push(later, Node { inputs, ..continued.clone() });
        rewrite.stand_in(index, new);
    }
    rewrite.finish(request)
}

/// By node: the one that computes the same and goes on from states, unless someone reads the sums of these rows alone.
fn going_on(graph: &Graph, request: &Request) -> Vec<Option<usize>> {
    let mut continued: HashMap<Identity, usize> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(op) = accumulation_of(node) else { continue };
        let (operands, earlier) = node.inputs.split_at(op.operands());
        if earlier.iter().all(|value| matches!(graph.nodes()[value.node].source, Source::State(..))) {
            continued.entry(identity(op.inner(), operands)).or_insert(index);
        }
    }
    if continued.is_empty() {
        return vec![None; graph.nodes().len()];
    }
    let later = |node: &Node| continued.get(&identity(node.op()?.as_ref(), &node.inputs)).copied();
    let mut going_on: Vec<Option<usize>> = graph.nodes().iter().map(later).collect();
    let read = graph.nodes().iter().flat_map(|node| node.inputs.iter().copied()).chain(request.roots());
    for value in read {
        let op = going_on[value.node].and_then(|later| accumulation_of(&graph.nodes()[later]));
        if op.is_some_and(|op| op.sums().contains(&value.output)) {
            going_on[value.node] = None;
        }
    }
    going_on
}

fn accumulation_of(node: &Node) -> Option<&Accumulation> {
    match node.op()?.form() {
        Form::Accumulation(accumulation) => Some(accumulation),
        _ => None,
    }
}
