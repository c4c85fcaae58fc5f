//! What names an input, a state, an output or a routine of a program: text, or the handle that it was traced with.

use crate::graph::{Source, State, Value};
use crate::{Error, Result, Routine, Tensor};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that nothing else in this process has.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What the handles of a trace stand for in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handles {
    /// The trace that was planned.
    pub(crate) trace: u64,
    /// By routine: the routine, and the value of each of its outputs in the trace.
    pub(crate) routines: Vec<(u64, Vec<Value>)>,
}

/// An input, a state or an output of a program: its name, or the tensor that it is in the trace.
#[derive(Clone, Copy, Debug)]
pub enum TensorKey<'a> {
    /// By name.
    Name(&'a str),
    /// By handle.
    Handle(&'a Tensor),
}

/// A routine of a program: its name, or the routine that was compiled.
#[derive(Clone, Copy)]
pub enum RoutineKey<'a> {
    /// By name.
    Name(&'a str),
    /// By handle.
    Handle(&'a Routine),
}

macro_rules! by_name {
    ($($text:ty),*) => {$(
        impl<'a> From<&'a $text> for TensorKey<'a> {
            fn from(name: &'a $text) -> TensorKey<'a> {
                TensorKey::Name(name)
            }
        }
        impl<'a> From<&'a $text> for RoutineKey<'a> {
            fn from(name: &'a $text) -> RoutineKey<'a> {
                RoutineKey::Name(name)
            }
        }
    )*};
}

by_name!(str, &str, String, Arc<str>);

impl<'a> From<&'a Tensor> for TensorKey<'a> {
    fn from(tensor: &'a Tensor) -> TensorKey<'a> {
        TensorKey::Handle(tensor)
    }
}

impl<'a> From<&'a Routine> for RoutineKey<'a> {
    fn from(routine: &'a Routine) -> RoutineKey<'a> {
        RoutineKey::Handle(routine)
    }
}

impl fmt::Display for TensorKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorKey::Name(name) => write!(f, "{name:?}"),
            TensorKey::Handle(tensor) => match tensor.handle() {
                Ok(value) => write!(f, "{} of {}", tensor.trace().graph().nodes()[value.node].label(), tensor.ty()),
                Err(_) => write!(f, "a tensor of a trace with an error"),
            },
        }
    }
}

/// What a handle is in the trace of a plan.
pub(crate) enum Traced {
    /// An input or a state of this name.
    Leaf(Arc<str>),
    /// The result of an operation.
    Computed(Value),
}

impl Handles {
    /// What this tensor is, if it is of the trace that was planned.
    pub(crate) fn traced(&self, tensor: &Tensor) -> Result<Traced> {
        let value = tensor.handle()?;
        if tensor.trace().id() != self.trace {
            let problem = "is of another trace than the program; use handles of the trace that was compiled, or names";
            return Err(wrong_handle(TensorKey::Handle(tensor), problem));
        }
        Ok(match &tensor.trace().graph().nodes()[value.node].source {
            Source::Input(name) | Source::State(State { name, .. }) => Traced::Leaf(name.clone()),
            Source::Constant(_) | Source::Op(_) => Traced::Computed(value),
        })
    }
}

/// The error of a handle that does not name what was asked for.
pub(crate) fn wrong_handle(what: impl fmt::Display, problem: &'static str) -> Error {
    Error::Handle { what: what.to_string(), problem }
}
