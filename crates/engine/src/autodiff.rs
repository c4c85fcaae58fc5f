//! Gradients as a walk over the graph: from the outputs back to what they depend on, each operation adding its
//! own rule. Rules are made of operations, so a gradient can be differentiated again.

use crate::error::Location;
use crate::graph::{Node, Source, Value};
use crate::{Error, Result, Tensor, Trace};
use std::collections::HashMap;

/// A node being differentiated: its operands and results, and the gradients that came to the results.
pub struct Differentiation<'a> {
    /// The operands.
    pub inputs: &'a [Tensor],
    /// The results.
    pub outputs: &'a [Tensor],
    op: &'static str,
    gradients: &'a [Option<Tensor>],
    wanted: &'a [bool],
}

impl Differentiation<'_> {
    /// The gradient of a result; zeros if none came.
    #[track_caller]
    pub fn gradient(&self, output: usize) -> Tensor {
        match &self.gradients[output] {
            Some(gradient) => gradient.clone(),
            None => self.outputs[output].zeros_like(),
        }
    }

    /// Whether a gradient came to this result.
    pub fn has_gradient(&self, output: usize) -> bool {
        self.gradients[output].is_some()
    }

    /// Whether the gradient of this operand is asked for; a rule may skip work for others.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted[input]
    }

    /// The rule of a fused operation: differentiates what it is made of instead, which must give its results.
    pub fn through(&self, decomposition: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Option<Tensor>> {
        let trace = self.trace();
        let first_node = trace.graph().nodes().len();
        let outputs = decomposition(self.inputs);
        if let Some(problem) = misfit(outputs.iter().map(Some), self.outputs, "result") {
            self.refuse(format!("what its gradient goes through {problem}"));
            return self.inputs.iter().map(|_| None).collect();
        }
        let terms = backward(trace, &outputs, self.gradients, self.inputs, first_node, &mut ());
        let mut found: Vec<Option<Tensor>> = terms.iter().map(|terms| added_up(terms)).collect();
        // A tensor that is an operand twice has one gradient, the sum of both: give it once.
        let handles: Vec<_> = self.inputs.iter().map(|input| input.handle().ok()).collect();
        for index in 1..found.len() {
            if handles[..index].contains(&handles[index]) {
                found[index] = None;
            }
        }
        found
    }

    /// Gradients that a rule gave for these operands; none, and an error of the trace, unless each is of its operand's
    /// type.
    pub(crate) fn checked(&self, given: Vec<Option<Tensor>>, operands: &[Tensor]) -> Vec<Option<Tensor>> {
        match misfit(given.iter().map(Option::as_ref), operands, "operand") {
            None => given,
            Some(problem) => {
                self.refuse(format!("its gradient {problem}"));
                operands.iter().map(|_| None).collect()
            }
        }
    }

    fn trace(&self) -> &Trace {
        self.outputs[0].trace()
    }

    fn refuse(&self, problem: String) {
        let (op, inputs) = (self.op.to_string(), self.inputs.iter().map(Tensor::ty).collect());
        self.trace().fail(Error::Parameter { op, inputs, problem, at: self.trace().location() });
    }
}

/// The gradients of `output`, summed over its elements, with respect to each of `inputs`.
#[track_caller]
pub fn gradient(output: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let terms = gradient_terms_at(output, inputs, at)?;
    let sum = |terms: Vec<Tensor>| added_up(&terms).expect("a gradient has a term");
    let trace = output.trace();
    Ok(trace.differentiating(|| trace.attributing(at, None, || terms.into_iter().map(sum).collect())))
}

/// As [`gradient`], with zeros for an input that `output` does not depend on in a way that can be differentiated.
#[track_caller]
pub fn gradient_or_zeros(output: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let terms = terms_or_none(output, inputs, at)?;
    let trace = output.trace();
    let sum = |(terms, input): (Vec<Tensor>, &&Tensor)| added_up(&terms).unwrap_or_else(|| input.zeros_like());
    Ok(trace.differentiating(|| trace.attributing(at, None, || terms.into_iter().zip(inputs).map(sum).collect())))
}

/// As [`gradient`], without adding up: for each input a gradient for each of its uses, the last use first.
#[track_caller]
pub fn gradient_terms(output: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Vec<Tensor>>> {
    gradient_terms_at(output, inputs, Location::caller())
}

fn gradient_terms_at(output: &Tensor, inputs: &[&Tensor], at: Location) -> Result<Vec<Vec<Tensor>>> {
    let found = terms_or_none(output, inputs, at)?;
    match found.iter().position(Vec::is_empty) {
        None => Ok(found),
        Some(index) => {
            let what = output.trace().graph().nodes()[inputs[index].handle()?.node].label();
            let problem = format!(
                "the result does not depend, in a way that can be differentiated, on argument {index} ({what}, {}); \
                 leave it out, use it, or ask for zeros with gradient_or_zeros",
                inputs[index].ty()
            );
            Err(Error::NoGradient { problem, at })
        }
    }
}

/// For each input a gradient for each of its uses; none where the output does not depend on it.
fn terms_or_none(output: &Tensor, inputs: &[&Tensor], at: Location) -> Result<Vec<Vec<Tensor>>> {
    let trace = output.trace();
    trace.check()?;
    if let Some(foreign) = inputs.iter().find(|input| !input.is_of(trace)) {
        return Err(foreign.foreign("gradient", at));
    }
    if output.dtype().is_integer() {
        let problem = format!("a result of {} cannot be differentiated; cast it to a float", output.ty());
        return Err(Error::NoGradient { problem, at });
    }
    let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let gradients = trace.differentiating(|| {
        let seed = trace.attributing(at, None, || output.ones_like());
        backward(trace, std::slice::from_ref(output), &[Some(seed)], &inputs, 0, &mut ())
    });
    trace.check()?;
    Ok(gradients)
}

impl Tensor {
    /// Whether this is computed from `other`, in whatever way. What is computed from it in a way that cannot be
    /// differentiated has a gradient of zeros in [`gradient_or_zeros`], and none in [`gradient`].
    pub fn depends_on(&self, other: &Tensor) -> bool {
        let (Ok(output), Ok(input)) = (self.handle(), other.handle()) else { return false };
        if !other.is_of(self.trace()) || input.node > output.node {
            return false;
        }
        let graph = self.trace().graph();
        let mut depends = vec![false; output.node + 1 - input.node];
        for node in input.node..=output.node {
            let reads = |read: &Value| *read == input || (read.node >= input.node && depends[read.node - input.node]);
            depends[node - input.node] = graph.nodes()[node].inputs.iter().any(reads);
        }
        output == input || depends[output.node - input.node]
    }
}

/// Who goes along on a walk back.
pub(crate) trait Following {
    /// The rule of a node has been recorded.
    fn recorded(&mut self);

    /// What the walk is to go on with in place of a tensor.
    fn instead_of(&self, tensor: Tensor) -> Tensor;
}

/// Nobody.
impl Following for () {
    fn recorded(&mut self) {}

    fn instead_of(&self, tensor: Tensor) -> Tensor {
        tensor
    }
}

/// Walks back from `outputs` to `inputs` over the nodes from `first_node` on: the gradients that came to each input.
pub(crate) fn backward(
    trace: &Trace,
    outputs: &[Tensor],
    gradients: &[Option<Tensor>],
    inputs: &[Tensor],
    first_node: usize,
    following: &mut dyn Following,
) -> Vec<Vec<Tensor>> {
    let (Ok(outputs), Ok(inputs)) = (values(outputs), values(inputs)) else {
        return inputs.iter().map(|_| vec![]).collect();
    };
    let last_node = outputs.iter().map(|output| output.node).max().unwrap_or(0);
    // Nothing before the first of the inputs depends on them.
    let first_node = inputs.iter().map(|input| input.node).min().unwrap_or(0).max(first_node);
    let depends = dependents(trace, &inputs, first_node, last_node);
    let mut found: HashMap<Value, Vec<Tensor>> = HashMap::new();
    for (output, gradient) in outputs.iter().zip(gradients) {
        if let Some(gradient) = gradient {
            found.entry(*output).or_default().push(gradient.clone());
        }
    }
    for index in (first_node..=last_node).rev() {
        if !depends[index - first_node] || trace.check().is_err() {
            continue;
        }
        let node = trace.graph().nodes()[index].clone();
        let Source::Op(op) = &node.source else { continue };
        let came = |output| found.get(&Value { node: index, output }).and_then(|terms| added_up(terms));
        let arrived: Vec<Option<Tensor>> = (0..node.outputs.len()).map(came).collect();
        if arrived.iter().all(Option::is_none) {
            continue;
        }
        let is_dependent =
            |value: &Value| inputs.contains(value) || (value.node >= first_node && depends[value.node - first_node]);
        let wanted: Vec<bool> =
            node.inputs.iter().map(|input| is_dependent(input) && trace.graph().ty(*input).dtype.is_float()).collect();
        let given = trace.attributing(node.location, node.part.layer, || {
            differentiate(trace, op.as_ref(), (index, &node), &arrived, &wanted, following)
        });
        following.recorded();
        for ((input, gradient), wanted) in node.inputs.iter().zip(given).zip(wanted) {
            if let (Some(gradient), true) = (gradient, wanted) {
                found.entry(*input).or_default().push(following.instead_of(gradient));
            }
        }
    }
    inputs.iter().map(|input| found.get(input).cloned().unwrap_or_default()).collect()
}

fn differentiate(
    trace: &Trace,
    op: &dyn crate::ops::Operation,
    (index, node): (usize, &Node),
    gradients: &[Option<Tensor>],
    wanted: &[bool],
    following: &dyn Following,
) -> Vec<Option<Tensor>> {
    let inputs: Vec<Tensor> = node.inputs.iter().map(|&input| trace.tensor(input)).collect();
    let outputs: Vec<Tensor> = (0..node.outputs.len())
        .map(|output| following.instead_of(trace.tensor(Value { node: index, output })))
        .collect();
    let at = Differentiation { inputs: &inputs, outputs: &outputs, op: op.name(), gradients, wanted };
    at.checked(op.gradient(&at), &inputs)
}

/// How tensors differ from those that they stand for, if they do: there must be as many, of the same trace and types.
pub(crate) fn misfit<'a>(
    given: impl ExactSizeIterator<Item = Option<&'a Tensor>>,
    wanted: &[Tensor],
    what: &str,
) -> Option<String> {
    if given.len() != wanted.len() {
        return Some(format!("gives {} tensors for {} {what}s", given.len(), wanted.len()));
    }
    given.zip(wanted).enumerate().find_map(|(index, (given, wanted))| {
        let given = given?;
        if !given.is_of(wanted.trace()) {
            return Some("gives a tensor of another trace".to_string());
        }
        let [have, want] = [given, wanted].map(Tensor::ty);
        (have != want && !given.is_poisoned()).then(|| format!("gives {have} for {what} {index}, which is {want}"))
    })
}

/// For each node from `first_node` to `last_node`: whether one of its inputs leads back to `inputs`.
fn dependents(trace: &Trace, inputs: &[Value], first_node: usize, last_node: usize) -> Vec<bool> {
    let graph = trace.graph();
    let mut depends = vec![false; (last_node + 1).saturating_sub(first_node)];
    for index in first_node..=last_node {
        let leads_back = |input: &Value| {
            graph.ty(*input).dtype.is_float()
                && (inputs.contains(input) || (input.node >= first_node && depends[input.node - first_node]))
        };
        depends[index - first_node] = graph.nodes()[index].inputs.iter().any(leads_back);
    }
    depends
}

/// The sum, first to last; `None` of nothing.
pub(crate) fn added_up(terms: &[Tensor]) -> Option<Tensor> {
    let (first, rest) = terms.split_first()?;
    Some(rest.iter().fold(first.clone(), |sum, term| sum + term))
}

pub(crate) fn values(tensors: &[Tensor]) -> Result<Vec<Value>> {
    tensors.iter().map(Tensor::handle).collect()
}
