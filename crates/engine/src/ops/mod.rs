//! The operations: one file each, with its shape rule, gradient, tangent, cost, in-place rule, meaning, kernels and cases.
//!
//! [`Operation`] has no default methods, so an operation with a part missing does not compile. What the planner and the
//! machines know of an operation, they learn from it: no list elsewhere names one. The list below drives the tests.

pub(crate) mod admission;
mod cases;
mod reals;
mod slices;
mod trusted;

pub use crate::autodiff::Differentiation;
pub use crate::backend::{CudaLinker, Kernels, Linker, Unsupported};
pub use crate::linearize::Linearization;
pub use cases::{Case, CaseInput, Fill};
pub use reals::Reals;
pub use slices::{Cut, Numbers, NumbersMut, SliceKernel};
pub use trusted::Trusted;

use crate::error::{Location, Mismatch};
use crate::shape::Layout;
use crate::{Error, Tensor, TensorType};
use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::Arc;

/// What an operation is, from its shapes to its kernels.
///
/// The list below has our own; any other type may be one, and is planned, verified, differentiated and tested alike. What
/// it says is never trusted with memory, but for kernels that are [`Trusted`].
pub trait Operation: Any + Debug + Send + Sync {
    /// Its name in messages, plans and profiles.
    fn name(&self) -> &'static str;

    /// Its parameters as text. Two operations of one type with the same text must be the same function: equal
    /// nodes are merged by it.
    fn attributes(&self) -> String;

    /// How many results it has.
    fn output_count(&self) -> usize;

    /// The types of its results, or why it does not take these operands.
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch>;

    /// The gradient of each operand, made of operations; `None` where there is none.
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>>;

    /// The tangent of each result, made of operations; `None` where a result does not change with its operands.
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>>;

    /// What it costs to compute.
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost;

    /// Pairs (output, input): the output may be written over the bytes of that input, if the input has the same
    /// size and is not needed later.
    fn in_place(&self) -> Vec<(usize, usize)>;

    /// What it does besides giving its results.
    fn effect(&self, inputs: &[TensorType]) -> Effect;

    /// Which of its results are sums over rows, from the first to the last, with which its kernels can go on from earlier
    /// sums: all of these at once, or none.
    fn accumulates(&self) -> Vec<usize>;

    /// What the planner may make of it together with its neighbours.
    fn form(&self) -> Form<'_>;

    /// Its meaning, in f64.
    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals>;

    /// How it is carried out.
    fn lowering(&self) -> Lowering<'_>;

    /// Cases that the tests run: every one is compared with the meaning on every kernel, and differentiated twice.
    fn cases() -> Vec<Case>
    where
        Self: Sized;
}

/// What an operation does besides giving its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the same results from the same operands, whenever and however often.
    Pure,
    /// It looks for something in its data; where that is not found, the replay fails and no state changes.
    Faults(Check),
    /// It draws random numbers. They follow from its operands alone, so that drawing again gives the same.
    Random,
    /// It takes part in something with other processes: it runs once, and in the order of the trace with its like.
    Collective,
}

impl Effect {
    /// What it looks for, if it may fault.
    pub fn check(&self) -> Option<&Check> {
        match self {
            Effect::Faults(check) => Some(check),
            _ => None,
        }
    }
}

/// What the planner may make of an operation together with its neighbours.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// A program run on every element: chains of them are joined.
    Elementwise(&'a Elementwise),
    /// A matrix product: it may take the program that follows as its epilogue.
    Product(&'a Matmul),
    /// A matrix product with its epilogue.
    FusedProduct(&'a FusedMatmul),
    /// An operation that goes on from earlier sums: it gives the other results of the same operation too.
    Accumulation(&'a Accumulation),
    /// The update of a weight by a gradient, which is this operand.
    Update {
        /// Which operand.
        gradient: usize,
    },
    /// A loss whose gradient costs less when it is computed with it; gives the operation that does both.
    Loss(&'a LinearCrossEntropy),
    /// The gradient of a loss, from what each row's loss counts: it may be computed with the loss.
    LossGradient(&'a LinearCrossEntropyGradient),
    /// Works on rows: it may take in passes that only convert its operands and results, or add to its first one.
    Rows(&'a dyn RowOperation),
    /// Nothing: it stands alone.
    Opaque,
}

/// An operation on rows that can do itself what would be a pass of its own before or after it.
pub trait RowOperation: Debug {
    /// The same, with an operand in another floating-point type.
    fn reading(&self, input: usize, dtype: crate::DType) -> Option<Arc<dyn Operation>>;

    /// The same, with its first result in another floating-point type.
    fn storing(&self, dtype: crate::DType) -> Option<Arc<dyn Operation>>;

    /// The same, with one operand more, of the type of its first result, that is added to that.
    fn adding(&self) -> Option<Arc<dyn Operation>>;

    /// The same, with one result more: the first in another floating-point type.
    fn copying(&self, dtype: crate::DType) -> Option<Arc<dyn Operation>>;

    /// The same, with one result more: the sums of the last one, a copy of the first, over all rows, in f32.
    fn summing(&self) -> Option<Arc<dyn Operation>>;
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

    /// What to raise for the first number that does not pass, if there is one: an index that is out of range, or the place
    /// of a number that is not finite.
    pub fn detail(&self, operand: &Reals) -> Option<u32> {
        match self {
            Check::Indices { bound, ignored, .. } => {
                let passes =
                    |index: f64| (0.0..*bound as f64).contains(&index) || ignored.is_some_and(|i| index == i as f64);
                operand.data.iter().find(|index| !passes(**index)).map(|index| *index as i64 as u32)
            }
            Check::Finite { .. } => operand.data.iter().position(|number| !number.is_finite()).map(|at| at as u32),
        }
    }

    /// What the detail of a fault says, of an operand of this element type.
    pub fn error(&self, op: &str, operand: crate::DType, detail: u32, at: Location) -> Error {
        match self {
            Check::Indices { bound, .. } => {
                let index = if operand == crate::DType::U32 { detail as i64 } else { detail as i32 as i64 };
                Error::Index { op: op.to_string(), index, bound: *bound, at }
            }
            Check::Finite { name, .. } => Error::NonFinite { name: name.clone(), element: detail as usize, at },
        }
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
    /// By kernels of its own.
    Kernels(&'a (dyn Kernels + 'static)),
    /// As one look at the operands' bytes, where they lie side by side along this axis already; else by kernels.
    SideBySide(usize, &'a (dyn Kernels + 'static)),
    /// By a function on slices.
    Slices(&'a dyn SliceKernel),
    /// Not at all: each result is the operand of the same number, as it lies.
    Identity,
}

/// The kernels of an operation, if it has any. They must be its own: those of another operation rely on that one's rule.
pub(crate) fn own_kernels(op: &dyn Operation) -> Option<&dyn Kernels> {
    let (Lowering::Kernels(kernels) | Lowering::SideBySide(_, kernels)) = op.lowering() else { return None };
    let same_type = (op as &dyn Any).type_id() == (kernels as &dyn Any).type_id();
    (same_type && std::ptr::addr_eq(op, kernels)).then_some(kernels)
}

/// What tells operations of the same text apart: the type, and that of the operation whose sums go on, if it is one that
/// goes on.
pub(crate) fn types_of(op: &dyn Operation) -> [TypeId; 2] {
    let inner = match op.form() {
        Form::Accumulation(accumulation) => accumulation.inner(),
        _ => op,
    };
    [op, inner].map(|op| (op as &dyn Any).type_id())
}

/// An operation that only looks at its operand's bytes in another way.
pub trait ViewRule {
    /// A result's layout in the operand's buffer; `None` if strides cannot say it, and a dense copy is needed.
    fn view(&self, output: usize, input: &Layout) -> Option<Layout>;
}

/// The kind of work that an operation is, by which a machine knows its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A number at a time: element-wise programs, reductions, norms, updates, copies.
    Elements,
    /// A matrix product of these sizes.
    Product {
        /// Rows of the result, over all matrices of a batch.
        rows: usize,
        /// Columns of the result.
        columns: usize,
        /// What is summed over.
        depth: usize,
    },
    /// Matrix products in blocks, inside of something larger.
    BlockedProducts,
    /// Attention.
    Attention,
    /// A convolution.
    Convolution,
}

/// What an operation costs: what a plan weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The kind of work.
    pub work: Work,
    /// Floating-point operations.
    pub operations: u64,
    /// Bytes read and written, each operand once.
    pub bytes: u64,
}

impl Cost {
    /// So many operations for each element of the first result, and every operand and result moved once.
    pub fn per_element(operations: u64, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let operations = operations.saturating_mul(outputs[0].shape.elements() as u64);
        Cost { work: Work::Elements, operations, bytes: Cost::traffic(inputs, outputs) }
    }

    /// The same, as another kind of work.
    pub fn as_work(self, work: Work) -> Cost {
        Cost { work, ..self }
    }

    /// The bytes of all operands and results.
    pub fn traffic(inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        inputs.iter().chain(outputs).map(|ty| ty.bytes() as u64).sum()
    }
}

/// One line of the list: an operation and its cases.
pub struct ListedOperation {
    /// The operation's type,
    pub id: TypeId,
    /// and what it is called.
    pub type_name: &'static str,
    /// Its cases.
    pub cases: fn() -> Vec<Case>,
}

impl ListedOperation {
    /// The line of an operation.
    pub fn of<O: Operation>() -> ListedOperation {
        let path = std::any::type_name::<O>();
        ListedOperation { id: TypeId::of::<O>(), type_name: path.rsplit("::").next().unwrap_or(path), cases: O::cases }
    }
}

macro_rules! operations {
    ($($module:ident::$op:ident,)*) => {
        $(
            // SAFETY: the operations here are tested on every kernel, element type, kind of operand and number of threads,
            // and in debug builds every slice that their jobs take is checked against its operand.
            unsafe impl Trusted for $module::$op {}
        )*

        /// The list that drives the tests.
        pub fn all() -> Vec<ListedOperation> {
            vec![$(ListedOperation::of::<$module::$op>()),*]
        }
    };
}

mod accumulation;
mod append;
mod attention;
mod axes;
mod batch_norm;
mod cached_attention;
mod check_finite;
mod concat;
mod conv2d;
mod cross_entropy;
mod cumulative_sum;
mod custom_gradient;
mod dropout;
mod elementwise;
mod embedding;
mod gather;
mod integers;
mod layer_norm;
mod linear_cross_entropy;
mod masks;
mod matmul;
mod pool2d;
mod random;
mod reduce;
mod rms_norm;
mod rotary;
mod sample;
mod softmax;
mod top_k;
mod updates;
mod view;

pub use accumulation::{Accumulation, accumulated};
pub use attention::AttentionOptions;
pub use batch_norm::BatchNorm;
pub use conv2d::{Conv1dOptions, Conv2dOptions};
pub use custom_gradient::{CustomGradient, custom_gradient};
pub use elementwise::{Argument, Elementwise, Function, Instruction, Scalar, ScalarProgram};
pub use layer_norm::LayerNormGradient;
pub use linear_cross_entropy::{
    LinearCrossEntropy, LinearCrossEntropyGradient, LinearCrossEntropyOptions, LinearCrossEntropyWithGradient,
};
pub use matmul::{FusedMatmul, Matmul, ProductTypes, SharedMatmul};
pub use pool2d::{Pool1dOptions, Pool2dOptions};
pub use sample::SampleInputs;
pub use top_k::{Order, Sorted};
pub use updates::{Adafactor, AdafactorInputs, AdafactorOutputs, SecondMoment};
pub use updates::{AdamW, AdamWInputs, AdamWOutputs};
pub use updates::{Lion, LionInputs, LionOutputs};
pub use updates::{Sgd, SgdInputs, SgdOutputs};
pub use updates::{clip_by_global_norm, clip_by_value};

operations! {
    elementwise::Elementwise,
    view::Reshape,
    view::Permute,
    view::Slice,
    view::Split,
    view::Broadcast,
    view::StopGradient,
    custom_gradient::CustomGradient,
    check_finite::CheckFinite,
    concat::Concat,
    accumulation::Accumulation,
    gather::Gather,
    gather::ScatterAdd,
    top_k::TopK,
    cumulative_sum::CumulativeSum,
    integers::Integers,
    random::RandomUniform,
    sample::Sample,
    embedding::Embedding,
    embedding::EmbeddingGradient,
    reduce::Reduce,
    matmul::Matmul,
    matmul::FusedMatmul,
    matmul::SharedMatmul,
    softmax::Softmax,
    cross_entropy::CrossEntropy,
    cross_entropy::CrossEntropyGradient,
    linear_cross_entropy::LinearCrossEntropy,
    linear_cross_entropy::LinearCrossEntropyGradient,
    linear_cross_entropy::LinearCrossEntropyWithGradient,
    layer_norm::LayerNorm,
    layer_norm::LayerNormGradient,
    rms_norm::RmsNorm,
    rms_norm::RmsNormGradient,
    rotary::Rotary,
    attention::Attention,
    attention::AttentionGradient,
    append::Append,
    cached_attention::CachedAttention,
    dropout::Dropout,
    conv2d::Conv2d,
    conv2d::Conv2dInputGradient,
    conv2d::Conv2dWeightGradient,
    pool2d::MaxPool2d,
    pool2d::MaxPool2dGradient,
    pool2d::MaxPool2dGather,
    pool2d::AvgPool2d,
    pool2d::AvgPool2dGradient,
    updates::Sgd,
    updates::AdamW,
    updates::Lion,
}
