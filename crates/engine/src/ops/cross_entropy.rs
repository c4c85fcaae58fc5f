//! Cross-entropy of logits with integer targets.

use super::*;
use crate::{Array, DType, Shape};
use gradus_kernels::cross_entropy as kernel;

/// The loss of each row of logits [..., classes] given its target [...], and the log-sum-exp of each row. Rows
/// whose target is the ignored one have no loss and no gradient.
#[derive(Debug)]
pub struct CrossEntropy {
    pub(super) ignored: Option<i32>,
}

/// The gradient of the logits, from (logits, targets, log-sum-exp, gradient of each row's loss).
#[derive(Debug)]
pub struct CrossEntropyGradient {
    pub(super) ignored: Option<i32>,
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn attributes(&self) -> String {
        format!("ignored {:?}", self.ignored)
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rows = check_logits(&inputs[0], &inputs[1])?;
        Ok(vec![TensorType::new(DType::F32, &rows), TensorType::new(DType::F32, &rows)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (logits, targets, total) = (&at.inputs[0], &at.inputs[1], &at.outputs[1]);
        let mut gradient = None;
        if at.has_gradient(0) {
            let op = CrossEntropyGradient { ignored: self.ignored };
            gradient = Some(logits.trace().apply_one(op, &[logits, targets, total, &at.gradient(0)]));
        }
        if at.has_gradient(1) {
            let share = softmax(logits, total) * as_column(&at.gradient(1));
            let share = share.cast(logits.dtype());
            gradient = Some(match gradient {
                Some(gradient) => gradient + share,
                None => share,
            });
        }
        vec![gradient, None]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let (logits, targets, total) = (&at.inputs[0], &at.inputs[1], &at.outputs[1]);
        let Some(tangent) = at.tangent(0).map(|tangent| tangent.cast(DType::F32)) else { return vec![None, None] };
        let op = CrossEntropyGradient { ignored: self.ignored };
        let slope = logits.trace().apply_one(op, &[logits, targets, total, &total.ones_like()]);
        let along = |slope: Tensor| Some((slope * &tangent).sum(&[-1]));
        vec![along(slope.cast(DType::F32)), along(softmax(logits, total))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::Elements,
            operations: 18 * inputs[0].shape.elements() as u64,
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::targets(1, inputs[0].shape.rows_and_columns().1, self.ignored))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let totals: Vec<f64> = inputs[0].rows().map(log_sum_exp).collect();
        let ignored = self.ignored.map(|ignored| number(ignored, &inputs[1].data));
        let loss = |((logits, total), target): ((&[f64], &f64), &f64)| match Some(*target) == ignored {
            true => 0.0,
            false => total - logits.get(*target as usize).copied().unwrap_or(f64::NAN),
        };
        let losses = inputs[0].rows().zip(&totals).zip(&inputs[1].data).map(loss).collect();
        vec![Reals::new(&outputs[0].shape, losses), Reals::new(&outputs[1].shape, totals)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let rows = |ignored: Option<i32>| move |x: &[Tensor]| vec![x[0].cross_entropy_rows(&x[1], ignored)];
        let both = |x: &[Tensor]| x[0].trace().apply(CrossEntropy { ignored: None }, &[&x[0], &x[1]]);
        let mean = |ignored: Option<i32>| move |x: &[Tensor]| vec![x[0].cross_entropy(&x[1], ignored)];
        let all_ignored = || vec![CaseInput::uniform([3, 4], -2.0, 2.0), targets(DType::I32, &[-1.0, -1.0, -1.0])];
        vec![
            Case::with_inputs("rows", pair(&[5, 7], DType::I32), rows(None)),
            Case::with_inputs("one class", pair(&[3, 1], DType::U32), rows(None)),
            Case::with_inputs("one row without axes", pair(&[6], DType::I32), rows(None)),
            Case::with_inputs("no rows", pair(&[0, 4], DType::I32), rows(None)),
            Case::with_inputs("both results", pair(&[4, 9], DType::U32), both),
            Case::with_inputs("two axes of rows", pair(&[2, 3, 5], DType::I32), mean(None)),
            Case::with_inputs("an ignored class", pair(&[9, 4], DType::U32), mean(Some(2))),
            Case::with_inputs("an ignored number", with_ignored(), mean(Some(-100))),
            Case::with_inputs("nothing but ignored rows", all_ignored(), mean(Some(-1))),
            Case::with_inputs("several parts", pair(&[70, 300], DType::I32), mean(None)),
        ]
    }
}

impl Kernels for CrossEntropy {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (logits, loss, total) = (linker.input(0), linker.output(0).write(), linker.output(1).write());
        let (_, classes) = logits.shape().rows_and_columns();
        let targets = kernel_targets(linker, 1, self.ignored);
        with_float!(logits.dtype, T => {
            let columns = kernel::Columns::all(classes);
            linker.job(kernel::CrossEntropy::<T>::new(linker.isa(), logits.read(), targets, columns, loss, total));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (logits, targets) = (as_rows(linker.input(0)), linker.input(1));
        let rows = gradus_cuda::Logits { logits: &logits, targets: &targets, ignored: self.ignored };
        let (source, threads) = gradus_cuda::cross_entropy(&rows, &linker.output(0), &linker.output(1));
        linker.launch(linker.with_fault(source).launch(logits.shape[0], threads));
        Ok(())
    }
}

impl CrossEntropyGradient {
    /// The results made of plain operations.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let (logits, targets, total, g) = (&x[0], &x[1], &x[2], &x[3]);
        let g = match self.ignored {
            Some(ignored) => g * counted(targets, ignored),
            None => g.clone(),
        };
        let gradient = (softmax(logits, total) - one_hot(targets, logits.size(-1))) * as_column(&g);
        vec![gradient.cast(logits.dtype())]
    }
}

impl Operation for CrossEntropyGradient {
    fn name(&self) -> &'static str {
        "cross_entropy_gradient"
    }

    fn attributes(&self) -> String {
        format!("ignored {:?}", self.ignored)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rows = check_logits(&inputs[0], &inputs[1])?;
        check_rows(&inputs[2..4], &rows)?;
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(18, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::targets(1, inputs[0].shape.rows_and_columns().1, self.ignored))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let ignored = self.ignored.map(|ignored| number(ignored, &inputs[1].data));
        let mut data = Vec::with_capacity(inputs[0].data.len());
        for (row, logits) in inputs[0].rows().enumerate() {
            let (target, total, g) = (inputs[1].data[row], inputs[2].data[row], inputs[3].data[row]);
            let counts = Some(target) != ignored;
            data.extend(logits.iter().enumerate().map(|(class, logit)| match counts {
                true => ((logit - total).exp() - (class as f64 == target) as u8 as f64) * g,
                false => 0.0,
            }));
        }
        vec![Reals::new(&outputs[0].shape, data)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let gradient = |ignored: Option<i32>| {
            move |x: &[Tensor]| x[0].trace().apply(CrossEntropyGradient { ignored }, &x.iter().collect::<Vec<_>>())
        };
        // The log-sum-exp need not be that of the logits; it must only be large enough.
        let with_rows = |mut inputs: Vec<CaseInput>| {
            let rows = inputs[1].ty.shape.clone();
            inputs.extend([CaseInput::uniform(&rows, 3.0, 5.0), CaseInput::uniform(&rows, -2.0, 2.0)]);
            inputs
        };
        vec![
            Case::with_inputs("rows", with_rows(pair(&[5, 7], DType::I32)), gradient(None)),
            Case::with_inputs("one class", with_rows(pair(&[2, 3, 1], DType::U32)), gradient(None)),
            Case::with_inputs("no rows", with_rows(pair(&[0, 4], DType::I32)), gradient(None)),
            Case::with_inputs("an ignored number", with_rows(with_ignored()), gradient(Some(-100))),
            Case::with_inputs("several parts", with_rows(pair(&[70, 300], DType::I32)), gradient(Some(5))),
        ]
    }
}

impl Kernels for CrossEntropyGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (logits, gradient) = (linker.input(0), linker.output(0));
        let (total, row_gradient) = (linker.input(2).read(), linker.input(3).read());
        let (_, classes) = logits.shape().rows_and_columns();
        let targets = kernel_targets(linker, 1, self.ignored);
        with_float!(logits.dtype, T => {
            let (columns, logits, gradient) = (kernel::Columns::all(classes), logits.read::<T>(), gradient.write());
            let job = kernel::CrossEntropyGradient::new;
            linker.job(job(linker.isa(), logits, targets, columns, total, row_gradient, gradient));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (logits, targets) = (as_rows(linker.input(0)), linker.input(1));
        let (total, row_gradient, gradient) = (linker.input(2), linker.input(3), as_rows(linker.output(0)));
        let rows = gradus_cuda::Logits { logits: &logits, targets: &targets, ignored: self.ignored };
        let (source, threads) = gradus_cuda::cross_entropy_gradient(&rows, &total, &row_gradient, &gradient);
        linker.launch(linker.with_fault(source).launch(logits.shape[0], threads));
        Ok(())
    }
}

/// A dense operand as a matrix of rows.
fn as_rows(operand: gradus_cuda::Operand) -> gradus_cuda::Operand {
    let classes = operand.shape[operand.shape.len() - 1];
    let shape = vec![operand.elements() / classes.max(1), classes];
    gradus_cuda::Operand { strides: vec![classes, 1], shape, ..operand }
}

/// Checks logits and targets, and gives the shape of the rows.
fn check_logits(logits: &TensorType, targets: &TensorType) -> Result<Shape, Mismatch> {
    Mismatch::unless_float(logits)?;
    Mismatch::unless_integer(targets)?;
    Mismatch::unless_rank("the logits", logits, 1)?;
    if logits.shape.last() == Some(&0) {
        return Err(Mismatch::Shape("the last axis of the logits is empty; there must be a class".to_string()));
    }
    let rows = logits.shape.without_last(1);
    if targets.shape != rows {
        let problem = format!("targets of shape {} for rows of shape {rows}; reshape the targets", targets.shape);
        return Err(Mismatch::Shape(problem));
    }
    Ok(rows)
}

/// Checks that there is an f32 number for each row.
pub(super) fn check_rows(inputs: &[TensorType], rows: &Shape) -> Result<(), Mismatch> {
    for input in inputs {
        Mismatch::unless_shape("the numbers of the rows", input, rows)?;
        if input.dtype != DType::F32 {
            return Err(Mismatch::DType(format!("the numbers of the rows must be f32, not {}; cast", input.dtype)));
        }
    }
    Ok(())
}

/// An operand as the kernel's targets.
pub(super) fn kernel_targets(linker: &Linker<'_>, input: usize, ignored: Option<i32>) -> kernel::Targets {
    let ignored = ignored.map(|ignored| ignored as u32);
    kernel::Targets { classes: linker.input(input).bits(), ignored, fault: linker.fault() }
}

/// The ignored target as the number that targets of its kind hold: unsigned ones hold a negative one's bits.
fn number(ignored: i32, targets: &[f64]) -> f64 {
    let as_bits = ignored as u32 as f64;
    if targets.contains(&as_bits) { as_bits } else { ignored as f64 }
}

fn log_sum_exp(row: &[f64]) -> f64 {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// With a last axis of size 1.
#[track_caller]
fn as_column(rows: &Tensor) -> Tensor {
    rows.reshape(rows.shape().iter().copied().chain([1]).collect::<Shape>())
}

/// The softmax of logits whose log-sum-exp is known, in f32.
#[track_caller]
fn softmax(logits: &Tensor, total: &Tensor) -> Tensor {
    (logits.cast(DType::F32) - as_column(total)).exp()
}

/// 1 at each row's target, else 0.
#[track_caller]
fn one_hot(targets: &Tensor, classes: usize) -> Tensor {
    let numbers: Vec<f32> = (0..classes).map(|class| class as f32).collect();
    let numbers = Array::new([classes], &numbers).expect("as many numbers as classes");
    as_column(&targets.cast(DType::F32)).equal(&targets.trace().constant(numbers))
}

/// 1 where the target is not the ignored one, else 0.
#[track_caller]
fn counted(targets: &Tensor, ignored: i32) -> Tensor {
    let numbers = targets.cast(DType::F32);
    if targets.dtype() == DType::U32 && ignored < 0 {
        // The bits of a negative number are a large one, which f32 rounds; no class is as large.
        return numbers.less(&numbers.full_like(i32::MAX as f32));
    }
    numbers.not_equal(&numbers.full_like(ignored as f32))
}

/// Targets of one axis.
pub(super) fn targets(dtype: DType, numbers: &[f64]) -> CaseInput {
    let ty = TensorType::new(dtype, [numbers.len()]);
    CaseInput { ty, fill: Fill::Numbers(numbers.to_vec()), differentiable: false }
}

/// Logits of a shape with random targets.
fn pair(shape: &[usize], dtype: DType) -> Vec<CaseInput> {
    let (rows, classes) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    vec![CaseInput::uniform(shape, -2.0, 2.0), CaseInput::integers(dtype, rows, classes)]
}

/// Some rows with an ignored target.
fn with_ignored() -> Vec<CaseInput> {
    vec![CaseInput::uniform([5, 6], -2.0, 2.0), targets(DType::I32, &[0.0, -100.0, 5.0, -100.0, 2.0])]
}

impl Tensor {
    /// The loss of each row of logits [..., classes] given its target [...], in f32; 0 where the target is the
    /// ignored one.
    #[track_caller]
    pub fn cross_entropy_rows(&self, targets: &Tensor, ignored: Option<i32>) -> Tensor {
        self.trace().apply(CrossEntropy { ignored }, &[self, targets]).swap_remove(0)
    }

    /// The mean loss over the rows whose target is not the ignored one.
    #[track_caller]
    pub fn cross_entropy(&self, targets: &Tensor, ignored: Option<i32>) -> Tensor {
        self.cross_entropy_rows(targets, ignored).mean_loss(targets, ignored)
    }

    /// The mean of these losses over the rows whose target is not the ignored one; at least one is taken to be there.
    #[track_caller]
    pub fn mean_loss(&self, targets: &Tensor, ignored: Option<i32>) -> Tensor {
        match ignored {
            Some(ignored) => {
                let count = counted(targets, ignored).sum_all();
                self.sum_all() / count.maximum(&count.full_like(1.0))
            }
            None => self.sum_all() * (1.0 / self.shape().elements().max(1) as f32),
        }
    }
}
