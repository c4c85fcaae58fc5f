//! Matrix products.

mod cuda;
mod fused;
mod shared;

pub use fused::FusedMatmul;
pub use shared::SharedMatmul;

use super::*;
use crate::dtype::Native;
use crate::{DType, Shape};
use gradus_kernels::{Element, bf16, f16, gemm as kernel};

/// `a @ b + bias`: `a` is `[..., m, k]`, `b` is `[..., k, n]`, the bias `[n]`. The leading axes broadcast.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    has_bias: bool,
    types: ProductTypes,
    /// Whether the sums of the columns of `b` are a second result, in f32: the bias's gradient beside the weight's.
    column_sums: bool,
}

/// The element types of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductTypes {
    /// What the operands are multiplied in. Where the machine multiplies bf16, operands in f32 are rounded to it as they
    /// are read; where it does not, and for f16, 16-bit operands are widened instead. Sums are in f32.
    pub computed: DType,
    /// What the result is stored in.
    pub stored: DType,
    /// Whether operands in f32 may be rounded to TF32, 10 bits after the point, by a machine that multiplies it; others
    /// compute in f32. Nothing to products that are not computed in f32.
    pub allow_tf32: bool,
}

impl ProductTypes {
    /// Computed in one type and stored in another.
    pub fn new(computed: DType, stored: DType) -> ProductTypes {
        ProductTypes { computed, stored, allow_tf32: false }
    }

    /// Everything in one type.
    pub fn all(dtype: DType) -> ProductTypes {
        ProductTypes::new(dtype, dtype)
    }

    /// Whether a machine that multiplies TF32 does so here.
    pub fn is_tf32(self) -> bool {
        self.allow_tf32 && self.computed == DType::F32
    }

    pub(super) fn check(self, operands: &[TensorType]) -> Result<(), Mismatch> {
        let fits = |dtype: DType| dtype == self.computed || dtype == DType::F32;
        let other = operands.iter().map(|ty| ty.dtype).chain([self.stored]).find(|&dtype| !fits(dtype));
        match other {
            _ if !self.computed.is_float() => {
                Err(Mismatch::DType(format!("takes floating-point numbers, not {}; cast them", self.computed)))
            }
            Some(other) => Err(Mismatch::DType(format!(
                "computed in {}, takes that and f32, not {other}; cast one of them",
                self.computed
            ))),
            None => Ok(()),
        }
    }
}

impl Matmul {
    /// What its operands are multiplied in, and its result stored in.
    pub fn types(&self) -> ProductTypes {
        self.types
    }

    /// The element type that a machine which does not convert wants operand `input` in: what is multiplied, in the type of
    /// the product.
    pub(crate) fn operand_type(&self, input: usize) -> Option<DType> {
        (input < 2).then_some(self.types.computed)
    }

    /// Whether the library for CUDA reads operand `input` where it lies so.
    pub(crate) fn is_read_by_cuda(&self, input: usize, layout: &Layout) -> bool {
        input >= 2 || cuda::is_read(layout)
    }

    /// Whether a product on CUDA takes a program as its epilogue.
    pub(crate) fn is_followed_on_cuda(&self, epilogue: &Elementwise) -> bool {
        cuda::absorbs(self, epilogue)
    }

    /// Whether a product on CUDA that takes a program as its epilogue gives what another one makes of it too.
    pub(crate) fn gives_aside_on_cuda(&self, epilogue: &Elementwise, aside: &Elementwise) -> bool {
        cuda::gives_aside(self, epilogue, aside)
    }

    /// Whether a product on CUDA sums the columns of what its epilogue makes of it.
    pub(crate) fn sums_columns_on_cuda(&self, epilogue: &Elementwise) -> bool {
        cuda::sums_columns(self, epilogue)
    }

    fn operands(&self) -> usize {
        2 + self.has_bias as usize
    }

    /// The same without the sums of columns, if it has them.
    pub(crate) fn without_column_sums(&self) -> Option<Matmul> {
        self.column_sums.then_some(Matmul { column_sums: false, ..*self })
    }

    /// A product beside which the columns of its second operand are summed.
    pub(super) fn with_column_sums(types: ProductTypes) -> Matmul {
        Matmul { has_bias: false, types, column_sums: true }
    }
}

impl Operation for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn attributes(&self) -> String {
        let ProductTypes { computed, stored, .. } = self.types;
        let tf32 = if self.types.is_tf32() { " (tf32)" } else { "" };
        let bias = if self.has_bias { ", bias" } else { "" };
        let sums = if self.column_sums { ", column sums" } else { "" };
        format!("{computed}{tf32} to {stored}{bias}{sums}")
    }

    fn output_count(&self) -> usize {
        1 + self.column_sums as usize
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, self.operands())?;
        self.types.check(inputs)?;
        Mismatch::unless_rank("the first operand", &inputs[0], 2)?;
        Mismatch::unless_rank("the second operand", &inputs[1], 2)?;
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let (m, k) = last_two(a);
        let (other_k, n) = last_two(b);
        if k != other_k {
            return Err(Mismatch::Shape(format!(
                "rows of {k} numbers cannot be multiplied with columns of {other_k}; transpose or reshape one operand"
            )));
        }
        let Some(batch) = a.without_last(2).broadcast(&b.without_last(2)) else {
            return Err(Mismatch::Shape(format!(
                "the leading axes {} and {} do not broadcast; aligned at the last, sizes must be equal or 1",
                a.without_last(2),
                b.without_last(2)
            )));
        };
        if let Some(bias) = inputs.get(2) {
            Mismatch::unless_shape("the bias", bias, &Shape::from([n]))?;
        }
        if self.column_sums && ((a.rank(), b.rank()) != (2, 2) || m == 0) {
            return Err(Mismatch::Shape("column sums come with one product that has rows".to_string()));
        }
        let product = batch.iter().copied().chain([m, n]).collect::<Shape>();
        let mut outputs = vec![TensorType::new(self.types.stored, product)];
        outputs.extend(self.column_sums.then(|| TensorType::new(DType::F32, [n])));
        Ok(outputs)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if self.column_sums {
            return at.through(|x| vec![x[0].matmul_as(&x[1], self.types), x[1].cast(DType::F32).sum(&[0])]);
        }
        let (a, b, exact) = (&at.inputs[0], &at.inputs[1], at.gradient(0));
        // Rounded once, rather than by every product as it packs.
        let g = &exact.cast(self.types.computed);
        let a_gradient = at.wants(0).then(|| {
            let types = ProductTypes { stored: a.dtype(), ..self.types };
            g.matmul_as(&b.transpose(-1, -2), types).sum_to(&a.shape())
        });
        let types = ProductTypes { stored: b.dtype(), ..self.types };
        let bias_dtype = at.inputs.get(2).map(Tensor::dtype);
        let bias_gradient = bias_dtype.filter(|_| at.wants(2));
        let (b_gradient, bias_gradient) = match (b.shape().rank(), at.wants(1), bias_gradient) {
            // A weight that is looked at the other way round gets its gradient the way it lies.
            (2, true, None) if is_transposed(b) => {
                (Some(rows_joined(g).transpose(0, 1).matmul_as(&rows_joined(a), types).transpose(0, 1)), None)
            }
            // One product as deep as all rows together, rather than a batch of results to be summed.
            (2, true, bias) if b.size(0) > 0 => {
                let op = Matmul { has_bias: false, types, column_sums: bias.is_some() };
                let operands = [&rows_joined(a).transpose(0, 1), &rows_joined(g)];
                let mut results = a.trace().apply(op, &operands).into_iter();
                (results.next(), results.next().zip(bias).map(|(sums, dtype)| sums.cast(dtype)))
            }
            (_, wanted, bias) => {
                let weight = wanted.then(|| a.transpose(-1, -2).matmul_as(g, types).sum_to(&b.shape()));
                (weight, bias.map(|dtype| rows_joined(&exact).cast(DType::F32).sum(&[0]).cast(dtype)))
            }
        };
        let mut gradients = vec![a_gradient, b_gradient];
        gradients.extend(self.has_bias.then_some(bias_gradient));
        gradients
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let [a, b] = [0, 1].map(|input| &at.inputs[input]);
        if self.column_sums {
            // The sums are of the second operand alone; the other product goes on from this one's, so that nothing adds them up.
            let by_first = at.tangent(0).map(|a| a.matmul_as(b, self.types));
            let Some(by_second) = at.tangent(1).map(|b| a.trace().apply(*self, &[a, b])) else {
                return vec![by_first, None];
            };
            let product = match &by_first {
                Some(by_first) => accumulated(&[&by_second[0]], &[by_first]).remove(0),
                None => by_second[0].clone(),
            };
            return vec![Some(product), Some(by_second[1].clone())];
        }
        let bias = if self.has_bias { at.tangent(2) } else { None };
        vec![match (at.tangent(0), at.tangent(1)) {
            (Some(first), Some(second)) => Some(first.linear_as(b, bias, self.types) + a.matmul_as(second, self.types)),
            (Some(first), None) => Some(first.linear_as(b, bias, self.types)),
            (None, Some(second)) => Some(a.linear_as(second, bias, self.types)),
            (None, None) => bias.map(|bias| bias.cast(self.types.stored).broadcast(at.outputs[0].shape())),
        }]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (_, depth) = last_two(&inputs[0].shape);
        let (_, columns) = last_two(&inputs[1].shape);
        let rows = outputs[0].shape.elements() / columns.max(1);
        let cost = Cost::per_element(2 * depth as u64 + self.has_bias as u64, inputs, outputs);
        cost.as_work(Work::Product { rows, columns, depth })
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        // Sums with a bias start from that.
        if self.has_bias { vec![] } else { (0..self.output_count()).collect() }
    }

    fn form(&self) -> Form<'_> {
        Form::Product(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (a, b) = (inputs[0], inputs[1]);
        let ((m, k), (_, n)) = (last_two(&a.shape), last_two(&b.shape));
        let batch = outputs[0].shape.without_last(2);
        let mut data = Vec::with_capacity(outputs[0].shape.elements());
        for index in super::reals::indices(&batch) {
            let a = &a.data[matrix_number(&a.shape, &index) * m * k..][..m * k];
            let b = &b.data[matrix_number(&b.shape, &index) * k * n..][..k * n];
            for row in 0..m {
                for column in 0..n {
                    let sum: f64 = (0..k).map(|step| a[row * k + step] * b[step * n + column]).sum();
                    let bias = inputs.get(2).map_or(0.0, |bias| bias.data[column]);
                    data.push(sum + bias);
                }
            }
        }
        let mut results = vec![Reals::new(&outputs[0].shape, data)];
        if self.column_sums {
            let sum = |column: usize| (0..k).map(|step| b.data[step * n + column]).sum();
            results.push(Reals::new(&outputs[1].shape, (0..n).map(sum).collect()));
        }
        results
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let plain = |name: &str, shapes: &[&[usize]]| Case::new(name, shapes, |x| vec![x[0].matmul(&x[1])]);
        let linear =
            |name: &str, shapes: &[&[usize]]| Case::new(name, shapes, |x| vec![x[0].linear(&x[1], Some(&x[2]))]);
        let mut cases = vec![
            plain("square", &[&[4, 4], &[4, 4]]),
            plain("odd sizes", &[&[13, 7], &[7, 35]]),
            plain("a row", &[&[1, 9], &[9, 5]]),
            plain("a column", &[&[6, 9], &[9, 1]]),
            plain("single numbers", &[&[1, 1], &[1, 1]]),
            plain("of no depth", &[&[3, 0], &[0, 4]]),
            plain("of nothing", &[&[0, 3], &[3, 4]]),
            plain("an empty batch", &[&[0, 2, 3], &[3, 4]]),
            plain("batch of both", &[&[3, 4, 5], &[3, 5, 6]]),
            plain("batch times one matrix", &[&[2, 3, 4, 5], &[5, 6]]),
            plain("one matrix times batch", &[&[4, 5], &[3, 5, 2]]),
            plain("batches that broadcast", &[&[2, 1, 4, 5], &[3, 5, 2]]),
            plain("several tiles", &[&[280, 6], &[6, 300]]).within(2e-5),
            plain("several blocks of the depth", &[&[9, 600], &[600, 40]]).within(5e-5),
            linear("with a bias", &[&[5, 3], &[3, 7], &[7]]),
            linear("with a bias, of no depth", &[&[2, 0], &[0, 3], &[3]]),
            linear("a batch with a bias", &[&[2, 3, 4], &[4, 5], &[5]]),
            Case::new("first transposed", &[&[7, 13], &[7, 5]], |x| vec![x[0].transpose(0, 1).matmul(&x[1])]),
            Case::new("second transposed", &[&[13, 7], &[5, 7]], |x| vec![x[0].matmul(&x[1].transpose(0, 1))]),
            Case::new("both transposed", &[&[7, 13], &[5, 7]], |x| {
                vec![x[0].transpose(0, 1).matmul(&x[1].transpose(0, 1))]
            }),
            Case::new("with itself", &[&[4, 6]], |x| vec![x[0].matmul(&x[0].transpose(0, 1))]),
            Case::new("heads inside rows", &[&[2, 5, 3, 4], &[2, 6, 3, 4]], |x| {
                vec![x[0].transpose(1, 2).matmul(&x[1].permute(&[0, 2, 3, 1]))]
            }),
            Case::new("slices", &[&[6, 10], &[9, 8]], |x| {
                vec![x[0].slice_by(1, 1..10, 2).slice(0, 2..6).matmul(&x[1].slice(0, 3..8).slice_by(1, 0..8, 3))]
            }),
        ];
        cases.extend([
            plain("vector times matrix", &[&[5], &[5, 3]]),
            plain("matrices times vector", &[&[2, 4, 5], &[5]]),
            plain("vector times matrices", &[&[5], &[2, 5, 3]]),
            plain("two vectors", &[&[7], &[7]]),
        ]);
        cases.push(Case::new("with the sums of columns", &[&[7, 40], &[40, 37]], |x| {
            let op = Matmul::with_column_sums(ProductTypes::all(x[0].dtype()));
            x[0].trace().apply(op, &[&x[0], &x[1]])
        }));
        cases.push(Case::new("a first operand and a bias in f32", &[&[9, 6], &[6, 5], &[5]], |x| {
            let types = ProductTypes::all(x[1].dtype());
            let [a, bias] = [&x[0], &x[2]].map(|x| x.cast(DType::F32));
            vec![a.linear_as(&x[1], Some(&bias), types)]
        }));
        cases.push(
            Case::new("a second operand and a result in f32", &[&[9, 600], &[600, 40]], |x| {
                let types = ProductTypes::new(x[0].dtype(), DType::F32);
                vec![x[0].matmul_as(&x[1].cast(DType::F32), types)]
            })
            .within(5e-5),
        );
        // Half a unit in the last of 10 bits for each operand, or a whole one where they are cut off.
        cases.push(
            Case::new("in TF32, with a bias", &[&[24, 64], &[64, 40], &[40]], |x| {
                let types = ProductTypes { allow_tf32: true, ..ProductTypes::all(x[0].dtype()) };
                vec![x[0].linear_as(&x[1], Some(&x[2]), types)]
            })
            .within(3e-3),
        );
        cases.extend(few_rows());
        cases.push(Case::new("both operands in f32", &[&[9, 7], &[7, 40]], |x| {
            let types = ProductTypes::all(x[0].dtype());
            vec![x[0].cast(DType::F32).matmul_as(&x[1].cast(DType::F32), types)]
        }));
        cases
    }
}

/// Products of few rows, which a GPU shares out over the depth too, with all that they may be followed by.
fn few_rows() -> Vec<Case> {
    let case = |name: &str, shapes: &[&[usize]], build: fn(&[Tensor]) -> Tensor| {
        // The gradients are those of other sizes; large ones take long to check.
        let input = |shape: &&[usize]| CaseInput::uniform(shape.to_vec(), -1.0, 1.0).without_gradient();
        Case::with_inputs(name, shapes.iter().map(input).collect(), move |x| vec![build(x)]).within(1e-4)
    };
    vec![
        case("few rows, a depth with a rest", &[&[70, 1032], &[1032, 200], &[200]], |x| {
            x[0].linear(&x[1], Some(&x[2]))
        }),
        case("one row, odd columns of a transposed matrix", &[&[1, 136], &[99, 136]], |x| {
            x[0].matmul(&x[1].transpose(0, 1))
        }),
        case("few rows, a bias in f32, then GELU", &[&[3, 5, 192], &[192, 104], &[104]], |x| {
            x[0].linear_as(&x[1], Some(&x[2].cast(DType::F32)), ProductTypes::all(x[1].dtype())).gelu()
        }),
        case("few rows and a residual in f32", &[&[40, 512], &[512, 96], &[96], &[40, 96]], |x| {
            let [bias, residual] = [&x[2], &x[3]].map(|x| x.cast(DType::F32));
            residual + x[0].linear_as(&x[1], Some(&bias), ProductTypes::new(x[0].dtype(), DType::F32))
        }),
    ]
}

impl Kernels for Matmul {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input < 2 || layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let product = linker.output(0);
        with_operands!(linker, A, B => linker.job(self.gemm::<A, B>(linker, &product, 1, |_| None)?));
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        cuda::link(self, linker, &linker.output(0), cuda::After::default());
        Ok(())
    }
}

/// The epilogue of a product, and whether it is kept besides.
type WithEpilogue = Option<(gradus_kernels::elementwise::Epilogue, bool)>;

/// Runs the block with `A` and `B` standing for the element types of the operands.
macro_rules! with_operands {
    ($linker:expr, $a:ident, $b:ident => $body:expr) => {{
        macro_rules! of {
            ($first:ty, $second:ty) => {{
                type $a = $first;
                type $b = $second;
                $body
            }};
        }
        match ($linker.input(0).dtype, $linker.input(1).dtype) {
            (DType::F32, DType::F32) => of!(f32, f32),
            (DType::Bf16, DType::Bf16) => of!(bf16, bf16),
            (DType::Bf16, DType::F32) => of!(bf16, f32),
            (DType::F32, DType::Bf16) => of!(f32, bf16),
            (DType::F16, DType::F16) => of!(f16, f16),
            (DType::F16, DType::F32) => of!(f16, f32),
            (DType::F32, DType::F16) => of!(f32, f16),
            (other, _) => return Err(Unsupported(other)),
        }
    }};
}
use with_operands;

impl Matmul {
    /// The job, whose product goes to `product`, as one of so many that share their columns. `epilogue` is told how many results
    /// it will get at most at a time.
    fn gemm<A: Native + Element, B: Native + Element>(
        &self,
        linker: &Linker<'_>,
        product: &crate::backend::LinkedOperand,
        lefts: usize,
        epilogue: impl FnOnce(usize) -> WithEpilogue,
    ) -> Result<kernel::Gemm<A, B>, Unsupported> {
        let (a, b) = (linker.input(0), linker.input(1));
        let (depth, columns) = last_two(b.shape());
        let Arrangement { rows, row_stride, batch } =
            Arrangement::new(&a.layout, &b.layout, product.shape(), |_, _| true);
        let sizes = kernel::Sizes { rows, columns, depth };
        let a = kernel::Matrix { elements: a.read::<A>(), row_stride, column_stride: stride(&a.layout, 1) };
        let (row_stride, column_stride) = (stride(&b.layout, 2), stride(&b.layout, 1));
        let b = kernel::Matrix { elements: b.read::<B>(), row_stride, column_stride };
        let sums = self.column_sums.then(|| linker.output(1).write());
        let mut job = with_float!(product.dtype, C => {
            let c = kernel::MatrixMut { elements: product.write::<C>(), row_stride: columns };
            kernel::Gemm::new(linker.isa(), sizes, a, b, c)
        });
        job = job.in_bf16(self.types.computed == DType::Bf16).workers(linker.workers()).sharing(lefts);
        job = job.batched(&batch).column_sums(sums).accumulating(linker.accumulates(0));
        if self.has_bias {
            let bias = linker.input(2);
            job = with_float!(bias.dtype, T => { job.bias(Some(bias.read::<T>())) });
        }
        if let Some((epilogue, kept)) = epilogue(job.width()) {
            job = job.with_epilogue(epilogue, kept);
        }
        Ok(job)
    }
}

/// How the products of a batch lie, with leading axes taken for further rows of one product where strides allow, and the
/// machine.
struct Arrangement {
    rows: usize,
    row_stride: usize,
    batch: Vec<kernel::BatchAxis>,
}

impl Arrangement {
    fn new(a: &Layout, b: &Layout, c: &Shape, allowed: impl Fn(usize, usize) -> bool) -> Arrangement {
        let c_strides = Layout::dense(c).strides;
        let axis = |axis: usize| kernel::BatchAxis {
            size: c[axis],
            a_stride: stride(a, c.rank() - axis),
            b_stride: stride(b, c.rank() - axis),
            c_stride: c_strides[axis],
        };
        let mut batch: Vec<kernel::BatchAxis> = (0..c.rank() - 2).map(axis).filter(|axis| axis.size != 1).collect();
        let (mut rows, mut row_stride) = (last_two(c).0, stride(a, 2));
        while let Some(inner) = batch.last().filter(|inner| inner.b_stride == 0) {
            let stride = if rows == 1 { inner.a_stride } else { row_stride };
            if inner.a_stride != rows * stride || !allowed(rows * inner.size, stride) {
                break;
            }
            (rows, row_stride) = (rows * inner.size, stride);
            batch.pop();
        }
        Arrangement { rows, row_stride, batch }
    }
}

/// The stride of an axis counted from the end; 0 where the axis is not there or is repeated.
fn stride(layout: &Layout, from_end: usize) -> usize {
    match layout.shape.rank().checked_sub(from_end) {
        Some(axis) if layout.shape[axis] > 1 => layout.strides[axis],
        _ => 0,
    }
}

/// The sizes of the last two axes.
fn last_two(shape: &Shape) -> (usize, usize) {
    (shape[shape.rank() - 2], shape[shape.rank() - 1])
}

/// Which matrix of a batch, of this shape, takes part at an index of the broadcast batch.
fn matrix_number(shape: &Shape, index: &[usize]) -> usize {
    let batch = shape.without_last(2);
    let own = &index[index.len() - batch.rank()..];
    own.iter().zip(batch.iter()).fold(0, |number, (&at, &size)| number * size + if size == 1 { 0 } else { at })
}

/// Whether a matrix is another one looked at the other way round.
fn is_transposed(x: &Tensor) -> bool {
    let Ok(value) = x.handle() else { return false };
    let graph = x.trace().graph();
    let node = &graph.nodes()[value.node];
    let Some(Lowering::View(rule)) = node.op().map(|op| op.lowering()) else { return false };
    let (whole, rows) = (Layout::dense(&graph.ty(node.inputs[0]).shape), node.outputs[value.output].shape[0]);
    rule.view(value.output, &whole).is_some_and(|layout| layout.strides == [1, rows])
}

/// As a matrix: all axes but the last are rows.
#[track_caller]
fn rows_joined(x: &Tensor) -> Tensor {
    let (rows, columns) = x.shape().rows_and_columns();
    x.reshape([rows, columns])
}

impl Tensor {
    /// The matrix product: [..., m, k] with [..., k, n] is [..., m, n]; the leading axes broadcast. A vector counts as
    /// one row before, as one column after, which the result does not have.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        self.matmul_as(other, ProductTypes::all(self.dtype()))
    }

    /// The matrix product computed and stored in these types.
    #[track_caller]
    pub fn matmul_as(&self, other: &Tensor, types: ProductTypes) -> Tensor {
        let (is_row, is_column) = (self.shape().rank() == 1, other.shape().rank() == 1);
        let first = if is_row { self.unsqueeze(0) } else { self.clone() };
        let second = if is_column { other.unsqueeze(1) } else { other.clone() };
        let op = Matmul { has_bias: false, types, column_sums: false };
        let product = self.trace().apply_one(op, &[&first, &second]); // [..., m, n]
        let product = if is_column { product.squeeze(-1) } else { product };
        if is_row { product.squeeze(if is_column { -1 } else { -2 }) } else { product }
    }

    /// `self @ weight + bias`, with a weight of `[inputs, outputs]` and a bias of `[outputs]`.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        self.linear_as(weight, bias, ProductTypes::all(self.dtype()))
    }

    /// `self @ weight + bias` computed and stored in these types.
    #[track_caller]
    pub fn linear_as(&self, weight: &Tensor, bias: Option<&Tensor>, types: ProductTypes) -> Tensor {
        let mut operands = vec![self, weight];
        operands.extend(bias);
        let op = Matmul { has_bias: bias.is_some(), types, column_sums: false };
        self.trace().apply_one(op, &operands)
    }
}
