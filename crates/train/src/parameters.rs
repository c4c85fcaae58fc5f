//! The parameters of a model: found by name while it is traced, with what layers need to know besides.

use crate::config::Precision;
use crate::files::tensors::{self, TensorFile};
pub use crate::initializer::Initializer;
use crate::{Error, Result};
use gradus_engine::graph::Role;
use gradus_engine::{Array, DType, Program, Shape, Tensor, TensorType, Trace};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::rc::Rc;

/// A weight of a model before it has numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, as in the model's published files.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// What it holds before training.
    pub initializer: Initializer,
}

impl Parameter {
    /// A weight of this name and shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, initializer: Initializer) -> Parameter {
        Parameter { name: name.into(), shape: shape.into(), initializer }
    }

    /// The numbers to start from. They depend on the seed, the name and the place in the tensor alone.
    pub fn numbers(&self, seed: u32) -> Array {
        self.initializer.numbers(seed, &self.name, &self.shape)
    }
}

/// The parameters of a model that is being traced, and how it is traced: its precision, and whether it is trained.
///
/// A clone is another handle on the same list. A model may be traced several times over one list, to be trained and to
/// be evaluated: each name is one tensor.
///
/// ```
/// use gradus_engine::{DType, Trace};
/// use gradus_train::parameters::{Initializer, Parameters};
///
/// let trace = Trace::new();
/// let parameters = Parameters::new(&trace);
/// let x = trace.input("x", DType::F32, [4, 3]);
/// let weight = parameters.within("fc").get("weight", [3, 2], Initializer::XavierUniform { gain: 1.0 });
/// let y = x.matmul(&weight); // [4, 2]
/// assert_eq!(parameters.list()[0].name, "fc.weight");
/// # trace.check()?;
/// # Ok::<(), gradus_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Parameters {
    trace: Trace,
    shared: Rc<Shared>,
    /// What names start with.
    prefix: String,
    precision: Precision,
    /// What matrices are held in.
    held: Precision,
    holds_logits: bool,
    training: Option<Training>,
}

#[derive(Default)]
struct Shared {
    parameters: RefCell<Vec<(Parameter, Tensor)>>,
    /// Where in the list a name is.
    places: RefCell<HashMap<String, usize>>,
    /// By name, with the number that each starts from.
    statistics: RefCell<HashMap<String, (Tensor, f32)>>,
}

/// What is known only while a model is trained.
#[derive(Clone)]
struct Training {
    /// Two u32 words that differ from step to step.
    key: Tensor,
    /// How many streams of random numbers were taken.
    streams: Rc<Cell<u32>>,
    /// What the step assigns to states besides weights.
    updates: Rc<RefCell<Vec<(Tensor, Tensor)>>>,
}

/// What files of tensors keep their own notes under.
const UNSTORABLE: &str = "__metadata__";

impl Parameters {
    /// None yet; in f32, and not training.
    pub fn new(trace: &Trace) -> Parameters {
        let (trace, shared) = (trace.clone(), Rc::default());
        Parameters {
            trace,
            shared,
            prefix: String::new(),
            precision: Precision::F32,
            held: Precision::F32,
            holds_logits: true,
            training: None,
        }
    }

    /// The same list, with names that start with `name.`.
    pub fn within(&self, name: impl fmt::Display) -> Parameters {
        Parameters { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The same list, traced for a machine that had better hold logits that fit into memory, or not.
    pub(crate) fn holding_logits(&self, holds_logits: bool) -> Parameters {
        Parameters { holds_logits, ..self.clone() }
    }

    /// Whether logits that fit into memory are held for the gradient of their loss.
    pub(crate) fn holds_logits(&self) -> bool {
        self.holds_logits
    }

    /// The same list, with matrix products in this precision. Weights, norms and losses stay in f32.
    pub fn with_precision(&self, precision: Precision) -> Parameters {
        Parameters { precision, ..self.clone() }
    }

    /// The same list, with matrix products in this precision, and matrices that are first used from now on held in it, as for
    /// a model that is not trained. Vectors stay in f32.
    pub fn held_in(&self, precision: Precision) -> Parameters {
        Parameters { held: precision, ..self.with_precision(precision) }
    }

    /// The same list, for a model that is trained: dropout drops, and batch norms take the statistics of the batch.
    /// `key` holds two u32 words that differ from step to step, such as a seed and the step's number.
    pub fn training(&self, key: &Tensor) -> Parameters {
        let training = Training { key: key.clone(), streams: Rc::default(), updates: Rc::default() };
        Parameters { training: Some(training), ..self.clone() }
    }

    /// The trace that the model is in.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// What matrix products are computed in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Whether the model is traced to be trained.
    pub fn is_training(&self) -> bool {
        self.training.is_some()
    }

    /// The weight of this name, in f32 unless it is a matrix that is [held](Parameters::held_in) otherwise: made at first use, zero until it is written, and the same tensor ever after.
    #[track_caller]
    pub fn get(&self, name: &str, shape: impl Into<Shape>, initializer: Initializer) -> Tensor {
        let parameter = Parameter::new(format!("{}{name}", self.prefix), shape, initializer);
        let problem = match &parameter.name[..] {
            UNSTORABLE => Some(format!("files cannot hold a tensor named {UNSTORABLE:?}")),
            _ => initializer.problem(&parameter.shape),
        };
        if let Some(problem) = problem {
            let refused = self.trace.full(0.0, DType::F32, &parameter.shape);
            return refused.parameter_error(&format!("weight {:?}", parameter.name), problem);
        }
        let mut known = self.shared.parameters.borrow_mut();
        let mut places = self.shared.places.borrow_mut();
        if let Some(&place) = places.get(&parameter.name) {
            let (before, tensor) = &known[place];
            return if *before == parameter { tensor.clone() } else { disagreement(before, &parameter, tensor) };
        }
        let dtype = if parameter.shape.rank() < 2 { DType::F32 } else { self.held.dtype() };
        let tensor = self.trace.zero_state(&parameter.name, dtype, &parameter.shape);
        places.insert(parameter.name.clone(), known.len());
        known.push((parameter, tensor.clone()));
        tensor
    }

    /// A state of this name in f32 that is no weight, as a batch norm's running mean: the same number everywhere at first,
    /// and the same tensor ever after. What it becomes is said by [`Parameters::update`].
    #[track_caller]
    pub fn statistics(&self, name: &str, shape: impl Into<Shape>, initial: f32) -> Tensor {
        let (name, shape) = (format!("{}{name}", self.prefix), shape.into());
        let mut known = self.shared.statistics.borrow_mut();
        if let Some((tensor, before)) = known.get(&name) {
            if tensor.shape() == shape && before.to_bits() == initial.to_bits() {
                return tensor.clone();
            }
            let problem = format!(
                "it started from {before} before and is {shape}, from {initial}, here; give each state its own name"
            );
            return tensor.parameter_error(&format!("statistics {name:?}"), problem);
        }
        // Their numbers are held by the trace, unlike those of weights.
        const MOST: usize = 1 << 24;
        if shape.elements() > MOST {
            let problem = format!("there are at most {MOST} numbers in a state that is no weight");
            let refused = self.trace.zero_state_with_role(&name, Role::Statistics, DType::F32, shape);
            return refused.parameter_error(&format!("statistics {name:?}"), problem);
        }
        let numbers = Array::new(&shape, &vec![initial; shape.elements()]).expect("as many numbers as the shape has");
        let tensor = self.trace.state_with_role(&name, Role::Statistics, numbers);
        known.insert(name, (tensor.clone(), initial));
        tensor
    }

    /// Has a training step assign a value to a state that is no weight, once; nothing if the model is not trained.
    #[track_caller]
    pub fn update(&self, state: &Tensor, value: &Tensor) {
        let Some(training) = &self.training else { return };
        let mut updates = training.updates.borrow_mut();
        if updates.iter().any(|(known, _)| known.handle() == state.handle()) {
            let problem = "the step assigns it already; use a layer that keeps count once, or make one for each use";
            state.parameter_error("an update of statistics", problem.to_string());
        }
        updates.push((state.clone(), value.clone()));
    }

    /// States and what a training step assigns to them, in the order of [`Parameters::update`].
    pub fn updates(&self) -> Vec<(Tensor, Tensor)> {
        self.training.as_ref().map_or(vec![], |training| training.updates.borrow().clone())
    }

    /// Elements set to zero at random at a rate, the others divided by one minus the rate: each call by a mask of its
    /// own. As it is if the model is not trained.
    #[track_caller]
    pub fn dropout(&self, x: &Tensor, rate: f32) -> Tensor {
        match self.random_stream() {
            Some((key, stream)) => x.dropout(rate, &key, stream),
            // Refused when it is evaluated, too.
            None if !(0.0..1.0).contains(&rate) => {
                x.parameter_error("dropout", format!("the rate must be at least 0 and less than 1, not {rate}"))
            }
            None => x.clone(),
        }
    }

    /// The key of the step's random numbers and a stream that no other call has, as [`Tensor::random_normal`] and its like
    /// take them; `None` if the model is not trained.
    pub fn random_stream(&self) -> Option<(Tensor, u32)> {
        let training = self.training.as_ref()?;
        Some((training.key.clone(), training.streams.replace(training.streams.get() + 1)))
    }

    /// How many streams of random numbers were taken.
    pub(crate) fn streams_taken(&self) -> u32 {
        self.training.as_ref().map_or(0, |training| training.streams.get())
    }

    /// The same, as if so many streams had been taken: by the part of the model before this one.
    pub(crate) fn after_streams(self, taken: u32) -> Parameters {
        self.training.iter().for_each(|training| training.streams.set(taken));
        self
    }

    /// Uses weights for the first time, in this order.
    #[track_caller]
    pub fn declare(&self, weights: &[Parameter]) {
        for Parameter { name, shape, initializer } in weights {
            self.get(name, shape, *initializer);
        }
    }

    /// The weights, in the order of first use.
    pub fn list(&self) -> Vec<Parameter> {
        self.shared.parameters.borrow().iter().map(|(parameter, _)| parameter.clone()).collect()
    }

    /// The tensors of the weights, in the order of first use.
    pub fn tensors(&self) -> Vec<Tensor> {
        self.shared.parameters.borrow().iter().map(|(_, tensor)| tensor.clone()).collect()
    }

    /// Writes what the weights start from to a program that has them.
    pub fn initialize(&self, program: &mut Program, seed: u32) -> Result<()> {
        for (parameter, _) in &*self.shared.parameters.borrow() {
            tensors::write_numbers(program, &parameter.name, &parameter.numbers(seed).to_vec::<f32>()?)?;
        }
        Ok(())
    }
}

impl Parameters {
    /// Reads weights, and states that are none, into a program that has them, from a safetensors file that holds all of
    /// them by name, in f32, f16 or bf16, and nothing else. PyTorch's counts of batches (`num_batches_tracked`) are
    /// passed over.
    pub fn load(&self, program: &mut Program, path: &Path) -> Result<()> {
        let file = TensorFile::open(path)?;
        let wrong = |name: &str, problem: String| {
            Error::checkpoint(
                path,
                format!("tensor {name:?} is {} here and {problem} in the model", file.described(name)),
            )
        };
        let expected = self.shapes();
        for (name, shape) in &expected {
            let fits = |ty: &TensorType| ty.dtype.is_float() && ty.dtype != DType::F64 && ty.shape == *shape;
            if !file.ty(name).is_some_and(|ty| fits(&ty)) {
                return Err(wrong(name, TensorType::new(DType::F32, shape).to_string()));
            }
        }
        let is_known = |name: &String| expected.contains_key(name) || name.ends_with("num_batches_tracked");
        if let Some(name) = file.names().iter().find(|name| !is_known(name)) {
            return Err(wrong(name, "missing".to_string()));
        }
        let read = |name: &String, dtype: DType, bytes: &mut [u8]| {
            file.read_numbers(name, dtype, bytes)?;
            match tensors::first_not_finite(dtype, bytes) {
                None => Ok(()),
                Some(_) => Err(Error::checkpoint(path, format!("tensor {name:?} holds a number that is not finite"))),
            }
        };
        expected.keys().try_for_each(|name| {
            let dtype = program.ty(&name[..])?.dtype;
            program.fill(&name[..], |bytes| read(name, dtype, bytes))
        })
    }

    /// The shapes of weights, and of states that are none, by name.
    pub(crate) fn shapes(&self) -> BTreeMap<String, Shape> {
        let statistics = self.shared.statistics.borrow();
        let others = statistics.iter().map(|(name, (tensor, _))| (name.clone(), tensor.shape()));
        self.list().into_iter().map(|parameter| (parameter.name, parameter.shape)).chain(others).collect()
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parameters within {:?}: {:?}", self.prefix, self.list())
    }
}

/// The error of asking for a weight again, but for another one.
#[track_caller]
fn disagreement(before: &Parameter, after: &Parameter, tensor: &Tensor) -> Tensor {
    let say = |parameter: &Parameter| format!("{} {:?}", parameter.shape, parameter.initializer);
    let problem = format!("it was {} before and is {} here; give each weight its own name", say(before), say(after));
    tensor.parameter_error(&format!("parameter {:?}", before.name), problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradus_engine::Routine;
    use gradus_engine::backend::Cpu;

    const ZEROS: Initializer = Initializer::Zeros;

    #[test]
    fn a_name_is_one_tensor_however_it_is_reached() {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let weight = parameters.within("a").within(0).get("weight", [2, 3], Initializer::Ones);
        let bias = parameters.get("bias", [3], ZEROS);
        let again = parameters.with_precision(Precision::Bf16).within("a.0").get("weight", [2, 3], Initializer::Ones);
        assert_eq!(again.handle(), weight.handle());
        assert_ne!(bias.handle(), weight.handle());
        let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
        assert_eq!(names, ["a.0.weight", "bias"]);
        assert_eq!(parameters.tensors()[1].handle(), bias.handle());
    }

    #[test]
    fn a_name_for_two_weights_is_an_error_of_the_trace_at_the_second_line() {
        for (shape, initializer) in [([3, 2], ZEROS), ([2, 3], Initializer::Ones)] {
            let trace = Trace::new();
            let parameters = Parameters::new(&trace);
            parameters.get("w", [2, 3], ZEROS);
            let line = line!() + 1;
            parameters.get("w", shape, initializer);
            let error = trace.check().unwrap_err();
            assert!(matches!(error, gradus_engine::Error::Parameter { .. }));
            assert!(error.to_string().contains(&format!("parameters.rs:{line}: parameter \"w\"")), "{error}");
        }
    }

    #[test]
    fn what_a_weight_or_a_state_cannot_start_from_is_refused_at_the_users_line() {
        let (nan, uniform) = (f32::NAN, |low, high| Initializer::Uniform { low, high });
        let refused = [
            Initializer::Constant(f32::INFINITY),
            Initializer::Normal { deviation: nan },
            Initializer::Normal { deviation: -0.1 },
            uniform(1.0, 0.0),
            uniform(nan, 0.0),
            Initializer::TruncatedNormal { deviation: 1.0, limit: -2.0 },
            Initializer::XavierUniform { gain: -1.0 },
            Initializer::KaimingNormal { slope: nan },
            Initializer::Orthogonal { gain: nan },
        ];
        let cases = refused.map(|initializer| (3, initializer, "cannot start from"));
        for (size, initializer, part) in
            cases.into_iter().chain([(10_000, Initializer::Orthogonal { gain: 1.0 }, "takes minutes")])
        {
            let trace = Trace::new();
            let line = line!() + 1;
            Parameters::new(&trace).get("w", [size, size], initializer);
            let error = trace.check().unwrap_err().to_string();
            assert!(error.contains(&format!("parameters.rs:{line}: weight \"w\"")) && error.contains(part), "{error}");
        }
        for (shape, initial) in [([2], 1.0), ([2], -0.0), ([3], 0.0)] {
            let trace = Trace::new();
            let parameters = Parameters::new(&trace);
            parameters.statistics("mean", [2], 0.0);
            let line = line!() + 1;
            parameters.statistics("mean", shape, initial);
            let error = trace.check().unwrap_err().to_string();
            assert!(error.contains(&format!("parameters.rs:{line}: statistics \"mean\"")), "{error}");
        }
    }

    #[test]
    fn initial_numbers_and_updates_reach_a_program() {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let weight = parameters.get("w", [2], Initializer::Constant(3.0));
        let key = trace.input("key", DType::U32, [2]);
        let training = parameters.training(&key);
        assert!(training.within("norm").is_training() && !parameters.is_training());
        let mean = training.within("norm").statistics("mean", [2], 1.5);
        assert_eq!(parameters.statistics("norm.mean", [2], 1.5).handle(), mean.handle());
        training.within("norm").update(&mean, &(&mean + &weight));
        parameters.update(&mean, &weight);
        assert!(parameters.updates().is_empty());
        let step =
            training.updates().iter().fold(Routine::new("step"), |step, (state, value)| step.assign(state, value));
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[step]).unwrap();
        parameters.initialize(&mut program, 0).unwrap();
        program.run("step").unwrap();
        assert_eq!(program.read("norm.mean").unwrap().to_vec::<f32>().unwrap(), [4.5, 4.5]);
    }

    #[test]
    fn each_dropout_has_a_mask_of_its_own_while_training() {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let (x, key) = (trace.input("x", DType::F32, [64]), trace.input("key", DType::U32, [2]));
        assert_eq!(parameters.dropout(&x, 0.5).handle(), x.handle());
        for rate in [f32::NAN, 1.0, -0.1] {
            let other = Trace::new();
            Parameters::new(&other).dropout(&other.input("x", DType::F32, [64]), rate);
            assert!(other.check().unwrap_err().to_string().contains("less than 1"), "{rate}");
        }
        let training = parameters.training(&key);
        let [first, second] = [training.clone(), training.within("layer")].map(|at| at.dropout(&x, 0.5));
        let again = parameters.training(&key).dropout(&x, 0.5);
        assert_eq!(training.random_stream().map(|(_, stream)| stream), Some(2));
        assert!(parameters.random_stream().is_none());
        let routine = Routine::new("r").output("first", &first).output("second", &second).output("again", &again);
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        program.write("x", &[1f32; 64]).unwrap();
        program.write("key", &[1u32, 2]).unwrap();
        program.run("r").unwrap();
        let read = |name: &str| program.read(name).unwrap().to_vec::<f32>().unwrap();
        assert!(read("first").contains(&2.0) && read("first").contains(&0.0));
        assert_ne!(read("first"), read("second"));
        assert_eq!(read("first"), read("again"));
    }
}
