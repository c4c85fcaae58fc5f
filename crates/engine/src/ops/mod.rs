//! The operations: one file each, with its shape rule, gradient, cost, in-place rule, meaning, kernels and cases.
//!
//! [`Operation`] has no default methods, so an operation with a part missing does not compile; and an operation
//! can only name its [`OpKind`] if it is in the list below, from which the tests are driven.

mod cases;
mod listed;
mod reals;

pub use crate::autodiff::Differentiation;
pub use crate::backend::{Kernels, Linker, Unsupported};
pub use cases::{Case, CaseInput, Fill};
pub use reals::Reals;

use crate::error::Mismatch;
use crate::shape::Layout;
use crate::{Tensor, TensorType};
use listed::Listed;
use std::any::Any;
use std::fmt::Debug;

/// What an operation is, from its shapes to its kernels.
///
/// Operations are those of the list below and no others: what their kernels do with memory is trusted.
pub trait Operation: Listed + Any + Debug + Send + Sync {
    /// Its entry in the list of operations.
    fn kind(&self) -> OpKind;

    /// Its parameters as text. Two operations of one kind with the same text must be the same function: equal
    /// nodes are merged by it.
    fn attributes(&self) -> String;

    /// How many results it has.
    fn output_count(&self) -> usize;

    /// The types of its results, or why it does not take these operands.
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch>;

    /// The gradient of each operand, made of operations; `None` where there is none.
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>>;

    /// What it costs to compute.
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost;

    /// Pairs (output, input): the output may be written over the bytes of that input, if the input has the same
    /// size and is not needed later.
    fn in_place(&self) -> Vec<(usize, usize)>;

    /// What it looks for in its data, if anything: where it does not find it, the replay ends there.
    fn check(&self, inputs: &[TensorType]) -> Option<Check>;

    /// Its meaning, in f64.
    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals>;

    /// How it is carried out.
    fn lowering(&self) -> Lowering<'_>;

    /// Cases that the tests run: every one is compared with the meaning on every kernel, and differentiated twice.
    fn cases() -> Vec<Case>
    where
        Self: Sized;
}

/// What an operation looks for in its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// That an operand's numbers are below the bound, or the one that is ignored.
    Indices {
        /// Which operand.
        input: usize,
        /// How many there are to choose from.
        bound: usize,
        /// A number that stands for no choice.
        ignored: Option<i32>,
    },
    /// That an operand's numbers are finite.
    Finite {
        /// Which operand.
        input: usize,
        /// What to call it.
        name: String,
    },
}

impl Check {
    /// That this operand's numbers choose among so many.
    pub(crate) fn indices(input: usize, bound: usize) -> Check {
        Check::targets(input, bound, None)
    }

    /// As [`Check::indices`], with a number that stands for no choice.
    pub(crate) fn targets(input: usize, bound: usize, ignored: Option<i32>) -> Check {
        Check::Indices { input, bound, ignored }
    }

    /// The operand that is looked at.
    pub fn input(&self) -> usize {
        match self {
            Check::Indices { input, .. } | Check::Finite { input, .. } => *input,
        }
    }
}

/// How an operation is carried out.
pub enum Lowering<'a> {
    /// As other looks at the operand's bytes, where strides can say it.
    View(&'a dyn ViewRule),
    /// By kernels.
    Kernels(&'a dyn Kernels),
    /// As one look at the operands' bytes, where they lie side by side along this axis already; else by kernels.
    SideBySide(usize, &'a dyn Kernels),
}

/// An operation that only looks at its operand's bytes in another way.
pub trait ViewRule {
    /// A result's layout in the operand's buffer; `None` if strides cannot say it, and a dense copy is needed.
    fn view(&self, output: usize, input: &Layout) -> Option<Layout>;
}

/// What an operation costs: the two numbers a plan weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations.
    pub operations: u64,
    /// Bytes read and written, each operand once.
    pub bytes: u64,
}

impl Cost {
    /// So many operations for each element of the first result, and every operand and result moved once.
    pub fn per_element(operations: u64, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { operations: operations * outputs[0].shape.elements() as u64, bytes: Cost::traffic(inputs, outputs) }
    }

    /// The bytes of all operands and results.
    pub fn traffic(inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs.iter().chain(outputs).map(|ty| ty.bytes() as u64).sum()
    }
}

/// One line of the list: an operation, its name and its cases.
pub struct Entry {
    /// Which operation.
    pub kind: OpKind,
    /// Its cases.
    pub cases: fn() -> Vec<Case>,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $kind:ident = $name:literal in $module:ident;)*) => {
        /// Every operation there is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum OpKind { $($kind),* }

        impl OpKind {
            /// The name in messages, plans and profiles.
            pub fn name(self) -> &'static str {
                match self { $(OpKind::$kind => $name),* }
            }
        }

        $(impl Listed for $module::$kind {})*

        /// The list that drives the tests.
        pub fn all() -> Vec<Entry> {
            vec![$(Entry { kind: OpKind::$kind, cases: <$module::$kind as Operation>::cases }),*]
        }
    };
}

mod attention;
mod batch_norm;
mod check_finite;
mod concat;
mod continued;
mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod gather;
mod layer_norm;
mod linear_cross_entropy;
mod matmul;
mod pool2d;
mod reduce;
mod rms_norm;
mod rotary;
mod softmax;
mod updates;
mod view;

pub use batch_norm::BatchNorm;
pub(crate) use continued::Continued;
pub use continued::accumulated;
pub use conv2d::Conv2dOptions;
pub use elementwise::{Argument, Elementwise, Function, Instruction, ScalarProgram};
pub use layer_norm::LayerNormGradient;
pub use matmul::{FinishedMatmul, Matmul, ProductTypes};
pub use rotary::rotary_tables;
pub use updates::{Adafactor, AdafactorInputs, AdafactorOutputs, SecondMoment};
pub use updates::{AdamW, AdamWInputs, AdamWOutputs};
pub use updates::{Lion, LionInputs, LionOutputs};
pub use updates::{Sgd, SgdInputs, SgdOutputs};
pub use updates::{clip_by_global_norm, clip_by_value};

operations! {
    Elementwise = "elementwise" in elementwise;
    Reshape = "reshape" in view;
    Permute = "permute" in view;
    Slice = "slice" in view;
    Split = "split" in view;
    Broadcast = "broadcast" in view;
    StopGradient = "stop_gradient" in view;
    CheckFinite = "check_finite" in check_finite;
    Concat = "concat" in concat;
    Continued = "continued" in continued;
    Gather = "gather" in gather;
    ScatterAdd = "scatter_add" in gather;
    Embedding = "embedding" in embedding;
    EmbeddingGradient = "embedding_gradient" in embedding;
    Reduce = "reduce" in reduce;
    Matmul = "matmul" in matmul;
    FinishedMatmul = "finished_matmul" in matmul;
    Softmax = "softmax" in softmax;
    CrossEntropy = "cross_entropy" in cross_entropy;
    CrossEntropyGradient = "cross_entropy_gradient" in cross_entropy;
    LinearCrossEntropy = "linear_cross_entropy" in linear_cross_entropy;
    LinearCrossEntropyGradient = "linear_cross_entropy_gradient" in linear_cross_entropy;
    LayerNorm = "layer_norm" in layer_norm;
    LayerNormGradient = "layer_norm_gradient" in layer_norm;
    RmsNorm = "rms_norm" in rms_norm;
    RmsNormGradient = "rms_norm_gradient" in rms_norm;
    Rotary = "rotary" in rotary;
    Attention = "attention" in attention;
    AttentionGradient = "attention_gradient" in attention;
    Dropout = "dropout" in dropout;
    Conv2d = "conv2d" in conv2d;
    Conv2dInputGradient = "conv2d_input_gradient" in conv2d;
    Conv2dWeightGradient = "conv2d_weight_gradient" in conv2d;
    MaxPool2d = "max_pool2d" in pool2d;
    MaxPool2dGradient = "max_pool2d_gradient" in pool2d;
    MaxPool2dGather = "max_pool2d_gather" in pool2d;
    AvgPool2d = "avg_pool2d" in pool2d;
    AvgPool2dGradient = "avg_pool2d_gradient" in pool2d;
    Sgd = "sgd" in updates;
    AdamW = "adamw" in updates;
    Lion = "lion" in updates;
}
