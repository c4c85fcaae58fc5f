//! Forward mode: tangents carried along the graph, from tensors that change in some direction to what is made of them, each
//! operation adding its own rule. Rules are made of operations, so a tangent can be differentiated again.

use crate::autodiff::{Following, added_up, misfit, values};
use crate::error::Location;
use crate::graph::{Source, Value};
use crate::ops::Operation;
use crate::{Error, Result, Tensor, Trace};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// A node being linearized: its operands and results, and the tangents of the operands.
pub struct Linearization<'a> {
    /// The operands.
    pub inputs: &'a [Tensor],
    /// The results.
    pub outputs: &'a [Tensor],
    op: &'static str,
    tangents: &'a [Option<Tensor>],
    /// What stands for the results from now on, if anything does.
    instead: RefCell<Vec<Tensor>>,
}

impl Linearization<'_> {
    /// The tangent of an operand; `None` if it does not change.
    pub fn tangent(&self, input: usize) -> Option<&Tensor> {
        self.tangents[input].as_ref()
    }

    /// The tangent of an operand; zeros if it does not change.
    #[track_caller]
    pub fn tangent_or_zeros(&self, input: usize) -> Tensor {
        match &self.tangents[input] {
            Some(tangent) => tangent.clone(),
            None => self.inputs[input].zeros_like(),
        }
    }

    /// The sum of what there is; `None` of nothing.
    #[track_caller]
    pub fn sum(&self, terms: impl IntoIterator<Item = Option<Tensor>>) -> Option<Tensor> {
        added_up(&terms.into_iter().flatten().collect::<Vec<_>>())
    }

    /// The tangent of a function that is linear in each of two operands: the function of the one's tangent and the other,
    /// and the other way round.
    #[track_caller]
    pub fn bilinear(
        &self,
        [first, second]: [usize; 2],
        function: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> Option<Tensor> {
        let by_first = self.tangent(first).map(|tangent| function(tangent, &self.inputs[second]));
        let by_second = self.tangent(second).map(|tangent| function(&self.inputs[first], tangent));
        self.sum([by_first, by_second])
    }

    /// The rule of a fused operation: linearizes what it is made of instead, which must give its results.
    pub fn through(&self, decomposition: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Option<Tensor>> {
        self.through_blocks(|inputs, _| decomposition(inputs))
    }

    /// As [`Linearization::through`], where results are made block by block: after each block the second argument is to be
    /// called, and the block's tangents come right behind it, so that little has to be held of one block for the next.
    pub fn through_blocks(
        &self,
        decomposition: impl FnOnce(&[Tensor], &mut dyn FnMut()) -> Vec<Tensor>,
    ) -> Vec<Option<Tensor>> {
        self.linearized(decomposition).1
    }

    /// As [`Linearization::through_blocks`], where tangents need nearly all of what the blocks compute: in a product with a
    /// Hessian their results stand for those of the operation from then on, so that it need not be computed too.
    pub fn through_blocks_instead(
        &self,
        decomposition: impl FnOnce(&[Tensor], &mut dyn FnMut()) -> Vec<Tensor>,
    ) -> Vec<Option<Tensor>> {
        let (results, tangents) = self.linearized(decomposition);
        *self.instead.borrow_mut() = results;
        tangents
    }

    /// What a decomposition gives, and its tangents.
    fn linearized(
        &self,
        decomposition: impl FnOnce(&[Tensor], &mut dyn FnMut()) -> Vec<Tensor>,
    ) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
        let nothing = || (vec![], self.nothing());
        let Ok(inputs) = values(self.inputs) else { return nothing() };
        let changing =
            inputs.into_iter().zip(self.tangents).filter_map(|(input, tangent)| Some((input, tangent.clone()?)));
        let mut push = Push::of(self.trace(), changing.collect());
        let outputs = decomposition(self.inputs, &mut || push.follow());
        push.follow();
        if let Some(problem) = misfit(outputs.iter().map(Some), self.outputs, "result") {
            return (vec![], self.refuse(format!("what its tangent goes through {problem}")));
        }
        let Ok(found) = values(&outputs) else { return nothing() };
        let tangents = found.iter().map(|output| push.found.get(output).cloned()).collect();
        (outputs, tangents)
    }

    /// The rule of an operation of which only the transposed one is known, from gradients of the results to gradients of
    /// some operands. That is linear, so its own gradient leads back from the operands' tangents to the results'.
    pub(crate) fn transposing(
        &self,
        operands: Range<usize>,
        rule: impl FnOnce(&[Tensor]) -> Vec<Option<Tensor>>,
    ) -> Vec<Option<Tensor>> {
        let trace = self.trace();
        let first_node = trace.graph().nodes().len();
        let gradients: Vec<Tensor> = self.outputs.iter().map(Tensor::zeros_like).collect();
        let given = rule(&gradients);
        if let Some(problem) = misfit(given.iter().map(Option::as_ref), &self.inputs[operands.clone()], "operand") {
            return self.refuse(format!("its gradient {problem}"));
        }
        let both = given
            .into_iter()
            .zip(&self.tangents[operands])
            .filter_map(|(given, tangent)| Some((given?, tangent.clone()?)));
        let (given, tangents): (Vec<Tensor>, Vec<Tensor>) = both.unzip();
        let tangents: Vec<Option<Tensor>> = tangents.into_iter().map(Some).collect();
        let terms = crate::autodiff::backward(trace, &given, &tangents, &gradients, first_node, &mut ());
        terms.iter().map(|terms| added_up(terms)).collect()
    }

    fn trace(&self) -> &Trace {
        self.outputs[0].trace()
    }

    fn nothing(&self) -> Vec<Option<Tensor>> {
        self.outputs.iter().map(|_| None).collect()
    }

    /// No tangents, and an error of the trace.
    fn refuse(&self, problem: String) -> Vec<Option<Tensor>> {
        let (op, inputs) = (self.op.to_string(), self.inputs.iter().map(Tensor::ty).collect());
        self.trace().fail(Error::Parameter { op, inputs, problem, at: self.trace().location() });
        self.nothing()
    }
}

/// The walk: the tangents found so far, by what they are the tangents of.
pub(crate) struct Push<'a> {
    trace: &'a Trace,
    found: HashMap<Value, Tensor>,
    /// What stands for results that need not be computed for tangents' sake.
    instead: HashMap<Value, Tensor>,
    /// The first node that was not followed yet.
    next: usize,
}

impl<'a> Push<'a> {
    /// Where these values have these tangents, and what will be recorded is to be followed.
    fn of(trace: &'a Trace, found: HashMap<Value, Tensor>) -> Push<'a> {
        Push { trace, found, instead: HashMap::new(), next: trace.graph().nodes().len() }
    }

    /// Where these tensors change in these directions; whether they may is checked.
    pub fn from(
        what: &str,
        trace: &'a Trace,
        inputs: &[&Tensor],
        directions: &[&Tensor],
        at: Location,
    ) -> Result<Push<'a>> {
        trace.check()?;
        if let Some(foreign) = inputs.iter().chain(directions).find(|tensor| !tensor.is_of(trace)) {
            return Err(foreign.foreign(what, at));
        }
        if inputs.len() != directions.len() {
            let problem = format!("takes a vector for each of {} tensors, not {}", inputs.len(), directions.len());
            return Err(Error::NoGradient { problem, at });
        }
        for (input, direction) in inputs.iter().zip(directions) {
            if !input.dtype().is_float() || input.ty() != direction.ty() {
                let problem = format!(
                    "a vector of {} for a tensor of {}; both must be of one floating-point type and shape",
                    direction.ty(),
                    input.ty()
                );
                return Err(Error::NoGradient { problem, at });
            }
        }
        let mut found: HashMap<Value, Tensor> = HashMap::new();
        for (input, &direction) in inputs.iter().zip(directions) {
            if found.insert(input.handle()?, direction.clone()).is_some() {
                let problem = "a tensor is named twice; give it one vector".to_string();
                return Err(Error::NoGradient { problem, at });
            }
        }
        Ok(Push::of(trace, found))
    }

    /// From now on, what is recorded is to be followed.
    pub fn begin(&mut self) {
        self.next = self.trace.graph().nodes().len();
    }

    /// Finds the tangents of what was recorded since the last time. Tangents themselves are not followed.
    pub fn follow(&mut self) {
        let end = self.trace.graph().nodes().len();
        (self.next..end).for_each(|node| self.node(node));
        self.begin();
    }

    /// Finds the tangents of these nodes, as far as they lead to `outputs`.
    pub fn over(&mut self, nodes: Range<usize>, outputs: &[Value]) {
        let mut needed = vec![false; nodes.end];
        outputs.iter().filter(|output| output.node < nodes.end).for_each(|output| needed[output.node] = true);
        self.trace.graph().mark_sources(&mut needed);
        nodes.filter(|&node| needed[node]).for_each(|node| self.node(node));
    }

    /// Finds the tangents of a node's results. One that was given stays what it is.
    fn node(&mut self, index: usize) {
        let node = self.trace.graph().nodes()[index].clone();
        let Source::Op(op) = &node.source else { return };
        let tangents: Vec<Option<Tensor>> = node.inputs.iter().map(|input| self.found.get(input).cloned()).collect();
        if tangents.iter().all(Option::is_none) || self.trace.check().is_err() {
            return;
        }
        let inputs: Vec<Tensor> = node.inputs.iter().map(|&input| self.instead_of(self.trace.tensor(input))).collect();
        let value = |output| Value { node: index, output };
        let mut outputs: Vec<Tensor> = (0..node.outputs.len()).map(|output| self.trace.tensor(value(output))).collect();
        let mut instead = RefCell::default();
        // What is made of results that need not be computed need not be either.
        if node.inputs.iter().any(|input| self.instead.contains_key(input)) {
            let again = || self.trace.apply_shared(op.clone(), &inputs.iter().collect::<Vec<_>>());
            outputs = self.trace.attributing(node.location, node.part.layer, || self.trace.in_part(node.part, again));
            instead = RefCell::new(outputs.clone());
        }
        let at = Linearization { inputs: &inputs, outputs: &outputs, op: op.name(), tangents: &tangents, instead };
        // A tangent is of the same part as what it is the tangent of, and is kept or made again alike.
        let rule = || self.trace.in_part(node.part, || checked(op.as_ref(), &at));
        let given = self.trace.attributing(node.location, node.part.layer, rule);
        for (output, tangent) in given.into_iter().enumerate() {
            if let (Some(tangent), true) = (tangent, node.outputs[output].dtype.is_float()) {
                self.found.entry(value(output)).or_insert(tangent);
            }
        }
        self.stand_in(index, at.instead.into_inner());
    }

    /// From now on these stand for the results of a node, with the tangents that those have.
    fn stand_in(&mut self, node: usize, results: Vec<Tensor>) {
        for (output, result) in results.into_iter().enumerate() {
            let own = Value { node, output };
            if let (Ok(other), Some(tangent)) = (result.handle(), self.found.get(&own).cloned()) {
                self.found.insert(other, tangent);
                self.instead.insert(own, result);
            }
        }
    }

    /// The tangent of a tensor; zeros if it does not change.
    #[track_caller]
    pub fn tangent_of(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(self.found.get(&tensor.handle()?).cloned().unwrap_or_else(|| tensor.zeros_like()))
    }
}

impl Following for Push<'_> {
    fn recorded(&mut self) {
        self.follow();
    }

    fn instead_of(&self, tensor: Tensor) -> Tensor {
        let known = tensor.handle().ok().and_then(|value| self.instead.get(&value));
        known.cloned().unwrap_or(tensor)
    }
}

/// The tangents that an operation's rule gives; none, and an error of the trace, unless each is of its result's type.
fn checked(op: &dyn Operation, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
    let given = op.tangent(at);
    let of_floats =
        given.iter().zip(at.outputs).map(|(given, output)| given.as_ref().filter(|_| output.dtype().is_float()));
    let of_floats: Vec<Option<&Tensor>> = of_floats.collect();
    if given.len() != at.outputs.len() {
        return at.refuse(format!("its tangent gives {} tensors for {} results", given.len(), at.outputs.len()));
    }
    match misfit(of_floats.into_iter(), at.outputs, "result") {
        None => given,
        Some(problem) => at.refuse(format!("its tangent {problem}")),
    }
}

/// How `outputs` change when `inputs` change by `vectors`: the Jacobian times a vector. Zeros where an output does not
/// depend on the inputs in a way that can be differentiated.
///
/// ```
/// use gradus_engine::{Array, GradientTape, jacobian_vector_product};
///
/// let tape = GradientTape::new()?;
/// let x = tape.watch(Array::new([2], &[3.0f32, 4.0])?);
/// let v = tape.watch(Array::new([2], &[1.0f32, -1.0])?);
/// let y = &x * &x;
/// let change = jacobian_vector_product(&[&y], &[&x], &[&v])?;
/// assert_eq!(tape.read(&change[0])?.to_f64(), [6.0, -8.0]);
/// # Ok::<(), gradus_engine::Error>(())
/// ```
#[track_caller]
pub fn jacobian_vector_product(outputs: &[&Tensor], inputs: &[&Tensor], vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let Some(first) = outputs.first() else { return Ok(vec![]) };
    let trace = first.trace();
    if let Some(foreign) = outputs.iter().find(|output| !output.is_of(trace)) {
        return Err(foreign.foreign("jacobian_vector_product", at));
    }
    let mut push = Push::from("jacobian_vector_product", trace, inputs, vectors, at)?;
    let ends: Vec<Value> = outputs.iter().map(|output| output.handle()).collect::<Result<_>>()?;
    let last = ends.iter().map(|end| end.node + 1).max().unwrap_or(0);
    push.over(0..last, &ends);
    let found =
        trace.attributing(at, None, || outputs.iter().map(|output| push.tangent_of(output)).collect::<Result<_>>());
    trace.check()?;
    found
}
