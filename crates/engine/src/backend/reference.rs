//! The reference: every operation's meaning, in f64, one node after another. Slow, readable, and right by
//! inspection; the kernels are compared with it.

use crate::graph::{Graph, Initial, Source, Value};
use crate::ops::Reals;

/// Computes the values that `outputs` need. `leaf` may give the numbers of inputs, states and constants; where it
/// gives none, a state's or constant's own are taken.
pub fn evaluate(graph: &Graph, outputs: &[Value], leaf: impl Fn(usize) -> Option<Vec<f64>>) -> Vec<Reals> {
    let mut needed = vec![false; graph.nodes().len()];
    for output in outputs {
        needed[output.node] = true;
    }
    for index in (0..graph.nodes().len()).rev() {
        if needed[index] {
            graph.nodes()[index].inputs.iter().for_each(|input| needed[input.node] = true);
        }
    }
    let mut values: Vec<Vec<Reals>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        if !needed[index] {
            values.push(vec![]);
            continue;
        }
        let given = |own: Option<Vec<f64>>| {
            let numbers = leaf(index).or(own).unwrap_or_else(|| vec![0.0; node.outputs[0].shape.elements()]);
            vec![Reals::new(&node.outputs[0].shape, numbers)]
        };
        values.push(match &node.source {
            Source::Input(_) | Source::State(_, Initial::Zeros) => given(None),
            Source::State(_, Initial::Numbers(array)) | Source::Constant(array) => given(Some(array.to_f64())),
            Source::Op(op) => {
                let inputs: Vec<&Reals> = node.inputs.iter().map(|input| &values[input.node][input.output]).collect();
                op.reference(&inputs, &node.outputs)
            }
        });
    }
    outputs.iter().map(|output| values[output.node][output.output].clone()).collect()
}
