//! What a planner must know of whatever will carry the plan out. It asks before anything is linked or compiled.

use super::Step;
use crate::ops::{Elementwise, Matmul, Operation};
use crate::{DType, Layout, Result};

/// A machine as the planner sees it. Its answers depend on nothing but the question: the same graph always gets the
/// same plan.
pub trait Machine {
    /// Buffers start at multiples of this many bytes.
    fn alignment(&self) -> usize;

    /// How many workers have scratch of their own.
    fn workers(&self) -> usize;

    /// How long the program of one element-wise step may be.
    fn fusion(&self) -> FusionLimits;

    /// How a matrix product takes this program as its epilogue.
    fn absorbs(&self, product: &Matmul, epilogue: &Elementwise) -> Absorption;

    /// Whether a matrix product that takes a program as its epilogue had better give what another makes of it (`aside`) than be kept
    /// for that.
    fn gives_aside(&self, product: &Matmul, epilogue: &Elementwise, aside: &Elementwise) -> bool;

    /// Whether products like this one, of so many rows, of other first operands and the same second one, had better be computed
    /// together with it.
    fn shares_columns(&self, product: &Matmul, rows: usize) -> bool;

    /// Whether logits that fit into memory had better be held for the gradient of their loss, rather than computed a block at
    /// a time with the loss.
    fn holds_logits(&self) -> bool;

    /// Whether products that allow it ([`ProductTypes::allow_tf32`](crate::ops::ProductTypes)) have their operands rounded to
    /// TF32.
    fn multiplies_tf32(&self) -> bool;

    /// Whether the kernel of an operation on rows does itself what would be a pass before or after it
    /// ([`RowOperation`](crate::ops::RowOperation)), or that of a product with its epilogue the sums of columns.
    fn takes_in(&self, op: &dyn Operation) -> bool;

    /// How an operation's kernel reads an operand of this type that lies like this.
    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading;

    /// The scratch that a step needs.
    fn scratch(&self, step: &Step) -> Result<Scratch>;

    /// How long a step takes, about, in seconds.
    fn seconds(&self, step: &Step) -> f64;
}

/// The longest program that is one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusionLimits {
    /// Operands.
    pub inputs: usize,
    /// Instructions.
    pub instructions: usize,
}

/// How a kernel reads an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As it lies.
    AsItLies,
    /// As a dense copy in this element type, which the planner puts in.
    Copied(DType),
    /// In this element type, lying as it does; the planner puts the conversion in.
    Converted(DType),
}

/// Scratch of a step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Shared by all workers.
    pub shared: usize,
    /// For each worker.
    pub per_worker: usize,
}

/// How a product takes the program that follows it as its epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absorption {
    /// Not at all.
    No,
    /// With a result that lies apart from the program's other operands.
    Apart,
    /// With a result that may lie over them.
    InPlace,
}
