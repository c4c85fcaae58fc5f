//! Products of the same second operand become one operation, where the machine had better pack its columns once for all of them.

use super::Rewrite;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Operation, SharedMatmul};
use crate::plan::{Machine, Request};
use crate::{Shape, TensorType};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The graph with products that share their columns, or nothing if there are none that could.
pub(super) fn columns(graph: &Graph, request: &Request, machine: &dyn Machine) -> Option<(Graph, Request)> {
    let groups = Groups::of(graph, machine);
    if groups.all.iter().all(|members| members.len() < 2) {
        return None;
    }
    let mut sharing = Sharing { graph, groups, rewrite: Rewrite::of(graph) };
    (0..graph.nodes().len()).for_each(|index| sharing.push(index));
    Some(sharing.rewrite.finish(request))
}

/// What products have in common that may be computed together: the second operand, the type of the first, what is computed.
type Alike = (Value, TensorType, String, Shape);

/// Nodes that are to be one.
struct Groups {
    all: Vec<Vec<usize>>,
    /// By node: its group, if it has one.
    of_node: Vec<Option<usize>>,
}

impl Groups {
    /// Each product joins the first group of its like that does not wait for it.
    fn of(graph: &Graph, machine: &dyn Machine) -> Groups {
        let mut groups = Groups { all: vec![], of_node: vec![None; graph.nodes().len()] };
        let mut alike: HashMap<Alike, Vec<usize>> = HashMap::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            let Some(key) = alike_of(graph, node, machine) else { continue };
            let known = alike.entry(key).or_default();
            let found = known.iter().copied().find(|&group| !groups.wait_for_each_other(graph, group, index));
            let group = found.unwrap_or_else(|| {
                known.push(groups.all.len());
                groups.all.push(vec![]);
                groups.all.len() - 1
            });
            groups.all[group].push(index);
            groups.of_node[index] = Some(group);
        }
        groups
    }

    /// The nodes that are computed together with this one.
    fn members<'a>(&'a self, index: &'a usize) -> &'a [usize] {
        self.of_node[*index].map_or(std::slice::from_ref(index), |group| &self.all[group])
    }

    /// Whether a node needs what a group gives, or the other way round; groups that there are already are computed at once.
    fn wait_for_each_other(&self, graph: &Graph, group: usize, index: usize) -> bool {
        let mut seen = vec![false; graph.nodes().len()];
        let joined = || self.all[group].iter().chain([&index]);
        let mut open: Vec<usize> = joined().copied().collect();
        while let Some(next) = open.pop() {
            for input in graph.nodes()[next].inputs.iter().map(|input| input.node) {
                if !seen[input] {
                    self.members(&input).iter().for_each(|&member| seen[member] = true);
                    open.extend(self.members(&input));
                }
            }
        }
        joined().any(|&member| seen[member])
    }
}

/// What a node is told by, if it is a product that the machine computes together with others.
fn alike_of(graph: &Graph, node: &Node, machine: &dyn Machine) -> Option<Alike> {
    let (product, _) = SharedMatmul::sharing(node.op()?.as_ref())?;
    if !machine.shares_columns(product, node.outputs[0].shape.rows_and_columns().0) {
        return None;
    }
    let types = format!("{:?}", product.types());
    Some((node.inputs[1], graph.ty(node.inputs[0]).clone(), types, node.outputs[0].shape.clone()))
}

struct Sharing<'a> {
    graph: &'a Graph,
    groups: Groups,
    rewrite: Rewrite<'a>,
}

impl Sharing<'_> {
    /// Records a node, after what it needs: what is computed together waits for the operands of all.
    fn push(&mut self, index: usize) {
        let mut open = vec![index];
        while let Some(&next) = open.last() {
            if self.rewrite.has(next) {
                open.pop();
                continue;
            }
            let members = self.groups.members(&next).to_vec();
            let inputs = members.iter().flat_map(|&member| &self.graph.nodes()[member].inputs);
            let missing: Vec<usize> = inputs.map(|input| input.node).filter(|&node| !self.rewrite.has(node)).collect();
            if missing.is_empty() {
                self.record(&members);
            }
            open.extend(missing.into_iter().rev());
        }
    }

    /// Records nodes whose operands are there, as one.
    fn record(&mut self, members: &[usize]) {
        let nodes: Vec<&Node> = members.iter().map(|&member| &self.graph.nodes()[member]).collect();
        if let [node] = nodes[..] {
            let inputs = self.rewrite.inputs(node);
            self.rewrite.push(members[0], Node { inputs, ..node.clone() });
            return;
        }
        let ops: Vec<Arc<dyn Operation>> = nodes.iter().filter_map(|node| node.op().cloned()).collect();
        let inputs = nodes.iter().flat_map(|node| self.rewrite.inputs(node)).collect();
        let outputs = nodes.iter().flat_map(|node| node.outputs.clone()).collect();
        let part = nodes[1..].iter().fold(nodes[0].part, |part, node| part.with(node.part));
        let source = Source::Op(Arc::new(SharedMatmul::new(ops)));
        let new = self.rewrite.new.push(Node { source, inputs, outputs, part, ..nodes[0].clone() });
        let mut end = 0;
        for (&member, node) in members.iter().zip(&nodes) {
            let results: Range<usize> = end..end + node.outputs.len();
            end = results.end;
            let of_new: Vec<Value> = results.map(|output| Value { node: new, output }).collect();
            self.rewrite.pass(member, &of_new);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Cpu;
    use crate::plan::Options;
    use crate::{DType, Routine, Tensor, Trace};

    /// The operations of a routine that gives these results of two inputs and a weight.
    fn planned(results: impl Fn(&Tensor, &Tensor, &Tensor) -> Vec<Tensor>) -> Vec<&'static str> {
        let trace = Trace::new();
        let [x, y] = ["x", "y"].map(|name| trace.input(name, DType::F32, [100, 80]));
        let weight = trace.input("weight", DType::F32, [80, 80]);
        let results = results(&x, &y, &weight);
        let outputs = results.iter().enumerate();
        let routine =
            outputs.fold(Routine::new("r"), |routine, (at, result)| routine.output(&format!("r{at}"), result));
        let plan = trace.plan(&Cpu::new(2).unwrap(), &[routine], Options::default()).unwrap();
        plan.routines[0].steps.iter().map(|step| step.op.name()).collect()
    }

    #[test]
    fn products_of_one_operand_are_one() {
        let two = planned(|x, y, weight| vec![x.matmul(weight), y.matmul(weight).gelu()]);
        assert_eq!(two, ["shared_matmul"]);
        let other_weight = planned(|x, y, weight| vec![x.matmul(weight), y.matmul(&weight.transpose(0, 1))]);
        assert_eq!(other_weight, ["matmul", "matmul"]);
    }

    #[test]
    fn products_that_need_each_other_stay_apart() {
        let chain = planned(|x, _, weight| {
            let first = x.matmul(weight);
            vec![first.matmul(weight), first]
        });
        assert_eq!(chain, ["matmul", "matmul"]);
        let turned = |weight: &Tensor| weight.transpose(0, 1);
        let crossed = planned(|x, y, weight| {
            let [first, second] = [x.matmul(weight), y.matmul(&turned(weight))];
            vec![first.matmul(&turned(weight)), second.matmul(weight), first, second]
        });
        assert_eq!(crossed.iter().filter(|name| **name == "shared_matmul").count(), 1, "{crossed:?}");
    }

    /// Two that are needed one after the other would both be held.
    #[test]
    fn products_stay_apart_where_sharing_takes_more_memory() {
        let sums = planned(|x, y, weight| [x, y].map(|x| (x * 2.0).matmul(weight).sum_all()).into());
        assert_eq!(sums.iter().filter(|name| **name == "shared_matmul").count(), 0, "{sums:?}");
    }
}
