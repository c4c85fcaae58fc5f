//! Programs: a trace compiled, to be replayed.

use crate::backend::{Backend, Executable, Timing};
use crate::dtype::Native;
use crate::error::Location;
use crate::graph::{Role, Source, State};
use crate::handles::{Traced, unique, wrong_handle};
use crate::plan::{Buffer, BufferKind, Mark, MarkRequest, Moment, Operand, Options, Plan, Planner, Report, Request};
use crate::{Array, Error, Handles, Result, RoutineKey, Tensor, TensorKey, TensorType, Trace};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// One thing a program can do: values to give, and states to assign. A training step is a routine; so is an
/// evaluation over the same weights.
#[derive(Clone)]
pub struct Routine {
    /// Tells it apart from every other that was stated otherwise.
    id: u64,
    name: String,
    times_per_step: usize,
    outputs: Vec<(String, Tensor)>,
    assigns: Vec<(Tensor, Tensor)>,
    marks: Vec<Marked>,
    apart: bool,
    location: Location,
}

/// What is due in a routine for a group: its states, and values that are given away.
#[derive(Clone)]
struct Marked {
    moment: Moment,
    group: usize,
    states: Vec<Tensor>,
    given: Vec<Tensor>,
}

impl Routine {
    /// A routine that does nothing yet.
    #[track_caller]
    pub fn new(name: &str) -> Routine {
        Routine {
            id: unique(),
            name: name.to_string(),
            times_per_step: 0,
            outputs: vec![],
            assigns: vec![],
            marks: vec![],
            apart: false,
            location: Location::caller(),
        }
    }

    /// How often it is replayed in a training step, by which plans are weighed: never, unless this is said.
    pub fn times_per_step(self, times: usize) -> Routine {
        Routine { id: unique(), times_per_step: times, ..self }
    }

    /// A value that can be read after the routine ran.
    pub fn output(mut self, name: &str, value: &Tensor) -> Routine {
        self.outputs.push((name.to_string(), value.clone()));
        Routine { id: unique(), ..self }
    }

    /// A state's value after the routine ran. All assignments take effect together, at its end.
    pub fn assign(mut self, state: &Tensor, value: &Tensor) -> Routine {
        self.assigns.push((state.clone(), value.clone()));
        Routine { id: unique(), ..self }
    }

    /// States of a group that others are given as soon as the routine has their last values: it does not touch them any
    /// more. [`Program::run_marked`] says when that is.
    pub fn starts(self, group: usize, states: &[Tensor]) -> Routine {
        self.marked(Moment::Start, group, states, &[])
    }

    /// As [`Routine::starts`], and gives values away as soon as they are there: they can be read then ([`Program::given`]), and take no
    /// memory of the routine's afterwards. Groups are given in the order in which they are named here.
    pub fn gives(self, group: usize, states: &[Tensor], values: &[Tensor]) -> Routine {
        self.marked(Moment::Start, group, states, values)
    }

    /// States of a group that others may still be writing when the routine begins: it does not touch them before
    /// [`Program::run_marked`] has awaited them.
    pub fn awaits(self, group: usize, states: &[Tensor]) -> Routine {
        self.marked(Moment::Await, group, states, &[])
    }

    fn marked(mut self, moment: Moment, group: usize, states: &[Tensor], given: &[Tensor]) -> Routine {
        self.marks.push(Marked { moment, group, states: states.to_vec(), given: given.to_vec() });
        Routine { id: unique(), ..self }
    }

    /// Keeps what it makes apart from what other routines make, and its steps in the order of the trace: others may be
    /// replayed between them ([`Program::run_steps`]).
    pub fn apart(self) -> Routine {
        Routine { id: unique(), apart: true, ..self }
    }

    /// Checks the routine against the trace and writes it down in the graph's terms.
    fn request(&self, trace: &Trace) -> Result<Request> {
        let wrong = |problem: String| Error::Routine { problem, at: self.location };
        let named = |tensor: &Tensor| {
            if !tensor.is_of(trace) {
                return Err(tensor.foreign(&format!("routine {:?}", self.name), self.location));
            }
            tensor.handle()
        };
        let mut names = HashSet::new();
        let mut outputs = vec![];
        for (name, tensor) in &self.outputs {
            if !names.insert(name) {
                return Err(wrong(format!("routine {:?} gives {name:?} twice; name each output once", self.name)));
            }
            outputs.push((name.clone(), named(tensor)?));
        }
        let mut assigned = HashSet::new();
        let mut assigns = vec![];
        for (state, tensor) in &self.assigns {
            let target = named(state)?;
            let Source::State(State { name, .. }) = trace.graph().nodes()[target.node].source.clone() else {
                let what = trace.graph().nodes()[target.node].label();
                return Err(wrong(format!("only a state can be assigned, not {what}; make it with `state`")));
            };
            if !assigned.insert(target) {
                return Err(wrong(format!("state {name:?} is assigned twice; join the two values into one")));
            }
            if state.ty() != tensor.ty() {
                let (have, given) = (state.ty(), tensor.ty());
                return Err(wrong(format!(
                    "state {name:?} is {have} and cannot be assigned {given}; cast or reshape it"
                )));
            }
            assigns.push((target, named(tensor)?));
        }
        let mut marks = vec![];
        for Marked { moment, group, states, given } in &self.marks {
            let mut of_group = vec![];
            for state in states {
                let node = named(state)?.node;
                let Source::State(State { name, .. }) = trace.graph().nodes()[node].source.clone() else {
                    let what = trace.graph().nodes()[node].label();
                    return Err(wrong(format!("only states are exchanged, not {what}; make it with `state`")));
                };
                of_group.push(name);
            }
            let given = given.iter().map(named).collect::<Result<_>>()?;
            marks.push(MarkRequest { moment: *moment, group: *group, states: of_group, given });
        }
        if outputs.is_empty() && assigns.is_empty() {
            return Err(wrong(format!("routine {:?} does nothing; give it an output or an assignment", self.name)));
        }
        let (name, times_per_step, apart) = (self.name.clone(), self.times_per_step, self.apart);
        Ok(Request { name, times_per_step, outputs, assigns, marks, apart })
    }
}

/// A compiled trace: its plan, its arena, and what a backend made of it.
pub struct Program {
    plan: Plan,
    executable: Box<dyn Executable>,
    /// The inputs and states, by name: looked up without allocating.
    leaves: HashMap<Arc<str>, Operand>,
    last_run: Option<usize>,
}

impl Trace {
    /// Compiles routines over this trace into one program, with one arena.
    pub fn compile(&self, backend: &dyn Backend, routines: &[Routine]) -> Result<Program> {
        self.compile_with(backend, routines, Options::default())
    }

    /// As [`Trace::compile`], with parts of the planner turned off.
    pub fn compile_with(&self, backend: &dyn Backend, routines: &[Routine], options: Options) -> Result<Program> {
        Program::link(self.plan(backend, routines, options)?, backend)
    }

    /// The plan alone, with no memory taken.
    pub fn plan(&self, backend: &dyn Backend, routines: &[Routine], options: Options) -> Result<Plan> {
        self.plan_in_stages(backend, routines, options, &mut |_, _| {})
    }

    /// As [`Trace::plan`]; what each stage made of the routines is shown to `report`, to be printed.
    pub fn plan_in_stages(
        &self,
        backend: &dyn Backend,
        routines: &[Routine],
        options: Options,
        report: &mut Report<'_>,
    ) -> Result<Plan> {
        Ok(self.planner_in_stages(backend, routines, options, report)?.plan_in_stages(usize::MAX, report))
    }

    /// What plans the routines within any limit of memory.
    pub fn planner<'a>(&self, backend: &'a dyn Backend, routines: &[Routine], options: Options) -> Result<Planner<'a>> {
        self.planner_in_stages(backend, routines, options, &mut |_, _| {})
    }

    fn planner_in_stages<'a>(
        &self,
        backend: &'a dyn Backend,
        routines: &[Routine],
        options: Options,
        report: &mut Report<'_>,
    ) -> Result<Planner<'a>> {
        self.check()?;
        self.pin();
        let mut names = HashSet::new();
        let mut requests = Vec::with_capacity(routines.len());
        for routine in routines {
            if !names.insert(&routine.name) {
                let problem = format!("there are two routines named {:?}; give each its own name", routine.name);
                return Err(Error::Routine { problem, at: routine.location });
            }
            requests.push(routine.request(self)?);
        }
        let values = |request: &Request| request.outputs.iter().map(|&(_, value)| value).collect();
        let known = routines.iter().zip(&requests).map(|(routine, request)| (routine.id, values(request)));
        let handles = Handles { trace: self.id(), routines: known.collect() };
        Ok(Planner::new(&self.graph(), &requests, backend, options, report)?.with_handles(handles))
    }
}

impl Program {
    /// Makes everything that replaying a plan needs.
    pub fn link(plan: Plan, backend: &dyn Backend) -> Result<Program> {
        let executable = backend.link(&plan)?;
        let leaves = leaves(&plan);
        Ok(Program { plan, executable, leaves, last_run: None })
    }

    /// From now on another plan of the same states: what they hold stays, where the device allows in the same bytes.
    /// Everything else begins anew. A plan that is refused changes nothing, but that there are no outputs to read until a
    /// routine runs. After a kernel panicked, every plan is refused.
    #[track_caller]
    pub fn relink(&mut self, plan: Plan) -> Result<()> {
        let placed = |plan: &Plan| -> Vec<(Arc<str>, TensorType, usize)> {
            let states = plan.buffers.iter().filter_map(|buffer| match &buffer.kind {
                BufferKind::State(state) => Some((state.name.clone(), buffer.ty.clone(), buffer.offset)),
                _ => None,
            });
            states.collect()
        };
        if placed(&self.plan) != placed(&plan) {
            let problem = "the plans have other states; relink a plan of the same states".to_string();
            return Err(Error::Routine { problem, at: Location::caller() });
        }
        self.last_run = None;
        self.executable.relink(&plan)?;
        (self.leaves, self.plan) = (leaves(&plan), plan);
        Ok(())
    }

    /// Replays a routine, given by name or by handle. If it fails because of the data, the states are as before, and there are no
    /// outputs to read until a routine succeeds.
    pub fn run<'a>(&mut self, routine: impl Into<RoutineKey<'a>>) -> Result<()> {
        let index = self.routine(routine.into())?;
        // Until it is through, there is nothing to read: another routine's results may be half overwritten.
        self.last_run = None;
        self.executable.run(index)?;
        self.last_run = Some(index);
        Ok(())
    }

    /// As [`Program::run`]; between the steps, at every mark of the routine, `at` is told what is due for which group.
    pub fn run_marked<E: From<Error>>(
        &mut self,
        routine: &str,
        mut at: impl FnMut(&mut Program, Moment, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let index = self.routine(RoutineKey::Name(routine))?;
        let mut done = 0;
        for mark in 0..self.plan.routines[index].marks.len() {
            let Mark { moment, group, at: due, .. } = self.plan.routines[index].marks[mark];
            self.run_steps(routine, done..due)?;
            done = due;
            at(self, moment, group)?;
        }
        Ok(self.run_steps(routine, done..self.plan.routines[index].steps.len())?)
    }

    /// What a routine gives away for a group, by its place among that ([`Routine::gives`]), where [`Program::run_marked`] says that it has
    /// come to that: before, and when further steps are done, something else may lie there. None where the host cannot see it.
    pub fn given(&self, routine: &str, group: usize, place: usize) -> Result<Option<&[u8]>> {
        let planned = &self.plan.routines[self.routine(RoutineKey::Name(routine))?];
        let marks = planned.marks.iter().filter(|mark| mark.moment == Moment::Start && mark.group == group);
        let Some(operand) = marks.flat_map(|mark| &mark.given).nth(place) else {
            let problem = format!("routine {routine:?} gives no value {place} for group {group}");
            return Err(Error::Routine { problem, at: Location::caller() });
        };
        Ok(self.executable.look(operand.buffer).map(|bytes| &bytes[bytes_of(operand)]))
    }

    /// Replays some steps of a routine, which must come one after another: only routines whose plans allow it may be
    /// replayed between them ([`crate::plan::verify::verify_between`]). What it gives can be read when its step is done.
    pub fn run_steps<'a>(&mut self, routine: impl Into<RoutineKey<'a>>, steps: Range<usize>) -> Result<()> {
        let index = self.routine(routine.into())?;
        self.last_run = None;
        self.executable.run_steps(index, steps)?;
        self.last_run = Some(index);
        Ok(())
    }

    /// Where a state or an input lies, if the host can see it: for whoever exchanges it with others beside replays. It moves
    /// when another plan is linked.
    pub fn place(&mut self, name: &str) -> Result<Option<*mut [u8]>> {
        let buffer = self.leaf(TensorKey::Name(name))?.buffer;
        Ok(self.executable.look_mut(buffer).map(std::ptr::from_mut))
    }

    /// Where a state, an input or an output of the routine that ran last lies in a device's memory, if the host cannot see it. It
    /// moves when another plan is linked.
    pub fn address<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<Option<u64>> {
        let operand = self.readable(key.into())?;
        let start = (operand.layout.offset * operand.dtype.size()) as u64;
        let buffer = self.executable.address(operand.buffer).filter(|_| operand.layout.is_dense());
        Ok(buffer.map(|buffer| buffer + start))
    }

    /// Room for what the steps of a routine take.
    pub fn timing<'a>(&self, routine: impl Into<RoutineKey<'a>>) -> Result<Timing> {
        let index = self.routine(routine.into())?;
        Ok(Timing::new(self.plan.routines[index].steps.len()))
    }

    /// As [`Program::run`]; adds what each step of the routine's plan took to what stands at its place.
    pub fn run_timed<'a>(&mut self, routine: impl Into<RoutineKey<'a>>, timing: &mut Timing) -> Result<()> {
        let index = self.routine(routine.into())?;
        let (steps, given) = (self.plan.routines[index].steps.len(), timing.steps.len());
        if given != steps {
            let (expected, given) = (format!("{steps} times"), format!("{given} times"));
            return Err(Error::Data { name: "the times of a routine's steps".to_string(), expected, given });
        }
        self.last_run = None;
        self.executable.run_timed(index, timing)?;
        self.last_run = Some(index);
        Ok(())
    }

    fn routine(&self, key: RoutineKey<'_>) -> Result<usize> {
        let name = match key {
            RoutineKey::Name(name) => name,
            RoutineKey::Handle(Routine { id, name, .. }) => {
                let problem = "is not what the program was compiled from; compile it, or run it by name";
                let index = self.plan.handles.routines.iter().position(|(known, _)| known == id);
                let index = index.filter(|&index| index < self.plan.routines.len());
                return index.ok_or_else(|| wrong_handle(format_args!("routine {name:?}"), problem));
            }
        };
        let Some(index) = self.plan.routines.iter().position(|known| known.name == name) else {
            let known = listed(self.plan.routines.iter().map(|known| &known.name[..]));
            return Err(Error::UnknownName { kind: "routine", name: name.to_string(), known });
        };
        Ok(index)
    }

    /// Writes an input or a state, given by name or by handle.
    pub fn write<'a, T: Native>(&mut self, key: impl Into<TensorKey<'a>>, numbers: &[T]) -> Result<()> {
        let key = key.into();
        let operand = self.leaf(key)?;
        check_fit::<T>(key, operand, numbers.len())?;
        let buffer = operand.buffer;
        self.executable.write(buffer, bytemuck::cast_slice(numbers))
    }

    /// Writes an input or a state from an array of its type and size.
    pub fn write_array<'a>(&mut self, key: impl Into<TensorKey<'a>>, array: &Array) -> Result<()> {
        let (key, ty) = (key.into(), array.ty());
        let operand = self.leaf(key)?;
        if operand.dtype != ty.dtype || operand.layout.shape != ty.shape {
            let (name, expected) = (key.to_string(), operand.ty().to_string());
            return Err(Error::Data { name, expected, given: ty.to_string() });
        }
        let buffer = operand.buffer;
        self.executable.write(buffer, array.bytes())
    }

    /// Writes an input or a state of any element type, from its bytes.
    pub fn write_bytes<'a>(&mut self, key: impl Into<TensorKey<'a>>, bytes: &[u8]) -> Result<()> {
        let key = key.into();
        let operand = self.leaf(key)?;
        // A type would have to be allocated.
        let (buffer, size) = (operand.buffer, operand.layout.shape.elements() * operand.dtype.size());
        if bytes.len() != size {
            let ty = operand.ty();
            let (expected, given) = (format!("{ty} ({} bytes)", ty.bytes()), format!("{} bytes", bytes.len()));
            return Err(Error::Data { name: key.to_string(), expected, given });
        }
        self.executable.write(buffer, bytes)
    }

    /// Gives `fill` the bytes of an input or a state to be written: where they lie, if the host can see them there.
    pub fn fill<'a, E: From<Error>>(
        &mut self,
        key: impl Into<TensorKey<'a>>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let buffer = self.leaf(key.into())?.buffer;
        if let Some(bytes) = self.executable.look_mut(buffer) {
            return fill(bytes);
        }
        let mut bytes = vec![0; self.plan.buffers[buffer].ty.bytes()];
        fill(&mut bytes)?;
        Ok(self.executable.write(buffer, &bytes)?)
    }

    /// How many numbers an input or a state has.
    pub fn size<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<usize> {
        Ok(self.leaf(key.into())?.layout.shape.elements())
    }

    /// The element type and shape of an input or a state.
    pub fn ty<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<TensorType> {
        Ok(self.leaf(key.into())?.ty())
    }

    /// The states, what they are for and what they are, in an order that depends on the trace alone.
    pub fn states(&self) -> impl Iterator<Item = (&str, Role, &TensorType)> {
        self.plan.buffers.iter().filter_map(|buffer| match &buffer.kind {
            BufferKind::State(state) => Some((&*state.name, state.role, &buffer.ty)),
            _ => None,
        })
    }

    /// The bytes of an input or a state: where they lie, if the host can see them there, or else a copy.
    pub fn bytes<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<Cow<'_, [u8]>> {
        let operand = self.leaf(key.into())?;
        Ok(match self.executable.look(operand.buffer) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => {
                let mut bytes = vec![0; operand.ty().bytes()];
                self.executable.read(operand, &mut bytes)?;
                Cow::Owned(bytes)
            }
        })
    }

    /// The bytes of an output of the routine that ran last, or of a state or an input, where they lie: if the host can see them
    /// there, and they lie one after another.
    pub fn look<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<Option<&[u8]>> {
        let operand = self.readable(key.into())?;
        let bytes = self.executable.look(operand.buffer).filter(|_| operand.layout.is_dense());
        Ok(bytes.map(|bytes| &bytes[bytes_of(operand)]))
    }

    /// Reads an output of the routine that ran last, or a state or an input, into `numbers`.
    pub fn read_into<'a, T: Native>(&self, key: impl Into<TensorKey<'a>>, numbers: &mut [T]) -> Result<()> {
        let key = key.into();
        let operand = self.readable(key)?;
        check_fit::<T>(key, operand, numbers.len())?;
        self.executable.read(operand, bytemuck::cast_slice_mut(numbers))
    }

    /// Reads an output of the routine that ran last, or a state or an input. The handle of a state or an input is that
    /// itself, also where a routine gives it as an output.
    pub fn read<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<Array> {
        let operand = self.readable(key.into())?;
        let ty = operand.ty();
        let mut bytes = vec![0; ty.bytes()];
        self.executable.read(operand, &mut bytes)?;
        Array::from_bytes(ty, bytes)
    }

    /// Reads a single f32.
    pub fn scalar<'a>(&self, key: impl Into<TensorKey<'a>>) -> Result<f32> {
        let mut number = [0.0f32];
        self.read_into(key, &mut number)?;
        Ok(number[0])
    }

    /// Where the arena lies, if the host can see it: for measuring what of it is resident.
    pub fn addresses(&self) -> Option<std::ops::Range<usize>> {
        self.executable.addresses()
    }

    /// What the program will do, to the byte.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn leaf(&self, key: TensorKey<'_>) -> Result<&Operand> {
        let problem = "is neither an input nor a state of the program; make it with `input` or `state` and compile";
        let unknown = |name: &str| {
            let known = listed(self.leaves.keys().map(|known| &**known));
            Error::UnknownName { kind: "input or state", name: name.to_string(), known }
        };
        match key {
            TensorKey::Name(name) => self.leaves.get(name).ok_or_else(|| unknown(name)),
            TensorKey::Handle(tensor) => match self.plan.handles.traced(tensor)? {
                Traced::Leaf(name) => self.leaves.get(&name).ok_or_else(|| wrong_handle(key, problem)),
                Traced::Computed(_) => Err(wrong_handle(key, problem)),
            },
        }
    }

    fn readable(&self, key: TensorKey<'_>) -> Result<&Operand> {
        let outputs = self.last_run.map_or(&[][..], |index| &self.plan.routines[index].outputs);
        let name = match key {
            TensorKey::Name(name) => name,
            TensorKey::Handle(tensor) => match self.plan.handles.traced(tensor)? {
                Traced::Leaf(_) => return self.leaf(key),
                Traced::Computed(value) => {
                    let known = self.last_run.and_then(|index| self.plan.handles.routines.get(index));
                    let place = known.and_then(|(_, values)| values.iter().position(|&known| known == value));
                    let problem = "is no output of the routine that ran last; state it with `Routine::output`";
                    let output = place.and_then(|place| outputs.get(place));
                    return output.map(|(_, operand)| operand).ok_or_else(|| wrong_handle(key, problem));
                }
            },
        };
        let output = outputs.iter().find(|(known, _)| known == name).map(|(_, operand)| operand);
        output.or_else(|| self.leaves.get(name)).ok_or_else(|| {
            let names = outputs.iter().map(|(known, _)| &known[..]).chain(self.leaves.keys().map(|known| &**known));
            let kind = "output of the routine that ran last, state or input";
            Error::UnknownName { kind, name: name.to_string(), known: listed(names) }
        })
    }
}

fn leaves(plan: &Plan) -> HashMap<Arc<str>, Operand> {
    let named = |(id, buffer): (usize, &Buffer)| match &buffer.kind {
        BufferKind::Input(name) | BufferKind::State(State { name, .. }) => {
            Some((name.clone(), Operand::dense(id, &buffer.ty)))
        }
        _ => None,
    };
    plan.buffers.iter().enumerate().filter_map(named).collect()
}

/// Where the bytes of an operand that lies densely are in its buffer.
fn bytes_of(operand: &Operand) -> Range<usize> {
    let (layout, size) = (&operand.layout, operand.dtype.size());
    let start = layout.offset * size;
    start..start + layout.shape.elements() * size
}

fn check_fit<T: Native>(key: TensorKey<'_>, operand: &Operand, count: usize) -> Result<()> {
    if T::DTYPE == operand.dtype && count == operand.layout.shape.elements() {
        return Ok(());
    }
    let ty = operand.ty();
    Err(Error::Data {
        name: key.to_string(),
        expected: format!("{ty} ({} numbers)", ty.shape.elements()),
        given: format!("{count} numbers of {}", T::DTYPE),
    })
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    names.sort();
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}
