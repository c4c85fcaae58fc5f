//! Many products at one point: what of them does not depend on the vector is computed once and kept, as far as that is worth its
//! bytes; a product is then made of what was kept.

use super::min_cut::{Network, UNLIMITED};
use crate::error::Location;
use crate::graph::{Graph, Node, Role, Source, Value};
use crate::ops::{Effect, Lowering, Operation};
use crate::plan::identity;
use crate::{Result, Routine, Tensor};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Products with vectors, made of states that hold what does not depend on the vectors.
///
/// A Hessian-vector product takes a forward pass and the gradients of all activations, whatever the vector. Where there are several
/// vectors for the same inputs, as for eigenvalues, traces and solutions, a routine computes those once, and each product takes the rest:
///
/// ```
/// use gradus_engine::curvature::Linearized;
/// use gradus_engine::{DType, Routine, Trace, backend::Cpu, hessian_vector_product};
///
/// let trace = Trace::new();
/// let x = trace.input("x", DType::F32, [2, 2]);
/// let v = trace.input("v", DType::F32, [2, 2]);
/// let loss = x.matmul(&x).tanh().sum_all();
/// let product = hessian_vector_product(&loss, &[&x], &[&v])?;
/// let linearized = Linearized::of("kept", &product, &[&v], usize::MAX)?;
/// let once = linearized.keep(Routine::new("linearize").output("loss", &loss));
/// let each = Routine::new("product").output("product", &linearized.products()[0]);
/// let mut program = trace.compile(&Cpu::new(1)?, &[once, each])?;
/// program.write("x", &[0.1f32, 0.2, 0.3, 0.4])?;
/// program.run("linearize")?;
/// for vector in [[1.0f32, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]] {
///     program.write("v", &vector)?;
///     program.run("product")?;
/// }
/// # Ok::<(), gradus_engine::Error>(())
/// ```
///
/// The products have the same bits as those that they are made from: what is kept are results of the same operations. They are
/// those at the point where [`Linearized::keep`]'s routine last ran.
pub struct Linearized {
    products: Vec<Tensor>,
    /// States, and what they are to hold.
    kept: Vec<Kept>,
    saved: f64,
}

/// A state, and what it is to hold.
struct Kept {
    name: String,
    state: Tensor,
    value: Tensor,
}

/// Operations that moving a byte is worth: a machine computes about as many meanwhile.
const OPERATIONS_OF_A_BYTE: u64 = 16;
/// Results that took at least so many operations a byte are worth keeping: matrix products with long sums, and sums over rows. Chains of
/// element-wise operations take fewer, and so do the scores of attention, whose sums are as long as a head is wide.
const WORTH_KEEPING: u64 = 128;

impl Linearized {
    /// Of products with these vectors; what is kept takes at most so many bytes, in states of this name and a number.
    ///
    /// Of what is worth keeping, it is first what took most operations a byte, and of equals the smaller: so the logits of a whole
    /// batch come last.
    #[track_caller]
    pub fn of(name: &str, products: &[Tensor], vectors: &[&Tensor], bytes: usize) -> Result<Linearized> {
        let at = Location::caller();
        let Some(first) = products.first() else {
            return Ok(Linearized { products: vec![], kept: vec![], saved: 0.0 });
        };
        let trace = first.trace();
        trace.check()?;
        if let Some(foreign) = products.iter().chain(vectors.iter().copied()).find(|tensor| !tensor.is_of(trace)) {
            return Err(foreign.foreign("Linearized::of", at));
        }
        let ends = products.iter().map(Tensor::handle).collect::<Result<Vec<Value>>>()?;
        let vectors = vectors.iter().map(|vector| vector.handle()).collect::<Result<Vec<Value>>>()?;
        let graph = trace.to_graph();
        let split = Split::of(&graph, &ends, &vectors);
        let kept = split.kept(bytes);
        let state = |(index, &value): (usize, &Value)| {
            let (name, ty) = (format!("{name}.{index}"), graph.ty(value));
            let state = trace.zero_state_with_role(&name, Role::Cache, ty.dtype, &ty.shape);
            Kept { name, state, value: trace.tensor(value) }
        };
        let states: Vec<Kept> = trace.attributing(at, None, || kept.iter().enumerate().map(state).collect());
        let states_of_values = kept.iter().copied().zip(states.iter().map(|kept| kept.state.clone()));
        let mut made: HashMap<Value, Tensor> = states_of_values.collect();
        let again = split.made_again(&kept);
        for &index in &again {
            let node = &graph.nodes()[index];
            let op = node.op().expect("only what is computed is made again").clone();
            let inputs = split.inputs(node).map(|value| tensor_of(&made, first, value)).collect::<Vec<_>>();
            let record = || trace.apply_shared(op, &inputs.iter().collect::<Vec<_>>());
            let results = trace.in_part(node.part, || trace.attributing(node.location, node.part.layer, record));
            for (output, result) in results.into_iter().enumerate() {
                made.entry(Value { node: index, output }).or_insert(result);
            }
        }
        trace.check()?;
        let products = ends.iter().map(|&end| tensor_of(&made, first, split.same(end))).collect();
        Ok(Linearized { products, kept: states, saved: split.saved(&again) })
    }

    /// The products, in the order in which they were given.
    pub fn products(&self) -> &[Tensor] {
        &self.products
    }

    /// A routine that also computes what the products rely on.
    pub fn keep(&self, routine: Routine) -> Routine {
        self.kept.iter().fold(routine, |routine, kept| routine.assign(&kept.state, &kept.value))
    }

    /// The names of the states that the products rely on: none, if nothing is worth keeping in the bytes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(|kept| &kept.name[..])
    }

    /// Bytes of these.
    pub fn bytes(&self) -> usize {
        self.kept.iter().map(|kept| kept.state.ty().bytes()).sum()
    }

    /// The share of the work that does not depend on the vectors which a product does without: the routine of [`Linearized::keep`] does
    /// all of it.
    pub fn saved(&self) -> f64 {
        self.saved
    }
}

/// What stands for a value: what was made for it, or itself.
fn tensor_of(made: &HashMap<Value, Tensor>, like: &Tensor, value: Value) -> Tensor {
    made.get(&value).cloned().unwrap_or_else(|| like.trace().tensor(value))
}

/// A graph, with what depends on the vectors told from what does not.
struct Split<'a> {
    graph: &'a Graph,
    /// By node: the first that computes the same.
    same: Vec<usize>,
    /// What is computed for the products from the vectors, in order.
    moving: Vec<usize>,
    /// What is computed for the products whatever the vectors are, in order.
    still: Vec<usize>,
    /// Results of the latter that are products, or read by the former.
    read: HashSet<Value>,
}

impl<'a> Split<'a> {
    fn of(graph: &'a Graph, ends: &[Value], vectors: &[Value]) -> Split<'a> {
        let nodes = graph.nodes();
        let mut split = Split { graph, same: same(graph), moving: vec![], still: vec![], read: HashSet::new() };
        let ends: Vec<Value> = ends.iter().map(|&end| split.same(end)).collect();
        let vectors: HashSet<Value> = vectors.iter().map(|&vector| split.same(vector)).collect();
        let mut moves = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            moves[index] = split.inputs(node).any(|input| moves[input.node] || vectors.contains(&input));
        }
        let mut needed = vec![false; nodes.len()];
        let is_computed = |value: &Value| nodes[value.node].op().is_some() && !vectors.contains(value);
        ends.iter().filter(|end| is_computed(end)).for_each(|end| needed[end.node] = true);
        for index in (0..nodes.len()).rev().filter(|&index| nodes[index].op().is_some()) {
            if needed[index] {
                split.inputs(&nodes[index]).filter(&is_computed).for_each(|input| needed[input.node] = true);
            }
        }
        let needed = (0..nodes.len()).filter(|&index| needed[index]);
        (split.moving, split.still) = needed.partition(|&index| moves[index]);
        let read = split.moving.iter().flat_map(|&index| split.inputs(&nodes[index])).chain(ends);
        split.read = read.filter(|value| is_computed(value) && !moves[value.node]).collect();
        split
    }

    /// The first value that is the same.
    fn same(&self, value: Value) -> Value {
        Value { node: self.same[value.node], ..value }
    }

    fn inputs(&self, node: &'a Node) -> impl Iterator<Item = Value> + '_ {
        node.inputs.iter().map(|&input| self.same(input))
    }

    /// The values to keep, so that in at most so many bytes as much as possible of what is worth it is not computed again.
    fn kept(&self, bytes: usize) -> Vec<Value> {
        let mut worth: Vec<usize> =
            self.still.iter().copied().filter(|&node| self.worth(node) >= WORTH_KEEPING).collect();
        let size = |node: usize| self.graph.nodes()[node].outputs.iter().map(|ty| ty.bytes()).sum::<usize>();
        worth.sort_by_key(|&node| (Reverse(self.worth(node)), size(node), node));
        let within = |count: usize| Some(self.cut(&worth[..count])).filter(|(_, needed)| *needed <= bytes);
        if let Some((kept, _)) = within(worth.len()) {
            return kept;
        }
        // The more is not to be computed again, the more bytes it takes.
        let (mut best, mut fits, mut too_many) = (vec![], 0, worth.len());
        while too_many - fits > 1 {
            let middle = fits.midpoint(too_many);
            match within(middle) {
                Some((kept, _)) => (best, fits) = (kept, middle),
                None => too_many = middle,
            }
        }
        best
    }

    /// Operations for each byte of a node's results.
    fn worth(&self, index: usize) -> u64 {
        let bytes: u64 = self.graph.nodes()[index].outputs.iter().map(|ty| ty.bytes() as u64).sum();
        self.work(index).checked_div(bytes).unwrap_or(0)
    }

    /// Operations of a node, and what moving its operands and results is worth.
    fn work(&self, index: usize) -> u64 {
        let node = &self.graph.nodes()[index];
        let (op, inputs) = (node.op().expect("it is computed"), self.graph.input_types(node));
        if is_a_look(op.as_ref()) {
            return 0;
        }
        if op.effect(&inputs) == Effect::Collective {
            return u64::MAX;
        }
        let cost = op.cost(&inputs, &node.outputs);
        cost.operations.saturating_add(cost.bytes.saturating_mul(OPERATIONS_OF_A_BYTE))
    }

    /// The share of the work that does not depend on the vectors which is not done again.
    fn saved(&self, again: &[usize]) -> f64 {
        let again: HashSet<usize> = again.iter().copied().collect();
        let work = |nodes: &mut dyn Iterator<Item = &usize>| nodes.map(|&node| self.work(node) as f64).sum::<f64>();
        let all = work(&mut self.still.iter());
        let saved = work(&mut self.still.iter().filter(|node| !again.contains(node)));
        if all > 0.0 { saved / all } else { 0.0 }
    }

    /// The fewest bytes from which all that is read follows without these nodes being computed again, and how many they are.
    fn cut(&self, once: &[usize]) -> (Vec<Value>, usize) {
        let nodes = self.graph.nodes();
        let values: Vec<Value> = self
            .still
            .iter()
            .flat_map(|&node| (0..nodes[node].outputs.len()).map(move |output| Value { node, output }))
            .collect();
        // Each value is two vertices, and keeping it takes out the arc between them; then the nodes, the source and the sink.
        let of_value: HashMap<Value, usize> = values.iter().enumerate().map(|(at, &value)| (value, 2 * at)).collect();
        let of_node = |at: usize| 2 * values.len() + at;
        let (source, sink) = (of_node(self.still.len()), of_node(self.still.len() + 1));
        let mut network = Network::of(sink + 1);
        let once: HashSet<usize> = once.iter().copied().collect();
        for (at, &index) in self.still.iter().enumerate() {
            let node = &nodes[index];
            if once.contains(&index) {
                network.add(source, of_node(at), UNLIMITED);
            }
            let operands: HashSet<usize> =
                self.inputs(node).filter_map(|input| of_value.get(&input).copied()).collect();
            let mut operands: Vec<usize> = operands.into_iter().collect();
            operands.sort_unstable();
            operands.into_iter().for_each(|operand| network.add(operand + 1, of_node(at), UNLIMITED));
            let looks = is_a_look(node.op().expect("it is computed").as_ref());
            for (output, ty) in node.outputs.iter().enumerate() {
                let vertex = of_value[&Value { node: index, output }];
                network.add(of_node(at), vertex, UNLIMITED);
                network.add(vertex, vertex + 1, if looks { UNLIMITED } else { ty.bytes() as u64 });
                if self.read.contains(&Value { node: index, output }) {
                    network.add(vertex + 1, sink, UNLIMITED);
                }
            }
        }
        let behind = network.behind_the_cut(source, sink);
        let is_cut = |value: &Value| behind[of_value[value] + 1] && !behind[of_value[value]];
        let kept: Vec<Value> = values.iter().copied().filter(is_cut).collect();
        let bytes = kept.iter().map(|&value| self.graph.ty(value).bytes()).sum();
        (kept, bytes)
    }

    /// What is computed for every product, in order: what depends on the vectors, and what of the rest was not kept.
    fn made_again(&self, kept: &[Value]) -> Vec<usize> {
        let kept: HashSet<Value> = kept.iter().copied().collect();
        let missing = |value: &Value| self.graph.nodes()[value.node].op().is_some() && !kept.contains(value);
        let mut again: HashSet<usize> =
            self.read.iter().filter(|value| missing(value)).map(|value| value.node).collect();
        for &index in self.still.iter().rev() {
            if again.contains(&index) {
                again.extend(self.inputs(&self.graph.nodes()[index]).filter(missing).map(|value| value.node));
            }
        }
        let mut nodes: Vec<usize> = self.moving.iter().copied().chain(again).collect();
        nodes.sort_unstable();
        nodes
    }
}

/// Whether the results lie where the operands do.
fn is_a_look(op: &dyn Operation) -> bool {
    matches!(op.lowering(), Lowering::View(_) | Lowering::Identity)
}

/// By node: the first that is the same operation on the same operands.
fn same(graph: &Graph) -> Vec<usize> {
    let mut seen = HashMap::new();
    let mut same: Vec<usize> = vec![];
    for (index, node) in graph.nodes().iter().enumerate() {
        let first = match &node.source {
            Source::Op(op) if op.effect(&graph.input_types(node)) != Effect::Collective => {
                let inputs: Vec<Value> =
                    node.inputs.iter().map(|input| Value { node: same[input.node], ..*input }).collect();
                *seen.entry(identity(op.as_ref(), &inputs)).or_insert(index)
            }
            _ => index,
        };
        same.push(first);
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::plan::{BufferKind, Options, Plan, PlannedRoutine};
    use crate::testing::numbers::Random;
    use crate::{DType, Program, Trace, hessian_vector_product};

    const CHANNELS: usize = 256;
    const HEADS: usize = 16;
    const LAYERS: usize = 2;
    const CLASSES: usize = 1500;

    /// A small transformer over so many rows, with products of its Hessian: plain, and linearized in so many bytes.
    struct Transformer {
        trace: Trace,
        routines: Vec<Routine>,
        kept_bytes: usize,
        sizes: Vec<usize>,
    }

    impl Transformer {
        fn of(rows: usize, bytes: usize) -> Transformer {
            let trace = Trace::new();
            let mut weights: Vec<Tensor> = vec![];
            let mut weight = |shape: &[usize]| {
                weights.push(trace.input(&format!("w{}", weights.len()), DType::F32, shape));
                weights[weights.len() - 1].clone()
            };
            let mut x = weight(&[rows, CHANNELS]);
            for _ in 0..LAYERS {
                let [joint, output] = [3, 1].map(|times| weight(&[CHANNELS, times * CHANNELS]));
                let [up, down] = [weight(&[CHANNELS, 4 * CHANNELS]), weight(&[4 * CHANNELS, CHANNELS])];
                let [gain, bias] = [weight(&[CHANNELS]), weight(&[CHANNELS])];
                let heads = x.layer_norm(&gain, &bias, 1e-5).matmul(&joint).split(-1, &[CHANNELS; 3]);
                let split = |part: &Tensor| part.reshape([1, rows, HEADS, CHANNELS / HEADS]).transpose(1, 2);
                let [q, k, v] = [0, 1, 2].map(|part| split(&heads[part]));
                let seen = q.attention(&k, &v, true).transpose(1, 2).reshape([rows, CHANNELS]);
                x = &x + seen.matmul(&output);
                x = &x + x.matmul(&up).gelu().matmul(&down);
            }
            let targets = trace.input("targets", DType::I32, [rows]);
            let loss = x.linear_cross_entropy(&weight(&[CLASSES, CHANNELS]), &targets, None);
            let input =
                |(index, weight): (usize, &Tensor)| trace.input(&format!("v{index}"), DType::F32, weight.shape());
            let vectors: Vec<Tensor> = weights.iter().enumerate().map(input).collect();
            let [weights, vectors] = [&weights, &vectors].map(|tensors| tensors.iter().collect::<Vec<_>>());
            let products = hessian_vector_product(&loss, &weights, &vectors).unwrap();
            let linearized = Linearized::of("kept", &products, &vectors, bytes).unwrap();
            let giving = |name: &str, products: &[Tensor]| {
                let parts = products.iter().enumerate();
                parts.fold(Routine::new(name), |routine, (at, part)| routine.output(&format!("p{at}"), part))
            };
            let once = linearized.keep(Routine::new("linearize").output("loss", &loss));
            let routines = vec![giving("plain", &products), once, giving("product", linearized.products())];
            let sizes = weights.iter().map(|weight| weight.shape().elements()).collect();
            Transformer { kept_bytes: linearized.bytes(), trace: trace.clone(), routines, sizes }
        }

        fn plan(&self) -> Plan {
            self.trace.plan(&Cpu::new(1).unwrap(), &self.routines, Options::default()).unwrap()
        }

        /// The plain products with two vectors, and the same linearized, as bits.
        fn products(&self, threads: usize) -> [Vec<Vec<u32>>; 2] {
            let mut program: Program = self.trace.compile(&Cpu::new(threads).unwrap(), &self.routines).unwrap();
            let mut random = Random::new(7);
            let mut numbers = |count: usize| (0..count).map(|_| random.uniform(-0.1, 0.1) as f32).collect::<Vec<_>>();
            for (at, &size) in self.sizes.iter().enumerate() {
                program.write(&format!("w{at}")[..], &numbers(size)).unwrap();
            }
            let rows = self.sizes[0] / CHANNELS;
            let targets: Vec<i32> = (0..rows).map(|row| (row * 7 % CLASSES) as i32).collect();
            program.write("targets", &targets).unwrap();
            let vectors = [0, 1].map(|_| self.sizes.iter().map(|&size| numbers(size)).collect::<Vec<_>>());
            let with_all = |program: &mut Program, routine: &str| {
                let mut found = vec![];
                for vector in &vectors {
                    for (at, part) in vector.iter().enumerate() {
                        program.write(&format!("v{at}")[..], part).unwrap();
                    }
                    program.run(routine).unwrap();
                    let part = |at: usize| program.read(&format!("p{at}")[..]).unwrap().to_vec::<f32>().unwrap();
                    found.push((0..self.sizes.len()).flat_map(part).map(f32::to_bits).collect());
                }
                found
            };
            let plain = with_all(&mut program, "plain");
            program.run("linearize").unwrap();
            [plain, with_all(&mut program, "product")]
        }
    }

    /// Operations of a routine's matrix products.
    fn operations(routine: &PlannedRoutine) -> u64 {
        routine.steps.iter().filter(|step| step.op.name().contains("matmul")).map(|step| step.cost().operations).sum()
    }

    #[test]
    fn products_have_the_same_bits_however_much_is_kept_and_on_any_number_of_threads() {
        let all = Transformer::of(24, usize::MAX);
        let expected = all.products(1)[0].clone();
        assert!(expected[0] != expected[1]);
        for bytes in [usize::MAX, all.kept_bytes / 2, all.kept_bytes / 10, 0] {
            let some = Transformer::of(24, bytes);
            assert!(some.kept_bytes <= bytes && (bytes == 0 || some.kept_bytes > bytes.min(all.kept_bytes) / 2));
            for threads in 1..=3 {
                assert!(
                    some.products(threads) == [&expected, &expected].map(Clone::clone),
                    "{bytes} bytes, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn a_quarter_of_the_work_is_done_once() {
        let plan = Transformer::of(24, usize::MAX).plan();
        let [plain, once, each] = [0, 1, 2].map(|routine| operations(&plan.routines[routine]));
        // Of eight products in the place of three of a gradient's, two; attention's scores are made again.
        assert!(each as f64 <= 0.8 * plain as f64 && once > 0, "{plain}: {once} once and {each} each");
        // The less is kept, the more is made again, up to all of it.
        let of = |bytes: usize| operations(&Transformer::of(24, bytes).plan().routines[2]);
        let all = Transformer::of(24, usize::MAX).kept_bytes;
        assert!(each < of(all / 2) && of(all / 2) < of(all / 10) && of(0) == plain);
    }

    #[test]
    fn no_scores_are_kept_and_logits_come_last() {
        let kept = |transformer: &Transformer| -> Vec<usize> {
            let plan = transformer.plan();
            let states = plan.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::State(_)));
            states.map(|buffer| buffer.ty.shape.elements()).collect()
        };
        let rows = 300;
        let [few, many] = [rows, 2 * rows].map(|rows| Transformer::of(rows, usize::MAX));
        // What is kept grows as the rows do, and nothing that is kept as their square does.
        assert!(many.kept_bytes as f64 <= 2.05 * few.kept_bytes as f64, "{} and {}", few.kept_bytes, many.kept_bytes);
        let logits = |kept: &[usize]| kept.contains(&(rows * CLASSES));
        assert!(logits(&kept(&few)) && !logits(&kept(&Transformer::of(rows, few.kept_bytes - 1))));
    }
}
