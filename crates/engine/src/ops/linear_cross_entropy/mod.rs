//! The last projection of a language model and its cross-entropy in one: the logits, by far the largest tensor of
//! a small model, come and go in blocks and never lie in memory all at once.

mod cuda;
mod tangents;
mod with_gradient;

pub use with_gradient::LinearCrossEntropyWithGradient;

use super::cross_entropy::{CrossEntropy, CrossEntropyGradient, check_rows, kernel_targets, targets};
use super::*;
use crate::backend::LinkedOperand;
use crate::dtype::Native;
use crate::{DType, Shape};
use gradus_kernels::elementwise::{InputElements, Map, OutputElements};
use gradus_kernels::gemm::{Gemm, Matrix, MatrixMut, Sizes};
use gradus_kernels::{Element, In, Out, bf16, chunk, cross_entropy as kernel, f16};
use std::ops::Range;

/// Numbers of a block of logits, about: 4 MB. With 788 classes of 256 channels, blocks of 1 MB were measured a tenth
/// slower, and of 8 MB at most 2 % faster.
const BLOCK: usize = 1024 * 1024;
/// Rows of a block are a multiple of this: the products have whole tiles, and sums over rows keep their bits.
const ROW_MULTIPLE: usize = 32;

/// The loss and the log-sum-exp of each row of `x @ weight^T`: `x` is [rows, channels], the weight
/// [classes, channels] as an embedding table is, the targets `[rows]`. Products are computed in the type of `x`; the
/// weight has that type, or is f32.
#[derive(Debug)]
pub struct LinearCrossEntropy {
    options: LinearCrossEntropyOptions,
}

/// The gradients of `x` and the weight, from (x, weight, targets, log-sum-exp, gradient of each row's loss).
#[derive(Debug)]
pub struct LinearCrossEntropyGradient {
    options: LinearCrossEntropyOptions,
}

/// What a projection with its cross-entropy is told besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearCrossEntropyOptions {
    /// The target whose rows do not count.
    pub ignored: Option<i32>,
    /// Whether f32 may be rounded to TF32 ([`ProductTypes::allow_tf32`]).
    pub allow_tf32: bool,
}

impl LinearCrossEntropyOptions {
    fn attributes(&self) -> String {
        format!("ignored {:?}{}", self.ignored, if self.allow_tf32 { ", tf32" } else { "" })
    }
}

impl Operation for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn attributes(&self) -> String {
        self.options.attributes()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rows = check(inputs)?;
        Ok(vec![TensorType::new(DType::F32, &rows), TensorType::new(DType::F32, &rows)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if at.has_gradient(1) {
            return at.through(|x| self.decomposed(x));
        }
        let op = LinearCrossEntropyGradient { options: self.options };
        let operands = [&at.inputs[0], &at.inputs[1], &at.inputs[2], &at.outputs[1], &at.gradient(0)];
        let mut gradients: Vec<Option<Tensor>> =
            at.inputs[0].trace().apply(op, &operands).into_iter().map(Some).collect();
        gradients.push(None);
        gradients
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through_blocks_instead(|x, follow| self.in_blocks(x, tangents::BLOCK_LOGITS, follow))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::BlockedProducts,
            operations: logits_of(inputs) * (2 * inputs[0].shape[1] as u64 + 18),
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::targets(2, inputs[1].shape[0], self.options.ignored))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Loss(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let op = CrossEntropy { ignored: self.options.ignored };
        op.reference(&[&logits(inputs[0], inputs[1]), inputs[2]], outputs)
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let both = |x: &[Tensor]| {
            let op = LinearCrossEntropy { options: LinearCrossEntropyOptions::default() };
            x[0].trace().apply(op, &[&x[0], &x[1], &x[2]])
        };
        let mean = |ignored: Option<i32>| move |x: &[Tensor]| vec![x[0].linear_cross_entropy(&x[1], &x[2], ignored)];
        let mut with_ignored = operands(4, 3, 6);
        with_ignored[2] = targets(DType::I32, &[5.0, -100.0, 0.0, -100.0]);
        let mut with_axes = operands(6, 4, 5);
        with_axes[0] = CaseInput::uniform([2, 3, 4], -1.0, 1.0);
        with_axes[2] = CaseInput::integers(DType::U32, [2, 3], 5);
        let cases = vec![
            Case::with_inputs("mean", operands(5, 4, 7), mean(None)),
            Case::with_inputs("both results", operands(3, 5, 6), both),
            Case::with_inputs("single numbers", operands(1, 1, 1), mean(None)),
            Case::with_inputs("no rows", operands(0, 3, 4), both),
            Case::with_inputs("an ignored number", with_ignored, mean(Some(-100))),
            Case::with_inputs("two axes of rows", with_axes, mean(None)),
            Case::with_inputs("several blocks of classes", operands(4, 2, 1600), mean(Some(3))),
            Case::with_inputs("several blocks of rows", unchecked(operands(1100, 2, 1000)), both).within(2e-5),
            Case::with_inputs("in TF32", operands(40, 24, 72), |x| {
                let options = LinearCrossEntropyOptions { allow_tf32: true, ..LinearCrossEntropyOptions::default() };
                vec![x[0].linear_cross_entropy_rows_with(&x[1], &x[2], options)]
            })
            .within(5e-3),
            Case::with_inputs("a weight in f32", operands(5, 4, 7), |x| {
                vec![x[0].linear_cross_entropy(&x[1].cast(DType::F32), &x[2], None)]
            }),
        ];
        cases.into_iter().map(Case::rounding_inside).collect()
    }
}

impl Kernels for LinearCrossEntropy {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input < 2 || layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        with_types!(linker, X, W => { self.link::<X, W>(linker) });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        cuda::link(self, linker);
        Ok(())
    }
}

impl LinearCrossEntropy {
    /// The results made of all logits.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let logits = x[0].matmul(&x[1].transpose(0, 1));
        logits.trace().apply(CrossEntropy { ignored: self.options.ignored }, &[&logits, &x[2]])
    }

    /// The loss and its gradient in one, if this is its gradient.
    pub(crate) fn with(&self, gradient: &LinearCrossEntropyGradient) -> Option<LinearCrossEntropyWithGradient> {
        (self.options == gradient.options).then_some(LinearCrossEntropyWithGradient { options: self.options })
    }

    fn link<X: Element + Native, W: Element + Native>(&self, linker: &mut Linker<'_>) {
        let (x, weight) = (linker.input(0), linker.input(1));
        let (loss, total) = (linker.output(0).write(), linker.output(1).write());
        let blocks = Blocks::new(&x, &weight);
        let logits = linker.scratch(blocks.scratch());
        let targets = kernel_targets(linker, 2, self.options.ignored);
        let (x, weight) = (matrix::<X>(&x), matrix::<W>(&weight));
        for (rows, classes) in blocks.all() {
            let block = blocks.logits(linker, &x, &weight, &rows, &classes, logits);
            let (loss, total) = (part(loss, &rows), part(total, &rows));
            let (targets, columns) = (rows_of(targets, &rows), blocks.columns(&classes));
            linker.job(kernel::CrossEntropy::new(linker.isa(), block.as_in(), targets, columns, loss, total));
        }
    }
}

impl Operation for LinearCrossEntropyGradient {
    fn name(&self) -> &'static str {
        "linear_cross_entropy_gradient"
    }

    fn attributes(&self) -> String {
        self.options.attributes()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rows = check(inputs)?;
        check_rows(&inputs[3..5], &rows)?;
        Ok(inputs[..2].to_vec())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through_blocks_instead(|x, follow| self.in_blocks(x, tangents::BLOCK_LOGITS, follow))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::BlockedProducts,
            operations: logits_of(inputs) * (6 * inputs[0].shape[1] as u64 + 18),
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::targets(2, inputs[1].shape[0], self.options.ignored))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![1]
    }

    fn form(&self) -> Form<'_> {
        Form::LossGradient(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (x, weight) = (inputs[0], inputs[1]);
        let logits = logits(x, weight);
        let op = CrossEntropyGradient { ignored: self.options.ignored };
        let ty = TensorType::new(DType::F32, &logits.shape);
        let g = op.reference(&[&logits, inputs[2], inputs[3], inputs[4]], &[ty]).remove(0);
        let (mut dx, mut dweight) = (Reals::zeros(&outputs[0]), Reals::zeros(&outputs[1]));
        for (row, g) in g.rows().enumerate() {
            for (class, g) in g.iter().enumerate() {
                for channel in 0..x.shape[1] {
                    *dx.at_mut(&[row, channel]) += g * weight.at(&[class, channel]);
                    *dweight.at_mut(&[class, channel]) += g * x.at(&[row, channel]);
                }
            }
        }
        vec![dx, dweight]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let gradient = |ignored: Option<i32>| {
            move |x: &[Tensor]| {
                let options = LinearCrossEntropyOptions { ignored, ..LinearCrossEntropyOptions::default() };
                x[0].trace().apply(LinearCrossEntropyGradient { options }, &x.iter().collect::<Vec<_>>())
            }
        };
        // The log-sum-exp need not be that of the logits; it must only be large enough.
        let with_rows = |rows: usize, channels: usize, classes: usize| {
            let mut inputs = operands(rows, channels, classes);
            inputs.extend([CaseInput::uniform([rows], 3.0, 5.0), CaseInput::uniform([rows], -2.0, 2.0)]);
            inputs
        };
        let cases = vec![
            Case::with_inputs("small", with_rows(5, 4, 7), gradient(None)),
            Case::with_inputs("single numbers", with_rows(1, 1, 1), gradient(None)),
            Case::with_inputs("no rows", with_rows(0, 3, 4), gradient(None)),
            Case::with_inputs("an ignored class", with_rows(8, 3, 5), gradient(Some(2))),
            Case::with_inputs("classes that no multiple divides", with_rows(5, 3, 131), gradient(None)),
            Case::with_inputs("several blocks of classes", with_rows(3, 1, 1600), gradient(None)).within(2e-5),
            Case::with_inputs("several blocks of rows", unchecked(with_rows(1100, 2, 1000)), gradient(None))
                .within(2e-5),
        ];
        cases.into_iter().map(Case::rounding_inside).collect()
    }
}

impl Kernels for LinearCrossEntropyGradient {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input < 2 || layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let of_rows = (linker.input(3).read(), linker.input(4).read());
        with_types!(linker, X, W => { self.link::<X, W>(linker, of_rows, 0) });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        cuda::link_gradient(self, linker);
        Ok(())
    }
}

impl LinearCrossEntropyGradient {
    /// Builds the jobs, whose results are those from the number `first` on, from each row's log-sum-exp and gradient.
    fn link<X: Element + Native, W: Element + Native>(
        &self,
        linker: &mut Linker<'_>,
        (total, row_gradient): (In<f32>, In<f32>),
        first: usize,
    ) {
        let (x, weight) = (linker.input(0), linker.input(1));
        let blocks = Blocks::new(&x, &weight);
        let logits = linker.scratch(blocks.scratch());
        let (dx, dweight) = (Sums::new(linker, first), Sums::new(linker, first + 1));
        let targets = kernel_targets(linker, 2, self.options.ignored);
        let (x, weight) = (matrix::<X>(&x), matrix::<W>(&weight));
        for (rows, classes) in blocks.all() {
            let block = blocks.logits(linker, &x, &weight, &rows, &classes, logits);
            let (targets, columns) = (rows_of(targets, &rows), blocks.columns(&classes));
            let (total, row_gradient) = (part_in(total, &rows), part_in(row_gradient, &rows));
            let job = kernel::CrossEntropyGradient::new;
            linker.job(job(linker.isa(), block.as_in(), targets, columns, total, row_gradient, block));
            let g = Matrix { elements: block.as_in(), row_stride: classes.len(), column_stride: 1 };
            let sizes = Sizes { rows: rows.len(), columns: blocks.channels, depth: classes.len() };
            let to = dx.matrix.rows_from(rows.start);
            let job = Gemm::new(linker.isa(), sizes, g, weight.rows_from(classes.start), to);
            let job = job.in_bf16(X::DTYPE == DType::Bf16).workers(linker.workers());
            linker.job(job.accumulating(classes.start > 0));
            let sizes = Sizes { rows: classes.len(), columns: blocks.channels, depth: rows.len() };
            let to = dweight.matrix.rows_from(classes.start);
            let job = Gemm::new(linker.isa(), sizes, g.transposed(), x.rows_from(rows.start), to);
            linker.job(job.workers(linker.workers()).accumulating(rows.start > 0 || linker.accumulates(first + 1)));
        }
        dx.store(linker);
        dweight.store(linker);
    }

    /// The results made of all logits.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let logits = x[0].matmul(&x[1].transpose(0, 1));
        let op = CrossEntropyGradient { ignored: self.options.ignored };
        let g = logits.trace().apply_one(op, &[&logits, &x[2], &x[3], &x[4]]);
        let types = ProductTypes::new(g.dtype(), x[1].dtype());
        vec![g.matmul(&x[1]), g.transpose(0, 1).matmul_as(&x[0], types)]
    }
}

/// Compiles the body for the types of x and the weight.
macro_rules! with_types {
    ($linker:ident, $x:ident, $weight:ident => $body:block) => {
        match ($linker.input(0).dtype, $linker.input(1).dtype) {
            (DType::F32, DType::F32) => with_types!(f32, f32, $x, $weight, $body),
            (DType::Bf16, DType::Bf16) => with_types!(bf16, bf16, $x, $weight, $body),
            (DType::Bf16, DType::F32) => with_types!(bf16, f32, $x, $weight, $body),
            (DType::F16, DType::F16) => with_types!(f16, f16, $x, $weight, $body),
            (DType::F16, DType::F32) => with_types!(f16, f32, $x, $weight, $body),
            (other, _) => return Err(Unsupported(other)),
        }
    };
    ($as_x:ty, $as_weight:ty, $x:ident, $weight:ident, $body:block) => {{
        type $x = $as_x;
        type $weight = $as_weight;
        $body
    }};
}
use with_types;

/// How rows and classes are cut into blocks of logits: by their numbers alone, into blocks of nearly one size.
struct Blocks {
    rows: usize,
    channels: usize,
    classes: usize,
    block_rows: usize,
    block_classes: usize,
}

impl Blocks {
    fn new(x: &LinkedOperand, weight: &LinkedOperand) -> Blocks {
        let (rows, channels, classes) = (x.shape()[0], x.shape()[1], weight.shape()[0]);
        let block_classes = kernel::class_block(classes);
        let pieces = rows.div_ceil(BLOCK / block_classes).max(1);
        let block_rows = rows.div_ceil(pieces).next_multiple_of(ROW_MULTIPLE).max(ROW_MULTIPLE);
        Blocks { rows, channels, classes, block_rows, block_classes }
    }

    /// Numbers of the largest block.
    fn scratch(&self) -> usize {
        self.block_rows.min(self.rows) * self.block_classes
    }

    /// Rows and classes of each block. There is one even of no rows, for it sets the weight's gradient to zero.
    fn all(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let (row_blocks, class_blocks) =
            (self.rows.div_ceil(self.block_rows).max(1), self.classes.div_ceil(self.block_classes));
        (0..class_blocks * row_blocks).map(move |index| {
            let rows = chunk(index % row_blocks, self.block_rows, self.rows);
            (rows, chunk(index / row_blocks, self.block_classes, self.classes))
        })
    }

    fn columns(&self, classes: &Range<usize>) -> kernel::Columns {
        kernel::Columns { first: classes.start, count: classes.len(), classes: self.classes }
    }

    /// Adds the job that computes a block of logits, in f32, and says where they lie.
    fn logits<X: Element, W: Element>(
        &self,
        linker: &mut Linker<'_>,
        x: &Matrix<X>,
        weight: &Matrix<W>,
        rows: &Range<usize>,
        classes: &Range<usize>,
        scratch: Out<f32>,
    ) -> Out<f32> {
        let sizes = Sizes { rows: rows.len(), columns: classes.len(), depth: self.channels };
        let block = Out::new(scratch.as_ptr(), rows.len() * classes.len());
        let to = MatrixMut { elements: block, row_stride: classes.len() };
        let weight = weight.rows_from(classes.start).transposed();
        let job = Gemm::new(linker.isa(), sizes, x.rows_from(rows.start), weight, to);
        linker.job(job.workers(linker.workers()));
        block
    }
}

/// Where a gradient is summed in f32: the result itself, or scratch that is rounded to the result at the end.
struct Sums {
    matrix: MatrixMut<f32>,
    result: LinkedOperand,
}

impl Sums {
    fn new(linker: &mut Linker<'_>, output: usize) -> Sums {
        let result = linker.output(output);
        let elements = match result.dtype {
            DType::F32 => result.write(),
            _ => linker.scratch(result.shape().elements()),
        };
        Sums { matrix: MatrixMut { elements, row_stride: result.shape()[1] }, result }
    }

    fn store(self, linker: &mut Linker<'_>) {
        let target = match self.result.dtype {
            DType::Bf16 => OutputElements::Bf16(self.result.write()),
            DType::F16 => OutputElements::F16(self.result.write()),
            _ => return,
        };
        let program = ScalarProgram { instructions: vec![], result: Argument::Input(0) };
        let strides = Layout::dense(self.result.shape()).strides;
        let source = (InputElements::F32(self.matrix.elements.as_in()), strides);
        linker.job(Map::new(linker.isa(), &program, vec![source], target, self.result.shape()));
    }
}

fn matrix<T: Element + Native>(operand: &LinkedOperand) -> Matrix<T> {
    let strides = &operand.layout.strides;
    Matrix { elements: operand.read(), row_stride: strides[0], column_stride: strides[1] }
}

fn part(numbers: Out<f32>, rows: &Range<usize>) -> Out<f32> {
    Out::new(numbers.offset(rows.start).as_ptr(), rows.len())
}

fn part_in<T>(numbers: In<T>, rows: &Range<usize>) -> In<T> {
    In::new(numbers.as_ptr().wrapping_add(rows.start), rows.len())
}

fn rows_of(targets: kernel::Targets, rows: &Range<usize>) -> kernel::Targets {
    kernel::Targets { classes: part_in(targets.classes, rows), ..targets }
}

/// Checks x, weight and targets, and gives the shape of the rows.
fn check(inputs: &[TensorType]) -> Result<Shape, Mismatch> {
    ProductTypes::all(inputs[0].dtype).check(&inputs[..2])?;
    Mismatch::unless_integer(&inputs[2])?;
    let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
    if x.rank() != 2 || weight.rank() != 2 || x[1] != weight[1] {
        let problem = "takes x of [rows, channels] and a weight of [classes, channels]; reshape or transpose one";
        return Err(Mismatch::Shape(problem.to_string()));
    }
    if weight[0] == 0 {
        return Err(Mismatch::Shape("the weight has no rows; there must be a class".to_string()));
    }
    let rows = Shape::from([x[0]]);
    Mismatch::unless_shape("the targets", &inputs[2], &rows)?;
    Ok(rows)
}

/// How many logits there are.
fn logits_of(inputs: &[TensorType]) -> u64 {
    (inputs[0].shape[0] * inputs[1].shape[0]) as u64
}

/// The logits themselves.
fn logits(x: &Reals, weight: &Reals) -> Reals {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let data = x.rows().flat_map(|x| weight.rows().map(move |w| dot(x, w))).collect();
    Reals::new([x.shape[0], weight.shape[0]], data)
}

fn operands(rows: usize, channels: usize, classes: usize) -> Vec<CaseInput> {
    vec![
        CaseInput::uniform([rows, channels], -1.0, 1.0),
        CaseInput::uniform([classes, channels], -1.0, 1.0),
        CaseInput::integers(DType::I32, [rows], classes),
    ]
}

/// Operands too large for finite differences.
fn unchecked(inputs: Vec<CaseInput>) -> Vec<CaseInput> {
    inputs.into_iter().map(CaseInput::without_gradient).collect()
}

impl Tensor {
    /// The mean cross-entropy of the logits `self @ weight^T`, which are never all held: `self` is
    /// [..., channels], the weight [classes, channels], the targets [...]. Rows whose target is the ignored one
    /// do not count.
    #[track_caller]
    pub fn linear_cross_entropy(&self, weight: &Tensor, targets: &Tensor, ignored: Option<i32>) -> Tensor {
        self.linear_cross_entropy_rows(weight, targets, ignored).mean_loss(targets, ignored)
    }

    /// As [`Tensor::linear_cross_entropy`], but the loss of each row, in f32: [...].
    #[track_caller]
    pub fn linear_cross_entropy_rows(&self, weight: &Tensor, targets: &Tensor, ignored: Option<i32>) -> Tensor {
        let options = LinearCrossEntropyOptions { ignored, ..LinearCrossEntropyOptions::default() };
        self.linear_cross_entropy_rows_with(weight, targets, options)
    }

    /// As [`Tensor::linear_cross_entropy_rows`], with all that it can be told.
    #[track_caller]
    pub fn linear_cross_entropy_rows_with(
        &self,
        weight: &Tensor,
        targets: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Tensor {
        let (rows, channels) = self.shape().rows_and_columns();
        let x = self.reshape([rows, channels]);
        let flat = targets.reshape([targets.shape().elements()]);
        let losses = self.trace().apply(LinearCrossEntropy { options }, &[&x, weight, &flat]).swap_remove(0);
        losses.reshape(targets.shape())
    }
}
