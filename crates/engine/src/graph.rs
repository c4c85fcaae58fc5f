//! What a trace records: values, and the operations between them, in the order they were asked for.

use crate::error::Location;
use crate::ops::Operation;
use crate::{Array, TensorType};
use std::fmt;
use std::sync::Arc;

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node's place in the graph.
    pub node: usize,
    /// Which of its outputs.
    pub output: usize,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.output {
            0 => write!(f, "%{}", self.node),
            output => write!(f, "%{}.{output}", self.node),
        }
    }
}

/// What a state holds before the first replay.
#[derive(Clone, Debug)]
pub enum Initial {
    /// Zeros; they cost nothing to make.
    Zeros,
    /// These numbers.
    Numbers(Arc<Array>),
}

/// What a state is for. Plans, checkpoints and reports go by it, never by a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Part of the model, found by training.
    #[default]
    Weight,
    /// A sum of gradients, begun anew at every step.
    Gradient,
    /// What an optimizer remembers from step to step.
    Optimizer,
    /// What a model or a trainer keeps count of beside the gradient: running means, averages of weights.
    Statistics,
    /// What is kept only while something is computed, such as keys and values of a text that is written.
    Cache,
}

impl Role {
    /// Whether the next step depends on it, so that a checkpoint must have it.
    pub fn outlasts_a_step(self) -> bool {
        match self {
            Role::Weight | Role::Optimizer | Role::Statistics => true,
            Role::Gradient | Role::Cache => false,
        }
    }
}

/// A tensor kept from replay to replay.
#[derive(Clone, Debug)]
pub struct State {
    /// Its name.
    pub name: Arc<str>,
    /// What it is for.
    pub role: Role,
    /// What it holds before the first replay.
    pub initial: Initial,
}

/// Where a node's values come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Written by the caller before a replay.
    Input(Arc<str>),
    /// Kept from replay to replay; a routine may assign it a new value.
    State(State),
    /// Fixed when traced.
    Constant(Arc<Array>),
    /// Computed.
    Op(Arc<dyn Operation>),
}

/// Which part of a training step something belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The layer of the model, if the code that was traced said so ([`crate::Trace::in_layer`]).
    pub layer: Option<usize>,
    /// Whether it was recorded while differentiating.
    pub backward: bool,
    /// The part that is made again rather than kept ([`crate::Trace::checkpoint`]), if it is in one.
    pub checkpoint: Option<usize>,
}

impl Part {
    /// The part of what is made of something of this part and of what it reads: where gradients are read, a gradient is.
    pub(crate) fn with(self, read: Part) -> Part {
        Part { backward: self.backward || read.backward, ..self }
    }
}

/// A node: where its values come from, what it reads, what it gives, and the user's line that asked for it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where the values come from.
    pub source: Source,
    /// What it reads.
    pub inputs: Vec<Value>,
    /// The types of its outputs.
    pub outputs: Vec<TensorType>,
    /// The user's line.
    pub location: Location,
    /// The part of the step.
    pub part: Part,
}

impl Node {
    /// The operation, if it is one.
    pub fn op(&self) -> Option<&Arc<dyn Operation>> {
        match &self.source {
            Source::Op(op) => Some(op),
            _ => None,
        }
    }

    /// What to call it in a message.
    pub fn label(&self) -> String {
        match &self.source {
            Source::Input(name) => format!("input {name:?}"),
            Source::State(state) => format!("state {:?}", state.name),
            Source::Constant(_) => "constant".to_string(),
            Source::Op(op) => op.name().to_string(),
        }
    }
}

/// Nodes in an order in which every node comes after what it reads.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Adds a node and gives its place.
    pub(crate) fn push(&mut self, node: Node) -> usize {
        debug_assert!(node.inputs.iter().all(|input| input.node < self.nodes.len()), "a node reads what comes later");
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Marks whatever the marked nodes lead back to.
    pub(crate) fn mark_sources(&self, marks: &mut [bool]) {
        for index in (0..marks.len()).rev() {
            if marks[index] {
                self.nodes[index].inputs.iter().for_each(|input| marks[input.node] = true);
            }
        }
    }

    /// Leaves only these nodes, and with each whatever it reads.
    pub(crate) fn retain(&mut self, kept: &[bool]) {
        let mut moved_to = vec![0; kept.len()];
        let mut count = 0;
        for (index, &is_kept) in kept.iter().enumerate() {
            moved_to[index] = count;
            count += is_kept as usize;
        }
        let mut marks = kept.iter();
        self.nodes.retain(|_| *marks.next().expect("a mark for every node"));
        for node in &mut self.nodes {
            node.inputs.iter_mut().for_each(|input| input.node = moved_to[input.node]);
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.nodes[value.node].outputs[value.output]
    }

    /// The types of a node's operands.
    pub fn input_types(&self, node: &Node) -> Vec<TensorType> {
        node.inputs.iter().map(|&input| self.ty(input).clone()).collect()
    }

    /// Checks that every node reads only earlier values and that every operation's own shape rule gives the
    /// types that are written down.
    pub fn verify(&self) -> std::result::Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            for input in &node.inputs {
                let earlier = self.nodes[..index].get(input.node);
                if earlier.is_none_or(|source| input.output >= source.outputs.len()) {
                    return Err(format!("%{index} {} reads {input}, which is not there yet", node.label()));
                }
            }
            if let Some(op) = node.op() {
                let ruled = op.outputs(&self.input_types(node));
                if ruled.as_ref() != Ok(&node.outputs) {
                    return Err(format!(
                        "%{index} {}: {:?} is written, its rule gives {ruled:?}",
                        node.label(),
                        node.outputs
                    ));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            let types: Vec<String> = node.outputs.iter().map(ToString::to_string).collect();
            write!(f, "%{index}: {} = {}", types.join(", "), node.label())?;
            for input in &node.inputs {
                write!(f, " {input}")?;
            }
            match node.op().map(|op| op.attributes()) {
                Some(attributes) if !attributes.is_empty() => writeln!(f, " {{{attributes}}}")?,
                _ => writeln!(f)?,
            }
        }
        Ok(())
    }
}
