//! Cases: small computations, each built around one operation, from which the tests are made.
//!
//! A case is run by the reference in f64, by every kernel of every instruction set, on one thread and on several,
//! with its operands dense and as views, in every element type it takes; its gradients and their gradients are
//! compared with finite differences.

use crate::{DType, Shape, Tensor, TensorType};

/// From operands to results.
pub type Build = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// A small computation to be tested.
pub struct Case {
    /// What is special about it.
    pub name: String,
    /// Its operands.
    pub inputs: Vec<CaseInput>,
    /// The computation.
    pub build: Build,
    /// The largest error of the f32 kernels, relative to the largest number of each result.
    pub tolerance: f64,
    /// Whether numbers on the way to the results are rounded to the 16-bit type of the operands on some machines.
    pub rounds_inside: bool,
}

/// An operand of a case.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// Its type. Floating-point operands are also tried in 16-bit types.
    pub ty: TensorType,
    /// What it holds.
    pub fill: Fill,
    /// Whether gradients with respect to it are checked.
    pub differentiable: bool,
}

/// What an operand holds.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Random numbers in a range.
    Uniform(f64, f64),
    /// Random numbers in a range, none closer to zero than the third number: for functions with a kink at zero.
    AwayFromZero(f64, f64, f64),
    /// Numbers that all differ by at least 0.1, in random order: for functions that choose.
    Distinct,
    /// Random integers below a bound.
    Below(usize),
    /// These numbers.
    Numbers(Vec<f64>),
}

impl Case {
    /// A case with operands between -2 and 2 and a tolerance of 1e-5; builders below change that.
    pub fn new(name: &str, shapes: &[&[usize]], build: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static) -> Case {
        let inputs = shapes.iter().map(|&shape| CaseInput::uniform(shape, -2.0, 2.0)).collect();
        Case { name: name.to_string(), inputs, build: Box::new(build), tolerance: 1e-5, rounds_inside: false }
    }

    /// The same with other operands.
    pub fn with_inputs(name: &str, inputs: Vec<CaseInput>, build: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static) -> Case {
        Case { name: name.to_string(), inputs, build: Box::new(build), tolerance: 1e-5, rounds_inside: false }
    }

    /// The same, of an operation that on some machines rounds numbers on the way to its results to the type of its operands.
    pub fn rounding_inside(mut self) -> Case {
        self.rounds_inside = true;
        self
    }

    /// The same with another tolerance.
    pub fn within(mut self, tolerance: f64) -> Case {
        self.tolerance = tolerance;
        self
    }
}

impl CaseInput {
    /// f32 numbers in a range.
    pub fn uniform(shape: impl Into<Shape>, low: f64, high: f64) -> CaseInput {
        CaseInput::filled(shape, Fill::Uniform(low, high))
    }

    /// f32 numbers.
    pub fn filled(shape: impl Into<Shape>, fill: Fill) -> CaseInput {
        CaseInput { ty: TensorType::new(DType::F32, shape), fill, differentiable: true }
    }

    /// Integers below a bound.
    pub fn integers(dtype: DType, shape: impl Into<Shape>, bound: usize) -> CaseInput {
        CaseInput { ty: TensorType::new(dtype, shape), fill: Fill::Below(bound), differentiable: false }
    }

    /// One i32: a place, or how many there are.
    pub fn place(number: f64) -> CaseInput {
        let fill = Fill::Numbers(vec![number]);
        CaseInput { ty: TensorType::new(DType::I32, [1]), fill, differentiable: false }
    }

    /// The same, with no gradient checked: for an operand at which the function jumps.
    pub fn without_gradient(mut self) -> CaseInput {
        self.differentiable = false;
        self
    }
}
