//! Sums that go on from earlier ones: gradients gathered over several micro-batches have the bits of the whole batch's.

use super::*;
use crate::DType;
use crate::graph::Value;
use gradus_kernels::copy::{Axis, StridedCopy};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An operation that adds its sums over rows to its last operands. Where kernels sum from the first row to the last,
/// they go on from what those hold, so rows that come in pieces give the bits of all rows at once.
#[derive(Clone, Debug)]
pub struct Accumulation {
    op: Arc<dyn Operation>,
    /// How many operands the operation itself has.
    operands: usize,
    /// Which of its results are sums, for each of which there is a further operand.
    sums: Vec<usize>,
}

impl Accumulation {
    /// That an operation of so many operands goes on.
    pub(crate) fn of(op: Arc<dyn Operation>, operands: usize) -> Accumulation {
        let sums = op.accumulates();
        Accumulation { op, operands, sums }
    }

    /// The operation on rows that goes on, if it is one.
    fn rows(&self) -> Option<&dyn RowOperation> {
        match self.op.form() {
            Form::Rows(rows) => Some(rows),
            _ => None,
        }
    }

    /// The operation that goes on.
    pub fn inner(&self) -> &dyn Operation {
        self.op.as_ref()
    }

    /// How many operands it has besides the earlier sums.
    pub fn operands(&self) -> usize {
        self.operands
    }

    /// Which of its results are sums.
    pub fn sums(&self) -> &[usize] {
        &self.sums
    }

    fn kernels(&self) -> &dyn Kernels {
        own_kernels(self.op.as_ref()).expect("only what has kernels of its own goes on from earlier sums")
    }

    /// The results made of the operation and of sums.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let (operands, earlier) = x.split_at(self.operands);
        let mut results = x[0].trace().apply_shared(self.op.clone(), &operands.iter().collect::<Vec<_>>());
        for (&sum, earlier) in self.sums.iter().zip(earlier) {
            results[sum] = earlier + &results[sum];
        }
        results
    }
}

impl Operation for Accumulation {
    fn name(&self) -> &'static str {
        "accumulation"
    }

    fn attributes(&self) -> String {
        format!("{} {}", self.op.name(), self.op.attributes())
    }

    fn output_count(&self) -> usize {
        self.op.output_count()
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, self.operands + self.sums.len())?;
        let outputs = self.op.outputs(&inputs[..self.operands])?;
        for (&sum, earlier) in self.sums.iter().zip(&inputs[self.operands..]) {
            Mismatch::unless_shape("an earlier sum", earlier, &outputs[sum].shape)?;
            if [earlier.dtype, outputs[sum].dtype] != [DType::F32; 2] {
                return Err(Mismatch::DType("sums go on in f32; cast them".to_string()));
            }
        }
        Ok(outputs)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let cost = self.op.cost(&inputs[..self.operands], outputs);
        Cost { bytes: cost.bytes + Cost::traffic(&inputs[self.operands..], &[]), ..cost }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        // A sum begins with the earlier one: over another operand, that would be lost.
        let own = self.op.in_place().into_iter().filter(|(output, _)| !self.sums.contains(output));
        let over_earlier = self.sums.iter().enumerate().map(|(index, &sum)| (sum, self.operands + index));
        own.chain(over_earlier).collect()
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        self.op.effect(&inputs[..self.operands])
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Accumulation(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let mut results = self.op.reference(&inputs[..self.operands], outputs);
        for (&sum, earlier) in self.sums.iter().zip(&inputs[self.operands..]) {
            results[sum].data.iter_mut().zip(&earlier.data).for_each(|(sum, earlier)| *sum += earlier);
        }
        results
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let onto = |x: &[Tensor], terms: &[Tensor]| {
            let (sums, terms): (Vec<_>, Vec<_>) = x.iter().zip(terms).unzip();
            accumulated(&sums, &terms)
        };
        let types = |x: &Tensor| ProductTypes::new(x.dtype(), DType::F32);
        let in_f32 = |x: &[Tensor]| x.iter().map(|x| x.cast(DType::F32)).collect::<Vec<_>>();
        vec![
            Case::new("a product", &[&[9, 40], &[40, 35], &[9, 35]], move |x| {
                onto(&in_f32(&x[2..]), &[x[0].matmul_as(&x[1], types(&x[0]))])
            }),
            Case::new("a product with a bias", &[&[9, 40], &[40, 35], &[35], &[9, 35]], move |x| {
                let x = in_f32(x);
                onto(&x[3..], &[x[0].linear(&x[1], Some(&x[2]))])
            }),
            Case::new("the gradients of a linear layer", &[&[40, 9], &[40, 35], &[9, 35], &[35]], move |x| {
                let op = Matmul::with_column_sums(types(&x[0]));
                onto(&in_f32(&x[2..]), &x[0].trace().apply(op, &[&x[0].transpose(0, 1), &x[1]]))
            }),
            Case::new("the gradients of a norm", &[&[2, 9, 7], &[7], &[7], &[7], &[7]], move |x| {
                let x = in_f32(x);
                let y = x[0].layer_norm(&x[1], &x[2], 0.1);
                let gradients = crate::gradient(&y.sum_of_squares(&y.all_axes()), &[&x[1], &x[2]]);
                onto(&x[3..], &gradients.unwrap_or_default())
            }),
            Case::with_inputs(
                "the rows of a table",
                {
                    let inputs = [[6, 5], [6, 5]].map(|shape| CaseInput::uniform(shape, -2.0, 2.0));
                    inputs.into_iter().chain([CaseInput::integers(DType::I32, [2, 4], 6)]).collect()
                },
                move |x| {
                    let tables = in_f32(&x[..2]);
                    let rows = tables[0].embedding(&x[2]);
                    let gradients = crate::gradient(&rows.sum_of_squares(&rows.all_axes()), &[&tables[0]]);
                    onto(&tables[1..], &gradients.unwrap_or_default())
                },
            ),
            Case::new("the weights of a convolution", &[&[2, 3, 4, 5], &[4, 3, 3, 2], &[4, 3, 3, 2]], move |x| {
                let x = in_f32(x);
                let y = x[0].conv2d(&x[1], None, Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() });
                let gradients = crate::gradient(&y.sum_of_squares(&y.all_axes()), &[&x[1]]);
                onto(&x[2..], &gradients.unwrap_or_default())
            }),
            Case::new("a sum in order", &[&[3, 5], &[5]], move |x| {
                let x = in_f32(x);
                onto(&x[1..], &[x[0].sum_in_order(&[0])])
            }),
            Case::new("parts of a whole", &[&[3, 4, 2], &[6, 2]], move |x| {
                let x = in_f32(x);
                onto(&x[1..], &[x[0].sum_in_order(&[0]).pad(0, [0, 2], 0.0)])
            }),
        ]
    }
}

/// What the operation takes in, it takes in when it goes on: further operands come before the earlier sums.
impl RowOperation for Accumulation {
    fn reading(&self, input: usize, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(Accumulation::of(self.rows()?.reading(input, dtype)?, self.operands)))
    }

    fn storing(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(Accumulation::of(self.rows()?.storing(dtype)?, self.operands)))
    }

    fn adding(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(Accumulation::of(self.rows()?.adding()?, self.operands + 1)))
    }

    fn copying(&self, dtype: DType) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(Accumulation::of(self.rows()?.copying(dtype)?, self.operands)))
    }

    /// The further sums go on too, from a last operand.
    fn summing(&self) -> Option<Arc<dyn Operation>> {
        Some(Arc::new(Accumulation::of(self.rows()?.summing()?, self.operands)))
    }
}

impl Kernels for Accumulation {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input < self.operands { self.kernels().takes(input, layout) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        for (index, &sum) in self.sums.iter().enumerate() {
            let (earlier, sum) = (linker.input(self.operands + index).read::<f32>(), linker.output(sum).write::<f32>());
            if earlier.as_ptr() != sum.as_ptr().cast_const() {
                let all = Axis { size: sum.len(), from_stride: 1, to_stride: 1 };
                linker.job(StridedCopy::new(linker.isa(), earlier, sum, &[all]));
            }
        }
        linker.let_accumulate(&self.sums);
        self.kernels().cpu(linker)
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        for (index, &sum) in self.sums.iter().enumerate() {
            let (earlier, sum) = (linker.input(self.operands + index), linker.output(sum));
            if earlier.address != sum.address {
                linker.launch(gradus_cuda::copy(&earlier, &sum));
            }
        }
        linker.let_accumulate(&self.sums);
        self.kernels().cuda(linker)
    }
}

/// Each sum with its term added. Where a term is itself a sum over rows, from the first to the last, its operation goes
/// on from the earlier sum: so adding the terms of several batches, one after another, gives the bits of the term of
/// all batches together.
#[track_caller]
pub fn accumulated(sums: &[&Tensor], terms: &[&Tensor]) -> Vec<Tensor> {
    let Some(first) = terms.first() else { return sums.iter().map(|&sum| sum.clone()).collect() };
    let strangers = |tensors: &[&Tensor]| tensors.iter().any(|tensor| !tensor.is_of(first.trace()));
    if sums.len() != terms.len() || strangers(sums) || strangers(terms) {
        let problem = "takes as many sums as terms, all of one trace".to_string();
        let refused = first.parameter_error("accumulated", problem);
        return terms.iter().map(|_| refused.clone()).collect();
    }
    let mut by_node: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, term) in terms.iter().enumerate() {
        let Ok(Value { node, output }) = term.handle() else { return sums.iter().map(|&sum| sum.clone()).collect() };
        by_node.entry(node).or_default().push((output, index));
    }
    let mut results: Vec<Option<Tensor>> = vec![None; terms.len()];
    for (node, mut wanted) in by_node {
        wanted.sort_unstable();
        let earlier: Vec<&Tensor> = wanted.iter().map(|&(_, index)| sums[index]).collect();
        let going_on = going_on(terms[wanted[0].1], node, &wanted, &earlier);
        for &(output, index) in &wanted {
            results[index] = Some(match &going_on {
                Some(outputs) => outputs[output].clone(),
                None => added(sums[index], terms[index]),
            });
        }
    }
    results.into_iter().map(|result| result.expect("every term is an output of a node")).collect()
}

/// The results of a node, going on from earlier sums, if it can do so with just these of its outputs.
#[track_caller]
fn going_on(of: &Tensor, node: usize, wanted: &[(usize, usize)], earlier: &[&Tensor]) -> Option<Vec<Tensor>> {
    let trace = of.trace();
    let node = trace.graph().nodes()[node].clone();
    let op = node.op()?.clone();
    let sums = op.accumulates();
    let same = sums.iter().eq(wanted.iter().map(|(output, _)| output));
    let float = sums.iter().all(|&sum| node.outputs.get(sum).is_some_and(|output| output.dtype == DType::F32));
    if sums.is_empty() || !same || !float || own_kernels(op.as_ref()).is_none() {
        return None;
    }
    let operands: Vec<Tensor> = node.inputs.iter().map(|&input| trace.tensor(input)).collect();
    let all: Vec<&Tensor> = operands.iter().chain(earlier.iter().copied()).collect();
    let op = Arc::new(Accumulation::of(op, operands.len()));
    // It stands for that node, whatever the part of the step that asks for the sums.
    Some(trace.in_part(node.part, || trace.apply_shared(op, &all)))
}

/// A sum with a term added, piece by piece where the term is put together of several.
#[track_caller]
fn added(sum: &Tensor, term: &Tensor) -> Tensor {
    let Some((axis, pieces)) = concat::pieces_of(term) else { return sum + term };
    let sizes: Vec<usize> = pieces.iter().map(|piece| piece.shape()[axis]).collect();
    let sums = sum.split(axis as isize, &sizes);
    let (sums, pieces): (Vec<_>, Vec<_>) = sums.iter().zip(&pieces).unzip();
    Tensor::concat(&accumulated(&sums, &pieces).iter().collect::<Vec<_>>(), axis as isize)
}
