//! Tracing: user code on [`Tensor`] handles becomes a [`Graph`]. Nothing is computed.
//!
//! A handle of a failed operation is *poisoned*: operations on it do nothing, and the trace keeps the first
//! error, with the user's line, for whoever compiles or asks for a value. So model code needs no `?` on every
//! line and still never panics.

use crate::error::Location;
use crate::graph::{Graph, Initial, Node, Part, Role, Source, State, Value};
use crate::handles::unique;
use crate::ops::{Operation, admission};
use crate::{Array, DType, Error, Mismatch, Result, Shape, TensorType};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A recording of operations. Cloning gives another handle on the same recording.
#[derive(Clone, Default)]
pub struct Trace(Rc<Recording>);

struct Recording {
    /// Tells it apart from other recordings.
    id: u64,
    graph: RefCell<Graph>,
    /// By node: where it stands, shared with its handles, so that they follow when nodes before it are forgotten.
    positions: RefCell<Vec<Rc<Cell<usize>>>>,
    /// The names of inputs and states.
    names: RefCell<HashSet<Arc<str>>>,
    /// How many nodes there were when some were last forgotten.
    remembered: Cell<usize>,
    /// Something outside knows nodes by where they stand.
    pinned: Cell<bool>,
    first_error: RefCell<Option<Error>>,
    /// The line that nodes are attributed to while gradients are traced: that of the node being differentiated.
    attributed_to: Cell<Option<Location>>,
    /// The part of the step that is being recorded.
    part: Cell<Part>,
    /// How many parts were asked to be made again.
    checkpoints: Cell<usize>,
}

impl Default for Recording {
    fn default() -> Recording {
        Recording {
            id: unique(),
            graph: RefCell::default(),
            positions: RefCell::default(),
            names: RefCell::default(),
            remembered: Cell::default(),
            pinned: Cell::default(),
            first_error: RefCell::default(),
            attributed_to: Cell::default(),
            part: Cell::default(),
            checkpoints: Cell::default(),
        }
    }
}

/// A handle on a value in a trace.
#[derive(Clone)]
pub struct Tensor {
    trace: Trace,
    /// The node's position and which of its outputs; `None` if poisoned.
    source: Option<(Rc<Cell<usize>>, usize)>,
}

/// What a cell held before, and holds again when this goes: also when user code panics and someone catches that.
struct Restored<'a, T: Copy> {
    cell: &'a Cell<T>,
    before: T,
}

impl<'a, T: Copy> Restored<'a, T> {
    fn replacing(cell: &'a Cell<T>, with: T) -> Restored<'a, T> {
        Restored { cell, before: cell.replace(with) }
    }
}

impl<T: Copy> Drop for Restored<'_, T> {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}

/// Fewer nodes than this are not worth forgetting.
const NODES_KEPT: usize = 256;

impl Trace {
    /// An empty trace.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// A tensor that the caller writes before a replay.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.leaf(name, Source::Input, TensorType::new(dtype, shape))
    }

    /// A weight: a tensor kept from replay to replay, with what it holds at first.
    #[track_caller]
    pub fn state(&self, name: &str, initial: Array) -> Tensor {
        self.state_with_role(name, Role::Weight, initial)
    }

    /// A weight that is zero at first.
    #[track_caller]
    pub fn zero_state(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.zero_state_with_role(name, Role::Weight, dtype, shape)
    }

    /// A tensor kept from replay to replay for what its role says, with what it holds at first.
    #[track_caller]
    pub fn state_with_role(&self, name: &str, role: Role, initial: Array) -> Tensor {
        let (ty, initial) = (initial.ty().clone(), Initial::Numbers(Arc::new(initial)));
        self.leaf(name, |name| Source::State(State { name, role, initial }), ty)
    }

    /// As [`Trace::state_with_role`], zero at first.
    #[track_caller]
    pub fn zero_state_with_role(&self, name: &str, role: Role, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        let state = |name| Source::State(State { name, role, initial: Initial::Zeros });
        self.leaf(name, state, TensorType::new(dtype, shape))
    }

    /// Fixed numbers.
    #[track_caller]
    pub fn constant(&self, numbers: impl Into<Arc<Array>>) -> Tensor {
        let numbers: Arc<Array> = numbers.into();
        if !numbers.ty().is_addressable() {
            return self.fail(too_large("constant", numbers.ty(), self.location()));
        }
        let outputs = vec![numbers.ty().clone()];
        let source = Source::Constant(numbers);
        self.tensor(Value { node: self.record(source, vec![], outputs, self.location()), output: 0 })
    }

    /// The first error of the trace, if there is one.
    pub fn check(&self) -> Result<()> {
        match &*self.0.first_error.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Records an operation; its outputs are poisoned if it does not take its operands.
    #[track_caller]
    pub fn apply(&self, op: impl Operation, inputs: &[&Tensor]) -> Vec<Tensor> {
        self.apply_shared(Arc::new(op), inputs)
    }

    /// As [`Trace::apply`], for an operation with one output.
    #[track_caller]
    pub fn apply_one(&self, op: impl Operation, inputs: &[&Tensor]) -> Tensor {
        self.apply_shared(Arc::new(op), inputs).into_iter().next().unwrap_or_else(|| self.poisoned())
    }

    #[track_caller]
    pub(crate) fn apply_shared(&self, op: Arc<dyn Operation>, inputs: &[&Tensor]) -> Vec<Tensor> {
        let at = self.location();
        let poisoned = |op: &dyn Operation| (0..op.output_count()).map(|_| self.poisoned()).collect();
        if let Some(foreign) = inputs.iter().find(|input| !input.is_of(self)) {
            self.fail(foreign.foreign(op.name(), at));
        }
        let Some(values) = inputs.iter().map(|input| input.value()).collect::<Option<Vec<Value>>>() else {
            return poisoned(op.as_ref());
        };
        if self.check().is_err() {
            return poisoned(op.as_ref());
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty()).collect();
        match self.admitted(op.as_ref(), types, at) {
            Ok(outputs) => {
                let count = outputs.len();
                let node = self.record(Source::Op(op), values, outputs, at);
                (0..count).map(|output| self.tensor(Value { node, output })).collect()
            }
            Err(error) => {
                self.fail(error);
                poisoned(op.as_ref())
            }
        }
    }

    /// The types of an operation's results, if it takes these operands and what it says of itself fits them.
    fn admitted(&self, op: &dyn Operation, inputs: Vec<TensorType>, at: Location) -> Result<Vec<TensorType>> {
        let outputs = match op.outputs(&inputs) {
            Ok(outputs) => outputs,
            Err(mismatch) => return Err(Error::mismatch(op.name(), inputs, mismatch, at)),
        };
        if let Some(output) = outputs.iter().find(|output| !output.is_addressable()) {
            return Err(too_large(op.name(), output, at));
        }
        match admission::check(op, &inputs, &outputs) {
            Ok(()) => Ok(outputs),
            Err(problem) => Err(Error::mismatch(op.name(), inputs, Mismatch::Parameter(problem), at)),
        }
    }

    /// Keeps the error, unless there is an earlier one, and gives a poisoned tensor.
    pub(crate) fn fail(&self, error: Error) -> Tensor {
        self.0.first_error.borrow_mut().get_or_insert(error);
        self.poisoned()
    }

    pub(crate) fn poisoned(&self) -> Tensor {
        Tensor { trace: self.clone(), source: None }
    }

    pub(crate) fn tensor(&self, value: Value) -> Tensor {
        let position = self.0.positions.borrow()[value.node].clone();
        Tensor { trace: self.clone(), source: Some((position, value.output)) }
    }

    /// The recorded graph, lent: nothing can be traced meanwhile.
    pub fn graph(&self) -> std::cell::Ref<'_, Graph> {
        self.0.graph.borrow()
    }

    /// A copy of the recorded graph, to print or to inspect.
    pub fn to_graph(&self) -> Graph {
        self.graph().clone()
    }

    /// Runs `work`; what it records is said to belong to this layer of the model, and so is what its gradient
    /// records. Recomputation by blocks goes by layers, and so do reports.
    pub fn in_layer<R>(&self, layer: usize, work: impl FnOnce() -> R) -> R {
        self.in_part(Part { layer: Some(layer), ..self.0.part.get() }, work)
    }

    /// Runs `work`; what it records is made again where its gradient needs it, instead of being kept, whatever the budget
    /// and the policy. What others read of it is kept.
    pub fn checkpoint<R>(&self, work: impl FnOnce() -> R) -> R {
        let checkpoint = self.0.checkpoints.get();
        self.0.checkpoints.set(checkpoint + 1);
        self.in_part(Part { checkpoint: Some(checkpoint), ..self.0.part.get() }, work)
    }

    /// Runs `work` as part of differentiating.
    pub(crate) fn differentiating<R>(&self, work: impl FnOnce() -> R) -> R {
        self.in_part(Part { backward: true, checkpoint: None, ..self.0.part.get() }, work)
    }

    /// The part of the step that is being recorded.
    pub(crate) fn part(&self) -> Part {
        self.0.part.get()
    }

    /// Runs `work` as part of whatever this says.
    pub(crate) fn in_part<R>(&self, part: Part, work: impl FnOnce() -> R) -> R {
        let _before = Restored::replacing(&self.0.part, part);
        work()
    }

    /// Runs `work` with every node it records attributed to the line and the layer of another node.
    pub(crate) fn attributing<R>(&self, location: Location, layer: Option<usize>, work: impl FnOnce() -> R) -> R {
        let _before = Restored::replacing(&self.0.attributed_to, Some(location));
        self.in_part(Part { layer, ..self.0.part.get() }, work)
    }

    fn record(&self, source: Source, inputs: Vec<Value>, outputs: Vec<TensorType>, location: Location) -> usize {
        let node = Node { source, inputs, outputs, location, part: self.0.part.get() };
        let position = self.0.graph.borrow_mut().push(node);
        self.0.positions.borrow_mut().push(Rc::new(Cell::new(position)));
        position
    }

    /// What tells it apart from other traces.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// From now on every node stays where it is.
    pub(crate) fn pin(&self) {
        self.0.pinned.set(true);
    }

    /// Forgets the nodes that no handle leads back to, once they are as many as those that were kept before. Inputs and
    /// states stay, and so does everything while a part is being recorded or someone knows nodes by where they stand.
    pub(crate) fn forget_unreachable(&self) {
        let recording = &self.0;
        let is_busy = recording.attributed_to.get().is_some() || recording.part.get() != Part::default();
        if self.graph().nodes().len() < 2 * recording.remembered.get() + NODES_KEPT || is_busy || recording.pinned.get()
        {
            return;
        }
        let (mut graph, mut positions) = (recording.graph.borrow_mut(), recording.positions.borrow_mut());
        let has_handle = |(node, position): (&Node, &Rc<Cell<usize>>)| {
            matches!(node.source, Source::Input(_) | Source::State(..)) || Rc::strong_count(position) > 1
        };
        let mut kept: Vec<bool> = graph.nodes().iter().zip(positions.iter()).map(has_handle).collect();
        graph.mark_sources(&mut kept);
        graph.retain(&kept);
        let mut marks = kept.iter();
        positions.retain(|_| *marks.next().expect("a mark for every node"));
        positions.iter().enumerate().for_each(|(index, position)| position.set(index));
        recording.remembered.set(positions.len());
    }

    #[track_caller]
    pub(crate) fn location(&self) -> Location {
        let caller = Location::caller();
        self.0.attributed_to.get().unwrap_or(caller)
    }

    #[track_caller]
    fn leaf(&self, name: &str, source: impl FnOnce(Arc<str>) -> Source, ty: TensorType) -> Tensor {
        let at = self.location();
        if self.0.names.borrow().contains(name) {
            return self.fail(Error::NameTaken { name: name.to_string(), at });
        }
        if !ty.is_addressable() {
            return self.fail(too_large(&format!("tensor {name:?}"), &ty, at));
        }
        let name: Arc<str> = name.into();
        self.0.names.borrow_mut().insert(name.clone());
        self.tensor(Value { node: self.record(source(name), vec![], vec![ty], at), output: 0 })
    }
}

/// What is said of a tensor whose sizes cannot even be multiplied.
fn too_large(op: &str, ty: &TensorType, at: Location) -> Error {
    let problem = "it is more than a process can address; use smaller sizes".to_string();
    Error::Shape { op: op.to_string(), inputs: vec![ty.clone()], problem, at }
}

impl Tensor {
    /// The trace it belongs to.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Element type and shape. A poisoned tensor says f32 and no axes.
    pub fn ty(&self) -> TensorType {
        match self.value() {
            Some(value) => self.trace.graph().ty(value).clone(),
            None => TensorType::new(DType::F32, []),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The sizes of the axes. A poisoned tensor has none.
    pub fn shape(&self) -> Shape {
        self.ty().shape
    }

    /// The size of an axis, counted from the last if negative. An axis that is not there is an error of the
    /// trace, and 1.
    #[track_caller]
    pub fn size(&self, axis: isize) -> usize {
        match self.axis("size", axis) {
            Some(axis) => self.shape()[axis],
            None => 1,
        }
    }

    /// The value in the graph, or the error that poisoned it.
    pub fn handle(&self) -> Result<Value> {
        self.trace.check()?;
        Ok(self.value().expect("a trace with a poisoned tensor has an error"))
    }

    fn value(&self) -> Option<Value> {
        self.source.as_ref().map(|(position, output)| Value { node: position.get(), output: *output })
    }

    pub(crate) fn is_of(&self, trace: &Trace) -> bool {
        Rc::ptr_eq(&self.trace.0, &trace.0)
    }

    /// The error of a tensor that is used in another trace: its own trace's, if that failed before.
    pub(crate) fn foreign(&self, op: &str, at: Location) -> Error {
        self.trace.check().err().unwrap_or_else(|| Error::TwoTraces { op: op.to_string(), at })
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.source.is_none()
    }

    /// The axis as an index, counted from the last if negative; `None`, and an error of the trace, if it is not
    /// there.
    #[track_caller]
    pub(crate) fn axis(&self, op: &str, axis: isize) -> Option<usize> {
        if self.is_poisoned() {
            return None;
        }
        let rank = self.shape().rank() as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            return Some(index as usize);
        }
        self.parameter_error(op, format!("there is no axis {axis}; axes are {}..{rank}", -rank));
        None
    }

    /// What a function of at least one tensor gives for none: poisoned, in a trace of its own that holds the error.
    #[track_caller]
    pub(crate) fn of_nothing(op: &str) -> Tensor {
        let problem = "takes at least one tensor".to_string();
        Trace::new().fail(Error::Parameter { op: op.to_string(), inputs: vec![], problem, at: Location::caller() })
    }

    /// Records that a parameter of something made of operations is out of its range, at the caller's line, and gives a
    /// poisoned tensor: how a layer refuses what it is given.
    #[track_caller]
    pub fn parameter_error(&self, op: &str, problem: String) -> Tensor {
        let at = self.trace.location();
        self.trace.fail(Error::Parameter { op: op.to_string(), inputs: vec![self.ty()], problem, at })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Some(value) => write!(f, "{value}: {}", self.ty()),
            None => write!(f, "poisoned"),
        }
    }
}
