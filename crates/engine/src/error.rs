//! What a user can cause, and what to do about it.

use crate::{DType, Shape, TensorType};
use std::fmt;
use std::panic;

/// A line of the user's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location(pub &'static panic::Location<'static>);

impl Location {
    /// The caller's line.
    #[track_caller]
    pub fn caller() -> Location {
        Location(panic::Location::caller())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.file(), self.0.line())
    }
}

/// Why an operation does not take its operands, in words, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The shapes do not fit.
    Shape(String),
    /// An element type is not taken.
    DType(String),
    /// A parameter of the operation is out of its range.
    Parameter(String),
}

/// An error that a user can cause.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Shapes that do not fit an operation.
    #[error("{at}: {op} of {}: {problem}", list(inputs))]
    Shape {
        /// The operation.
        op: String,
        /// Its operands.
        inputs: Vec<TensorType>,
        /// What does not fit, and what to do.
        problem: String,
        /// The line that asked for it.
        at: Location,
    },
    /// An element type that an operation does not take.
    #[error("{at}: {op} of {}: {problem}", list(inputs))]
    DType {
        /// The operation.
        op: String,
        /// Its operands.
        inputs: Vec<TensorType>,
        /// Which type is not taken, and what to do.
        problem: String,
        /// The line that asked for it.
        at: Location,
    },
    /// A parameter of an operation out of its range.
    #[error("{at}: {op} of {}: {problem}", list(inputs))]
    Parameter {
        /// The operation.
        op: String,
        /// Its operands.
        inputs: Vec<TensorType>,
        /// Which parameter, its range, and what to do.
        problem: String,
        /// The line that asked for it.
        at: Location,
    },
    /// Tensors of two traces in one operation.
    #[error("{at}: {op} mixes tensors of two traces; make both from the same trace or tape")]
    TwoTraces {
        /// The operation.
        op: String,
        /// The line that asked for it.
        at: Location,
    },
    /// A gradient that does not exist.
    #[error("{at}: no gradient: {problem}")]
    NoGradient {
        /// Why, and what to do.
        problem: String,
        /// The line that asked for it.
        at: Location,
    },
    /// A value that is not finite where that is forbidden.
    #[error(
        "{at}: {name} is not finite (element {element}); look for a division by zero, a logarithm of zero or a learning rate that is too high"
    )]
    NonFinite {
        /// What was checked.
        name: String,
        /// The first element that is not finite.
        element: usize,
        /// The line that asked for the check.
        at: Location,
    },
    /// An index outside of what it indexes.
    #[error("{at}: {op}: index {index} is outside 0..{bound}; check the tokens or targets that were written")]
    Index {
        /// The operation.
        op: String,
        /// The index, as the operation read it.
        index: i64,
        /// How many there are to choose from.
        bound: usize,
        /// The line of the operation.
        at: Location,
    },
    /// Data that does not fit the tensor it is for.
    #[error("{name} holds {expected}, but {given} was given")]
    Data {
        /// The tensor.
        name: String,
        /// What it holds.
        expected: String,
        /// What was given.
        given: String,
    },
    /// A name that the program does not have.
    #[error("there is no {kind} named {name:?}; there is {known}")]
    UnknownName {
        /// What was looked for.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A handle that does not name what was asked for.
    #[error("{what} {problem}")]
    Handle {
        /// What the handle is of.
        what: String,
        /// Why it names nothing here, and what to do.
        problem: &'static str,
    },
    /// A name given twice.
    #[error("{at}: there is already a tensor named {name:?}; give each input and state its own name")]
    NameTaken {
        /// The name.
        name: String,
        /// The line that gave it again.
        at: Location,
    },
    /// A routine that cannot be compiled as stated.
    #[error("{at}: {problem}")]
    Routine {
        /// What is wrong, and what to do.
        problem: String,
        /// The line that stated it.
        at: Location,
    },
    /// An element type that the backend does not compute.
    #[error("{at}: the {backend} backend does not compute {op} in {dtype}; {advice}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// The operation.
        op: String,
        /// The type.
        dtype: DType,
        /// What to do.
        advice: &'static str,
        /// The line of the operation.
        at: Location,
    },
    /// A kernel from outside that panicked.
    #[error("{at}: the kernel of {op} panicked: {message}; states may be half written, so make the program anew")]
    Panicked {
        /// The operation.
        op: String,
        /// What the panic said.
        message: String,
        /// The line of the operation.
        at: Location,
    },
    /// An operation that a backend has no kernel for.
    #[error("{at}: {op} has no kernel for {backend}; run it on the CPU, or give it kernels of its own")]
    NoKernel {
        /// The backend.
        backend: &'static str,
        /// What has none.
        op: String,
        /// The user's line.
        at: Location,
    },
    /// An operation over more than a device counts in one go.
    #[error(
        "{at}: {op} is cut into {blocks} blocks, more than {backend} takes at once; compute it in parts, or on the CPU"
    )]
    TooManyBlocks {
        /// The backend.
        backend: &'static str,
        /// The operation.
        op: String,
        /// Blocks along one axis.
        blocks: u32,
        /// The user's line.
        at: Location,
    },
    /// A plan that was made for another machine than the one that it is linked on.
    #[error("the plan cannot be linked: {problem}; plan again with the backend that will run it")]
    OtherMachine {
        /// What does not fit.
        problem: String,
    },
    /// A program that was left without a plan.
    #[error("the program has nothing to replay since relinking it failed or a kernel of it panicked; make it anew")]
    Unlinked,
    /// More memory than the machine has.
    #[error("the plan needs {needed} bytes and {available} are available; use a smaller batch or a smaller model")]
    TooLarge {
        /// Bytes the plan needs.
        needed: usize,
        /// Bytes the machine has.
        available: usize,
    },
    /// The machine refused threads or memory.
    #[error("the machine refused {what}: {reason}")]
    Machine {
        /// What was asked for.
        what: String,
        /// What the system said.
        reason: String,
    },
}

/// The result of what a user can get wrong.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn mismatch(op: &str, inputs: Vec<TensorType>, mismatch: Mismatch, at: Location) -> Error {
        let op = op.to_string();
        match mismatch {
            Mismatch::Shape(problem) => Error::Shape { op, inputs, problem, at },
            Mismatch::DType(problem) => Error::DType { op, inputs, problem, at },
            Mismatch::Parameter(problem) => Error::Parameter { op, inputs, problem, at },
        }
    }
}

fn list(inputs: &[TensorType]) -> String {
    let texts: Vec<String> = inputs.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "nothing".to_string() } else { texts.join(", ") }
}

/// What the shape rules of the operations say in common.
impl Mismatch {
    /// Checks that an operand is floating point.
    pub fn unless_float(input: &TensorType) -> Result<(), Mismatch> {
        if input.dtype.is_float() {
            return Ok(());
        }
        Err(Mismatch::DType(format!("takes floating-point elements, not {}; cast first", input.dtype)))
    }

    /// Checks that an operand is made of integers.
    pub fn unless_integer(input: &TensorType) -> Result<(), Mismatch> {
        if input.dtype.is_integer() {
            return Ok(());
        }
        Err(Mismatch::DType(format!("takes integer indices, not {}; make them i32 or u32", input.dtype)))
    }

    /// Checks that an operand is a key of random numbers.
    pub fn unless_key(input: &TensorType) -> Result<(), Mismatch> {
        if input.dtype != DType::U32 {
            return Err(Mismatch::DType(format!("takes a key of u32, not {}", input.dtype)));
        }
        Mismatch::unless_shape("the key", input, &[2].into())
    }

    /// Checks that there are so many operands.
    pub fn unless_count(inputs: &[TensorType], count: usize) -> Result<(), Mismatch> {
        if inputs.len() == count {
            return Ok(());
        }
        Err(Mismatch::Parameter(format!("takes {count} operands, not {}", inputs.len())))
    }

    /// Checks that all operands are floating point of one type.
    pub fn unless_same_float(inputs: &[TensorType]) -> Result<DType, Mismatch> {
        inputs.iter().try_for_each(Mismatch::unless_float)?;
        Mismatch::unless_same_type(inputs)
    }

    /// Checks that all operands are of one element type.
    pub fn unless_same_type(inputs: &[TensorType]) -> Result<DType, Mismatch> {
        match inputs.iter().find(|input| input.dtype != inputs[0].dtype) {
            Some(other) => Err(Mismatch::DType(format!(
                "takes operands of one element type, not {} and {}; cast one",
                inputs[0].dtype, other.dtype
            ))),
            None => Ok(inputs[0].dtype),
        }
    }

    /// Checks that an operand has a certain shape.
    pub fn unless_shape(what: &str, input: &TensorType, expected: &Shape) -> Result<(), Mismatch> {
        if input.shape == *expected {
            return Ok(());
        }
        Err(Mismatch::Shape(format!("{what} must be of shape {expected}, not {}", input.shape)))
    }

    /// Checks that an operand has at least so many axes.
    pub fn unless_rank(what: &str, input: &TensorType, rank: usize) -> Result<(), Mismatch> {
        if input.shape.rank() >= rank {
            return Ok(());
        }
        Err(Mismatch::Shape(format!("{what} must have at least {rank} axes, not {}; reshape it", input.shape.rank())))
    }
}

impl From<gradus_cuda::Error> for Error {
    fn from(error: gradus_cuda::Error) -> Error {
        let what = match error {
            gradus_cuda::Error::Memory { .. } => "memory of a CUDA device",
            _ => "a CUDA device",
        };
        Error::Machine { what: what.to_string(), reason: error.to_string() }
    }
}
