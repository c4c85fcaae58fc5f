//! Operations on rows take in the passes around them that only convert, or add to their first result, or sum the columns of a copy
//! of it, as products with an epilogue do of their result: what such a pass moves through memory is moved by the operation anyway.

use super::{Rewrite, prune};
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Accumulation, Argument, Elementwise, Form, Function, Lowering, Operation, RowOperation};
use crate::plan::{Machine, Request};
use crate::{DType, Layout, TensorType};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// What can be taken in is, one kind of pass after another: conversions of operands and of results, sums, copies. Nothing, if
/// there is no operation that takes anything in.
pub(super) fn take_in(graph: &Graph, request: &Request, machine: &dyn Machine) -> Option<(Graph, Request)> {
    graph.nodes().iter().find(|node| rows_of(node, machine).is_some())?;
    let mut rooted = read_as_it_was(graph, request, machine);
    for find in [converted as Find, added, copied] {
        rooted = taken(&rooted.0, &rooted.1, machine, find);
    }
    Some(rooted)
}

/// The operation on rows that a node is, if the machine's kernel takes things in.
fn rows_of<'a>(node: &'a Node, machine: &dyn Machine) -> Option<&'a dyn RowOperation> {
    let op = node.op()?;
    let rows: &dyn RowOperation = match op.form() {
        Form::Rows(rows) => rows,
        Form::Accumulation(sums) if matches!(sums.inner().form(), Form::Rows(_)) => sums,
        _ => return None,
    };
    machine.takes_in(op.as_ref()).then_some(rows)
}

/// A node's operands with one more: behind its own, and before earlier sums that it goes on from.
fn with_more(node: &Node, more: Option<Value>) -> Vec<Value> {
    let own = match node.op().map(|op| op.form()) {
        Some(Form::Accumulation(sums)) => sums.operands(),
        _ => node.inputs.len(),
    };
    let (own, earlier) = node.inputs.split_at(own);
    own.iter().copied().chain(more).chain(earlier.iter().copied()).collect()
}

fn program_of(node: &Node) -> Option<&Elementwise> {
    match node.op()?.form() {
        Form::Elementwise(program) => Some(program),
        _ => None,
    }
}

/// The type that a node only converts its one operand to, both being floating-point numbers.
fn conversion(graph: &Graph, node: &Node) -> Option<DType> {
    let program = program_of(node)?;
    let converts = program.program.instructions.is_empty() && program.program.result == Argument::Input(0);
    let is_float = |dtype: DType| dtype.is_float();
    let from = graph.ty(*node.inputs.first()?).dtype;
    (converts && node.inputs.len() == 1 && is_float(from) && is_float(program.dtype)).then_some(program.dtype)
}

/// The types of an operation's results, if it takes these operands.
fn types(graph: &Graph, op: &Arc<dyn Operation>, inputs: &[Value]) -> Option<Vec<TensorType>> {
    let inputs: Vec<TensorType> = inputs.iter().map(|input| graph.ty(*input).clone()).collect();
    op.outputs(&inputs).ok().filter(|outputs| outputs.len() == op.output_count())
}

/// Operands that are only converted are read as they were.
fn read_as_it_was(graph: &Graph, request: &Request, machine: &dyn Machine) -> (Graph, Request) {
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut node = node.clone();
        for position in 0..node.inputs.len() {
            let source = &graph.nodes()[node.inputs[position].node];
            let Some(rows) = rows_of(&node, machine) else { break };
            let before = conversion(graph, source).map(|_| source.inputs[0]);
            // To f32, which holds all that it was.
            let exact = graph.ty(node.inputs[position]).dtype == DType::F32;
            let Some(before) = before.filter(|before| exact && graph.ty(*before).dtype.size() < 4) else { continue };
            let mut inputs = node.inputs.clone();
            inputs[position] = before;
            let offered = rows.reading(position, graph.ty(before).dtype);
            if let Some(op) = offered.filter(|op| types(graph, op, &inputs).as_ref() == Some(&node.outputs)) {
                (node.source, node.inputs) = (Source::Op(op), inputs);
            }
        }
        let inputs = rewrite.inputs(&node);
        rewrite.push(index, Node { inputs, ..node });
    }
    let (graph, request) = rewrite.finish(request);
    prune(&graph, &request)
}

/// Something that an operation on rows takes in.
struct Found {
    op: Arc<dyn Operation>,
    /// What it reads besides.
    more: Option<Value>,
    /// The nodes that are no more.
    passes: Vec<usize>,
    /// The result of the operation that stands for what these gave.
    result: usize,
    /// Where the operation stands from now on: after all that it reads.
    place: usize,
}

/// Who reads the first result of each node, in order; all nodes that read any; and which are asked for.
struct Readers {
    of_first: Vec<Vec<usize>>,
    of_any: Vec<Vec<usize>>,
    requested: Vec<bool>,
}

impl Readers {
    fn of(graph: &Graph, request: &Request) -> Readers {
        let count = graph.nodes().len();
        let mut readers =
            Readers { of_first: vec![vec![]; count], of_any: vec![vec![]; count], requested: vec![false; count] };
        for (index, node) in graph.nodes().iter().enumerate() {
            for input in &node.inputs {
                readers.of_any[input.node].push(index);
                if input.output == 0 {
                    readers.of_first[input.node].push(index);
                }
            }
        }
        request.roots().filter(|root| root.output == 0).for_each(|root| readers.requested[root.node] = true);
        readers
    }
}

type Find = fn(&Graph, usize, &dyn RowOperation, &Readers) -> Option<Found>;

/// All readers of the first result convert it to one type.
fn converted(graph: &Graph, index: usize, rows: &dyn RowOperation, readers: &Readers) -> Option<Found> {
    let passes = readers.of_first[index].clone();
    let dtype = conversion(graph, &graph.nodes()[*passes.first()?])?;
    let alike = passes.iter().all(|&pass| conversion(graph, &graph.nodes()[pass]) == Some(dtype));
    // Of f32, which the operation has in hand: what was rounded to another type first is not the same.
    let is_whole = graph.ty(Value { node: index, output: 0 }).dtype == DType::F32;
    if !alike || !is_whole || readers.requested[index] {
        return None;
    }
    Some(Found { op: rows.storing(dtype)?, more: None, passes, result: 0, place: index })
}

/// The one reader of the first result adds something of its type to it.
fn added(graph: &Graph, index: usize, rows: &dyn RowOperation, readers: &Readers) -> Option<Found> {
    let [pass] = readers.of_first[index][..] else { return None };
    let node = &graph.nodes()[pass];
    let (first, ty) = (Value { node: index, output: 0 }, graph.ty(Value { node: index, output: 0 }));
    let program = program_of(node).filter(|program| program.dtype == ty.dtype)?;
    let is_sum = match &program.program.instructions[..] {
        [one] => {
            let pair = [one.arguments[0], one.arguments[1]];
            let both = [Argument::Input(0), Argument::Input(1)];
            one.function == Function::Add && (pair == both || pair == [both[1], both[0]])
        }
        _ => false,
    };
    let more = *node.inputs.iter().find(|&&input| input != first)?;
    let plain =
        is_sum && node.inputs.len() == 2 && graph.ty(more) == ty && program.program.result == Argument::Result(0);
    // What reads other results must still come after it.
    let later = readers.of_any[index].iter().all(|&reader| reader >= pass);
    if !plain || !later || readers.requested[index] {
        return None;
    }
    Some(Found { op: rows.adding()?, more: Some(more), passes: vec![pass], result: 0, place: pass })
}

/// Some readers of the first result convert it to a 16-bit type.
fn copied(graph: &Graph, index: usize, rows: &dyn RowOperation, readers: &Readers) -> Option<Found> {
    let to = |pass: usize| conversion(graph, &graph.nodes()[pass]).filter(|dtype| dtype.size() == 2);
    let is_whole = graph.ty(Value { node: index, output: 0 }).dtype == DType::F32;
    let dtype = readers.of_first[index].iter().filter(|_| is_whole).find_map(|&pass| to(pass))?;
    let passes = readers.of_first[index].iter().copied().filter(|&pass| to(pass) == Some(dtype)).collect();
    let result = graph.nodes()[index].outputs.len();
    Some(Found { op: rows.copying(dtype)?, more: None, passes, result, place: index })
}

/// A product that leaves the sums of its second operand's columns to the operation that makes it.
struct Left {
    /// The node of that operation, and how it sums them itself.
    maker: usize,
    op: Arc<dyn Operation>,
    /// The product without, and what it reads then.
    product: Arc<dyn Operation>,
    inputs: Vec<Value>,
    /// The earlier sums that they go on from, if they do.
    earlier: Option<Value>,
}

/// Products leave the sums of their second operand's columns to the operation that makes it: one on rows, or another product with
/// its epilogue.
pub(super) fn sum_columns(graph: &Graph, request: &Request, machine: &dyn Machine) -> (Graph, Request) {
    let mut products: HashMap<usize, Left> = HashMap::new();
    let mut makers: HashMap<usize, usize> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(left) = left(graph, node, machine) else { continue };
        if let Entry::Vacant(entry) = makers.entry(left.maker) {
            entry.insert(index);
            products.insert(index, left);
        }
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut node = node.clone();
        if let Some(&product) = makers.get(&index) {
            let Left { op, earlier, .. } = &products[&product];
            node.inputs.extend(earlier);
            // Earlier sums are states, which are there from the beginning.
            if let Some(state) = earlier.filter(|state| !rewrite.has(state.node)) {
                rewrite.push(state.node, graph.nodes()[state.node].clone());
            }
            node.outputs.push(graph.nodes()[product].outputs[1].clone());
            let (source, result, inputs) = (Source::Op(op.clone()), node.outputs.len() - 1, rewrite.inputs(&node));
            let new = rewrite.push(index, Node { source, inputs, ..node });
            rewrite.replace(Value { node: product, output: 1 }, Value { node: new, output: result });
        } else if let Some(left) = products.get(&index) {
            node.outputs.truncate(1);
            node.inputs = left.inputs.clone();
            let inputs = rewrite.inputs(&node);
            let new = rewrite.new.push(Node { source: Source::Op(left.product.clone()), inputs, ..node });
            rewrite.replace(Value { node: index, output: 0 }, Value { node: new, output: 0 });
        } else if !rewrite.has(index) {
            let inputs = rewrite.inputs(&node);
            rewrite.push(index, Node { inputs, ..node });
        }
    }
    rewrite.finish(request)
}

/// For a product that sums the columns of what another operation makes: how that does it. Both go on from earlier sums, or none of
/// them.
fn left(graph: &Graph, node: &Node, machine: &dyn Machine) -> Option<Left> {
    let op = node.op()?;
    let (inner, goes_on) = match op.form() {
        Form::Accumulation(sums) => (sums.inner().form(), true),
        form => (form, false),
    };
    let Form::Product(product) = inner else { return None };
    let product: Arc<dyn Operation> = Arc::new(product.without_column_sums()?);
    let copy = as_rows(graph, node.inputs[1])?;
    let maker = &graph.nodes()[copy.node];
    let (mut inputs, mut earlier, mut maker_inputs) = (node.inputs.clone(), None, maker.inputs.clone());
    let product = match goes_on {
        true => {
            earlier = inputs.pop().filter(|sum| matches!(graph.nodes()[sum.node].source, Source::State(..)));
            maker_inputs.push(earlier?);
            Arc::new(Accumulation::of(product, inputs.len() - 1))
        }
        false => product,
    };
    let op = summing(maker, goes_on, machine)?;
    let types = types(graph, &op, &maker_inputs)?;
    let is_last = copy.output + 1 == maker.outputs.len();
    let fits = types.len() == maker.outputs.len() + 1 && types.last() == node.outputs.get(1);
    let same = is_last && fits && types[..maker.outputs.len()] == maker.outputs[..];
    same.then_some(Left { maker: copy.node, op, product, inputs, earlier })
}

/// The operation of a node with the sums of its last result's columns, from earlier ones on or not, if the machine's kernel does that.
fn summing(maker: &Node, goes_on: bool, machine: &dyn Machine) -> Option<Arc<dyn Operation>> {
    let op = maker.op()?;
    if let Form::FusedProduct(fused) = op.form() {
        let summing: Arc<dyn Operation> = Arc::new(fused.summing().filter(|_| machine.takes_in(op.as_ref()))?);
        return Some(if goes_on { Arc::new(Accumulation::of(summing, maker.inputs.len())) } else { summing });
    }
    let same = matches!(op.form(), Form::Accumulation(_)) == goes_on;
    rows_of(maker, machine).filter(|_| same)?.summing()
}

/// The value that a matrix is, all of whose axes but the last are its rows.
fn as_rows(graph: &Graph, matrix: Value) -> Option<Value> {
    let node = &graph.nodes()[matrix.node];
    let Some(Lowering::View(rule)) = node.op().map(|op| op.lowering()) else { return Some(matrix) };
    let (&[operand], ty) = (&node.inputs[..], graph.ty(matrix)) else { return None };
    let whole = Layout::dense(&graph.ty(operand).shape);
    let is_same = rule.view(matrix.output, &whole).is_some_and(|layout| layout == Layout::dense(&ty.shape));
    let columns = |value: Value| graph.ty(value).shape.rows_and_columns().1;
    (is_same && columns(operand) == columns(matrix)).then_some(operand)
}

/// Whether an operation that takes something in gives what it gave before, and for the passes what they gave.
fn is_as_offered(graph: &Graph, node: &Node, found: &Found) -> bool {
    let inputs = with_more(node, found.more);
    let Some(outputs) = types(graph, &found.op, &inputs) else { return false };
    let of_passes = found.passes.iter().all(|&pass| outputs.get(found.result) == graph.nodes()[pass].outputs.first());
    // A first result that nothing reads any more may be in another type.
    let first = usize::from(found.result == 0);
    of_passes && outputs.get(first..node.outputs.len()) == node.outputs.get(first..)
}

/// The graph with one kind of thing taken in wherever it is found.
fn taken(graph: &Graph, request: &Request, machine: &dyn Machine, find: Find) -> (Graph, Request) {
    let readers = Readers::of(graph, request);
    // By the place where the operation stands from now on: its old one, and what it takes in.
    let mut found: HashMap<usize, (usize, Found)> = HashMap::new();
    let mut gone = vec![false; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(rows) = rows_of(node, machine) else { continue };
        let one = find(graph, index, rows, &readers).filter(|one| !found.contains_key(&one.place));
        let Some(one) = one.filter(|one| is_as_offered(graph, node, one)) else { continue };
        gone[index] = true;
        one.passes.iter().for_each(|&pass| gone[pass] = true);
        found.insert(one.place, (index, one));
    }
    let mut rewrite = Rewrite::of(graph);
    for (index, node) in graph.nodes().iter().enumerate() {
        if let Some((old, Found { op, more, passes, result, .. })) = found.remove(&index) {
            let node = &graph.nodes()[old];
            let inputs = with_more(node, more);
            let outputs = types(graph, &op, &inputs).expect("it was asked before");
            let moved = Node { source: Source::Op(op), inputs, outputs, ..node.clone() };
            let inputs = rewrite.inputs(&moved);
            let new = rewrite.push(old, Node { inputs, ..moved });
            passes.iter().for_each(|&pass| {
                rewrite.replace(Value { node: pass, output: 0 }, Value { node: new, output: result })
            });
        } else if !gone[index] {
            let inputs = rewrite.inputs(node);
            rewrite.push(index, Node { inputs, ..node.clone() });
        }
    }
    rewrite.finish(request)
}
