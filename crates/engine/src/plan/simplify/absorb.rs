//! Takes element-wise programs into the matrix products that they follow: they run while the product is still in the
//! cache, and a product that nothing else reads never reaches memory. Neither does one of which a single other program reads no
//! more than a function, as that of the gradient does: where the machine gives that function's numbers, they are kept instead.

use super::Rewrite;
use super::aside::{Divided, divided};
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
    op: FusedMatmul,
    /// The program's operands besides the product.
    others: Vec<Value>,
    /// Whether something else reads the product, or what another program makes of it, which then stands for it.
    kept: bool,
}

pub(super) fn absorb(graph: &Graph, request: &Request, machine: &dyn Machine) -> (Graph, Request) {
    let readers = Readers::of(graph, request);
    // By the program's node.
    let mut absorbed: HashMap<usize, Absorbed> = HashMap::new();
    let mut taken = vec![false; graph.nodes().len()];
    // By node: its program, as far as it is not an element-wise operation's own any more.
    let mut programs: HashMap<usize, Elementwise> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let program = programs.get(&index).cloned().or_else(|| elementwise_of(node));
        let Some(mut found) = program.and_then(|program| absorption(graph, index, program, &readers, &taken, machine))
        else {
            continue;
        };
        if let Some((reader, Divided { inner, outer })) = aside(graph, index, &found, &readers, machine) {
            found.op = found.op.giving_aside(inner);
            programs.insert(reader, outer);
        }
        taken[found.matmul] = true;
        absorbed.insert(index, found);
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate().filter(|(index, _)| !taken[*index]) {
        match absorbed.remove(&index) {
            Some(absorbed) => rewrite.push_absorbed(index, node, absorbed),
            None => {
                let (inputs, program) = (rewrite.inputs(node), programs.remove(&index));
                let source = program.map_or_else(|| node.source.clone(), |program| Source::Op(Arc::new(program)));
                rewrite.push(index, Node { source, inputs, ..node.clone() });
            }
        }
    }
    rewrite.finish(request)
}

/// The one other node that reads an absorbed product, with its program divided into what it takes of that and the rest, if the
/// machine gives the former.
fn aside(
    graph: &Graph,
    index: usize,
    absorbed: &Absorbed,
    readers: &Readers,
    machine: &dyn Machine,
) -> Option<(usize, Divided)> {
    let (&[first, reader], false) = (&readers.nodes[absorbed.matmul][..], readers.requested[absorbed.matmul]) else {
        return None;
    };
    let product = Value { node: absorbed.matmul, output: 0 };
    let node = &graph.nodes()[reader];
    let divided = divided(&elementwise_of(node)?, &node.inputs, product, graph.ty(product))?;
    let given = machine.gives_aside(absorbed.op.product(), absorbed.op.epilogue(), &divided.inner);
    (first == index && given).then_some((reader, divided))
}

impl Rewrite<'_> {
    fn push_absorbed(&mut self, index: usize, node: &Node, absorbed: Absorbed) {
        let Absorbed { matmul, op, others, kept } = absorbed;
        let product = &self.old.nodes()[matmul];
        let inputs = product.inputs.iter().chain(&others).map(|input| self.map[input]).collect();
        let kept_type = kept.then(|| product.outputs[0].clone());
        let outputs = kept_type.into_iter().chain(node.outputs.clone()).collect();
        let part = node.part.with(product.part);
        let new = self.new.push(Node { source: Source::Op(Arc::new(op)), inputs, outputs, part, ..node.clone() });
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

/// The product that the program of this node is taken into: the last one that it is the first to read.
fn absorption(
    graph: &Graph,
    index: usize,
    program: Elementwise,
    readers: &Readers,
    taken: &[bool],
    machine: &dyn Machine,
) -> Option<Absorbed> {
    let node = &graph.nodes()[index];
    if !program.dtype.is_float() {
        return None;
    }
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
    Some(Absorbed { matmul: product.node, op, others, kept })
}

fn matmul_of(graph: &Graph, value: Value) -> Option<&Matmul> {
    match graph.nodes()[value.node].op()?.form() {
        Form::Product(matmul) => Some(matmul),
        _ => None,
    }
}
