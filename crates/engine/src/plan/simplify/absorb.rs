//! Takes element-wise programs into the matrix products that they follow: they run while the product is still in the
//! cache, and a product that nothing else reads never reaches memory.

use super::Rewrite;
use super::fuse::{Joined, elementwise_of};
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Argument, Elementwise, Form, FusedMatmul, Matmul, ScalarProgram};
use crate::plan::{Absorption, Machine, Request};
use std::collections::HashMap;
use std::sync::Arc;

/// A product that is taken into the program that reads it.
struct Absorbed {
    /// The product's node.
    matmul: usize,
    op: Arc<FusedMatmul>,
    /// The program's operands besides the product.
    others: Vec<Value>,
    /// Whether something else reads the product.
    kept: bool,
}

pub(super) fn absorb(graph: &Graph, request: &Request, machine: &dyn Machine) -> (Graph, Request) {
    let readers = Readers::of(graph, request);
    // By the program's node.
    let mut absorbed: HashMap<usize, Absorbed> = HashMap::new();
    let mut taken = vec![false; graph.nodes().len()];
    for index in 0..graph.nodes().len() {
        if let Some(found) = absorption(graph, index, &readers, &taken, machine) {
            taken[found.matmul] = true;
            absorbed.insert(index, found);
        }
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate().filter(|(index, _)| !taken[*index]) {
        match absorbed.remove(&index) {
            Some(absorbed) => rewrite.push_absorbed(index, node, absorbed),
            None => {
                let inputs = rewrite.inputs(node);
                rewrite.push(index, Node { inputs, ..node.clone() });
            }
        }
    }
    rewrite.finish(request)
}

impl Rewrite<'_> {
    fn push_absorbed(&mut self, index: usize, node: &Node, absorbed: Absorbed) {
        let Absorbed { matmul, op, others, kept } = absorbed;
        let product = &self.old.nodes()[matmul];
        let inputs = product.inputs.iter().chain(&others).map(|input| self.map[input]).collect();
        let kept_type = kept.then(|| product.outputs[0].clone());
        let outputs = kept_type.into_iter().chain(node.outputs.clone()).collect();
        let part = node.part.with(product.part);
        let new = self.new.push(Node { source: Source::Op(op), inputs, outputs, part, ..node.clone() });
        let result = Value { node: new, output: kept as usize };
        self.map.insert(Value { node: index, output: 0 }, result);
        if kept {
            self.map.insert(Value { node: matmul, output: 0 }, Value { node: new, output: 0 });
        }
    }
}

/// Who reads what.
struct Readers {
    /// By node, the nodes that read it, in order.
    nodes: Vec<Vec<usize>>,
    requested: Vec<bool>,
}

impl Readers {
    fn of(graph: &Graph, request: &Request) -> Readers {
        let mut readers =
            Readers { nodes: vec![vec![]; graph.nodes().len()], requested: vec![false; graph.nodes().len()] };
        for (index, node) in graph.nodes().iter().enumerate() {
            for input in &node.inputs {
                if readers.nodes[input.node].last() != Some(&index) {
                    readers.nodes[input.node].push(index);
                }
            }
        }
        request.roots().for_each(|root| readers.requested[root.node] = true);
        readers
    }
}

/// The product that the program at this node is taken into: the last one that it is the first to read.
fn absorption(
    graph: &Graph,
    index: usize,
    readers: &Readers,
    taken: &[bool],
    machine: &dyn Machine,
) -> Option<Absorbed> {
    let node = &graph.nodes()[index];
    let program = elementwise_of(node).filter(|program| program.dtype.is_float())?;
    let fits = |value: &&Value| {
        let first = readers.nodes[value.node].first() == Some(&index);
        first && !taken[value.node] && matmul_of(graph, **value).is_some() && graph.ty(**value).shape == program.shape
    };
    let product = *node.inputs.iter().filter(fits).max_by_key(|value| value.node)?;
    let mut others: Vec<Value> = vec![];
    let mut joined = Joined::default();
    let rounded = joined.round(Argument::Input(0), graph.ty(product));
    let mut arguments = vec![];
    for &input in &node.inputs {
        arguments.push(if input == product {
            rounded
        } else {
            let known = others.iter().position(|&other| other == input).unwrap_or_else(|| {
                others.push(input);
                others.len() - 1
            });
            Argument::Input(1 + known)
        });
    }
    let result = joined.append(&program.program, &arguments);
    let scalar = ScalarProgram { instructions: joined.instructions, result };
    let epilogue = Elementwise { program: scalar, input_count: 1 + others.len(), ..program };
    let kept = readers.requested[product.node] || readers.nodes[product.node].len() > 1;
    let matmul = matmul_of(graph, product)?;
    let apart = match machine.absorbs(matmul, &epilogue) {
        Absorption::No => return None,
        absorption => absorption == Absorption::Apart,
    };
    let op = FusedMatmul::new(matmul, epilogue, kept, apart)?;
    Some(Absorbed { matmul: product.node, op: Arc::new(op), others, kept })
}

fn matmul_of(graph: &Graph, value: Value) -> Option<&Matmul> {
    match graph.nodes()[value.node].op()?.form() {
        Form::Product(matmul) => Some(matmul),
        _ => None,
    }
}
