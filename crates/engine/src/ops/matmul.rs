//! Matrix products, with a bias and an activation applied while the result is still in the cache.

use super::*;
use crate::Shape;
use gradus_kernels::gemm as kernel;
pub use gradus_kernels::gemm::Activation;

/// `activation(a @ b + bias)`: `a` is [..., m, k], `b` is [..., k, n], the bias [n]. The leading axes broadcast.
#[derive(Debug)]
pub struct Matmul {
    activation: Activation,
    has_bias: bool,
}

impl Operation for Matmul {
    fn kind(&self) -> OpKind {
        OpKind::Matmul
    }

    fn attributes(&self) -> String {
        let bias = if self.has_bias { "bias" } else { "no bias" };
        format!("{bias}, activation {:?}", self.activation)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let dtype = Mismatch::unless_same_float(inputs)?;
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
        Ok(vec![TensorType::new(dtype, batch.iter().copied().chain([m, n]).collect::<Shape>())])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if self.activation != Activation::None {
            return at.through(|x| vec![activated(&x[0].linear(&x[1], x.get(2)), self.activation)]);
        }
        let (a, b, g) = (&at.inputs[0], &at.inputs[1], &at.gradient(0));
        let a_gradient = at.wants(0).then(|| g.matmul(&b.transpose(-1, -2)).sum_to(&a.shape()));
        let b_gradient = at.wants(1).then(|| match b.shape().rank() {
            // One product as deep as all rows together, rather than a batch of results to be summed.
            2 => rows_joined(a).transpose(0, 1).matmul(&rows_joined(g)),
            _ => a.transpose(-1, -2).matmul(g).sum_to(&b.shape()),
        });
        let mut gradients = vec![a_gradient, b_gradient];
        if self.has_bias {
            gradients.push(at.wants(2).then(|| rows_joined(g).sum(&[0])));
        }
        gradients
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (_, k) = last_two(&inputs[0].shape);
        let finish = self.has_bias as u64 + if self.activation == Activation::None { 0 } else { 20 };
        Cost::per_element(2 * k as u64 + finish, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
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
        vec![meaning(self.activation, Reals::new(&outputs[0].shape, data), &outputs[0])]
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
        for activation in Activation::ALL {
            let shapes: &[&[usize]] = &[&[3, 6], &[6, 5], &[5]];
            cases.push(Case::new(&format!("bias and {activation:?}"), shapes, move |x| {
                vec![x[0].linear_activated(&x[1], Some(&x[2]), activation)]
            }));
        }
        cases.push(Case::new("an activation alone", &[&[2, 3, 6], &[6, 5]], |x| {
            vec![x[0].linear_activated(&x[1], None, Activation::GeluTanh)]
        }));
        cases
    }
}

impl Kernels for Matmul {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input < 2 || layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (a, b, c) = (linker.input(0), linker.input(1), linker.output(0));
        let (depth, columns) = last_two(b.shape());
        let Arrangement { rows, row_stride, batch } = Arrangement::new(&a.layout, &b.layout, c.shape());
        let sizes = kernel::Sizes { rows, columns, depth };
        let bias = self.has_bias.then(|| linker.input(2));
        with_float!(c.dtype, T => {
            let a = kernel::Matrix { elements: a.read::<T>(), row_stride, column_stride: stride(&a.layout, 1) };
            let (row_stride, column_stride) = (stride(&b.layout, 2), stride(&b.layout, 1));
            let b = kernel::Matrix { elements: b.read::<T>(), row_stride, column_stride };
            let c = kernel::MatrixMut { elements: c.write::<T>(), row_stride: columns };
            let job = kernel::Gemm::new(linker.isa(), sizes, a, b, c).batched(&batch);
            linker.job(job.bias(bias.map(|bias| bias.read())).activation(self.activation));
        });
        Ok(())
    }
}

/// How the products of a batch lie, with leading axes taken for further rows of one product where strides allow.
struct Arrangement {
    rows: usize,
    row_stride: usize,
    batch: Vec<kernel::BatchAxis>,
}

impl Arrangement {
    fn new(a: &Layout, b: &Layout, c: &Shape) -> Arrangement {
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
            if rows == 1 {
                row_stride = inner.a_stride;
            } else if inner.a_stride != rows * row_stride {
                break;
            }
            rows *= inner.size;
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

/// As a matrix: all axes but the last are rows.
#[track_caller]
fn rows_joined(x: &Tensor) -> Tensor {
    let (rows, columns) = x.shape().rows_and_columns();
    x.reshape([rows, columns])
}

/// The activation as an element-wise function.
fn function(activation: Activation) -> Option<Function> {
    match activation {
        Activation::None => None,
        Activation::Relu => Some(Function::Relu),
        Activation::GeluTanh => Some(Function::GeluTanh),
        Activation::GeluErf => Some(Function::GeluErf),
        Activation::Silu => Some(Function::Silu),
        Activation::Tanh => Some(Function::Tanh),
        Activation::Sigmoid => Some(Function::Sigmoid),
    }
}

/// The activation as an operation of its own.
#[track_caller]
fn activated(x: &Tensor, activation: Activation) -> Tensor {
    match function(activation) {
        Some(function) => x.trace().function(function, &[x]),
        None => x.clone(),
    }
}

/// What an activation means: what the element-wise function does.
fn meaning(activation: Activation, x: Reals, ty: &TensorType) -> Reals {
    let Some(function) = function(activation) else { return x };
    let instructions = vec![elementwise::Instruction { function, arguments: [Argument::Input(0); 3] }];
    let program = ScalarProgram { instructions, result: Argument::Result(0) };
    let operation = Elementwise { program, input_count: 1, shape: ty.shape.clone(), dtype: ty.dtype };
    operation.reference(&[&x], std::slice::from_ref(ty)).remove(0)
}

impl Tensor {
    /// The matrix product: [..., m, k] with [..., k, n] is [..., m, n]; the leading axes broadcast.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        self.trace().apply_one(Matmul { activation: Activation::None, has_bias: false }, &[self, other])
    }

    /// `self @ weight + bias`, with a weight of `[inputs, outputs]` and a bias of `[outputs]`.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        self.linear_activated(weight, bias, Activation::None)
    }

    /// `activation(self @ weight + bias)` in one pass.
    #[track_caller]
    pub fn linear_activated(&self, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Tensor {
        let mut operands = vec![self, weight];
        operands.extend(bias);
        self.trace().apply_one(Matmul { activation, has_bias: bias.is_some() }, &operands)
    }
}
