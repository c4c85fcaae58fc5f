//! Kernels on slices as jobs: what makes them sound whatever the function does.

use super::Linked;
use super::linker::LinkedOperand;
use crate::ops::{Cut, Effect, Lowering, Numbers, NumbersMut, Operation, SliceKernel};
use crate::plan::{Operand, Step};
use crate::{DType, Error, Result, TensorType};
use gradus_kernels::{In, Job, Out, chunk, parts_of};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// Operands, and results, of one operation: what a part is called with stands on the stack.
const MOST: usize = 16;

/// Elements of the first result that a part has at least: more than handing it over takes.
const PART_ELEMENTS: usize = 1 << 14;

/// What a kernel that panicked said.
pub(super) type Panicked = Arc<OnceLock<String>>;

/// A function on slices, cut by rows or not at all.
struct SliceJob {
    /// Lends the kernel for each part.
    op: Arc<dyn Operation>,
    inputs: Vec<Cuttable<In<u8>>>,
    outputs: Vec<Cuttable<Out<u8>>>,
    rows: usize,
    rows_per_part: usize,
    nothing: TensorType,
    panicked: Panicked,
}

/// The bytes of an operand or a result, and how many of them are a row, if it is cut.
struct Cuttable<P> {
    bytes: P,
    ty: TensorType,
    row_bytes: Option<usize>,
}

/// The job of a step, if the step is such that the slices can be lent.
pub(super) fn link(
    kernel: &dyn SliceKernel,
    step: &Step,
    inputs: &[LinkedOperand],
    outputs: &[LinkedOperand],
) -> Result<Linked> {
    let cut = checked_cut(kernel, step)?;
    if overlap(inputs, outputs) {
        return Err(refused(step, OVER_OPERANDS.to_string()));
    }
    let (types, results) = (types(&step.inputs), types(&step.outputs));
    let rows = match &cut {
        Cut::Whole => 1,
        Cut::Rows(_) => results[0].shape[0],
    };
    let row_bytes = |is_cut: bool, ty: &TensorType| is_cut.then(|| ty.bytes() / rows.max(1));
    let lent_input = |(index, (operand, ty)): (usize, (&LinkedOperand, &TensorType))| {
        let is_cut = matches!(&cut, Cut::Rows(operands) if operands.contains(&index));
        Cuttable { bytes: operand.bytes(), ty: ty.clone(), row_bytes: row_bytes(is_cut, ty) }
    };
    let lent_output = |(result, ty): (&LinkedOperand, &TensorType)| Cuttable {
        bytes: result.bytes_mut(),
        ty: ty.clone(),
        row_bytes: row_bytes(cut != Cut::Whole, ty),
    };
    let row_elements = results[0].shape.elements() / rows.max(1);
    let panicked = Panicked::default();
    let job = SliceJob {
        op: step.op.clone(),
        inputs: inputs.iter().zip(&types).enumerate().map(lent_input).collect(),
        outputs: outputs.iter().zip(&results).map(lent_output).collect(),
        rows,
        rows_per_part: PART_ELEMENTS.div_ceil(row_elements.max(1)),
        nothing: TensorType::new(DType::F32, [0]),
        panicked: panicked.clone(),
    };
    Ok(Linked { jobs: vec![Box::new(job)], scratch: 0, panicked: Some(panicked) })
}

const OVER_OPERANDS: &str = "a kernel on slices does not write over its operands; let `in_place` give nothing";

/// How the work of a step is cut, if the step is such that slices can be lent wherever its buffers lie.
pub(super) fn checked_cut(kernel: &dyn SliceKernel, step: &Step) -> Result<Cut> {
    let (types, results) = (types(&step.inputs), types(&step.outputs));
    let cut = kernel.cut(&types);
    match check(step, &cut, &types, &results) {
        Ok(()) => Ok(cut),
        Err(problem) => Err(refused(step, problem)),
    }
}

fn types(operands: &[Operand]) -> Vec<TensorType> {
    operands.iter().map(Operand::ty).collect()
}

fn refused(step: &Step, problem: String) -> Error {
    Error::Parameter { op: step.op.name().to_string(), inputs: types(&step.inputs), problem, at: step.location }
}

/// What must hold for slices to be lent; else what is wrong with the operation.
fn check(step: &Step, cut: &Cut, types: &[TensorType], results: &[TensorType]) -> Result<(), String> {
    if types.len() > MOST || results.len() > MOST || results.is_empty() {
        return Err(format!("a kernel on slices has up to {MOST} operands and 1 to {MOST} results"));
    }
    if let Effect::Faults(_) = step.effect() {
        let remedy = "let `effect` be pure, and look for bad data with an operation before it";
        return Err(format!("a kernel on slices cannot raise a fault; {remedy}"));
    }
    if !step.op.in_place().is_empty() {
        return Err(OVER_OPERANDS.to_string());
    }
    if let Cut::Rows(operands) = cut {
        let rows = results[0].shape.first().copied();
        let has_rows = |ty: &TensorType| rows.is_some() && ty.shape.first().copied() == rows;
        let all = operands.iter().all(|&index| types.get(index).is_some_and(has_rows)) && results.iter().all(has_rows);
        if !all {
            return Err(format!(
                "a kernel cut by the rows of operands {operands:?} and all results finds others there"
            ));
        }
    }
    Ok(())
}

/// Whether a result lies over an operand or another result, whatever the operation said to the planner.
fn overlap(inputs: &[LinkedOperand], outputs: &[LinkedOperand]) -> bool {
    let outs: Vec<Out<u8>> = outputs.iter().map(LinkedOperand::bytes_mut).collect();
    let over_operand = inputs.iter().any(|input| outs.iter().any(|out| input.bytes().overlaps(out)));
    let over_result = outs.iter().enumerate().any(|(at, out)| outs[..at].iter().any(|o| o.as_in().overlaps(out)));
    over_operand || over_result
}

impl Job for SliceJob {
    fn parts(&self) -> usize {
        // A result without elements has nothing to compute.
        if self.outputs.iter().all(|output| output.bytes.is_empty()) {
            0
        } else {
            parts_of(self.rows, self.rows_per_part)
        }
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let rows = chunk(part, self.rows_per_part, self.rows);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let Lowering::Slices(kernel) = self.op.lowering() else {
                panic!("the operation is no longer one on slices")
            };
            let input = |index: usize| match self.inputs.get(index) {
                Some(of) => {
                    // SAFETY: the caller promises that operands are alive and that nothing else writes to them; results
                    // lie apart from them, which `link` has made sure of. No bits of an element type are invalid.
                    let bytes = unsafe { of.bytes.slice(of.range(&rows, of.bytes.len())) };
                    Numbers { ty: &of.ty, bytes }
                }
                None => Numbers { ty: &self.nothing, bytes: &[] },
            };
            let output = |index: usize| match self.outputs.get(index) {
                Some(of) => {
                    // SAFETY: as above; results lie apart from each other, and parts have rows of their own.
                    let bytes = unsafe { of.bytes.slice(of.range(&rows, of.bytes.len())) };
                    NumbersMut { ty: &of.ty, bytes }
                }
                None => NumbersMut { ty: &self.nothing, bytes: &mut [] },
            };
            let inputs: [Numbers<'_>; MOST] = std::array::from_fn(input);
            let mut outputs: [NumbersMut<'_>; MOST] = std::array::from_fn(output);
            kernel.run(&inputs[..self.inputs.len()], &mut outputs[..self.outputs.len()]);
        }));
        if let Err(payload) = outcome {
            // Of several parts that panic, one is told.
            let _ = self.panicked.set(message(payload.as_ref()));
            // What the kernel panicked with may panic once more when it is dropped, past all that catches it.
            std::mem::forget(payload);
        }
    }
}

impl<P> Cuttable<P> {
    /// The bytes of these rows; all of them, if it is not cut.
    fn range(&self, rows: &Range<usize>, bytes: usize) -> Range<usize> {
        match self.row_bytes {
            Some(row) => rows.start * row..rows.end * row,
            None => 0..bytes,
        }
    }
}

/// What a panic says.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_string()
}
