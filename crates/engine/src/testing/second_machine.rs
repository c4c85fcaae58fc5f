//! A machine that is unlike the CPU in everything a planner can ask, over reference arithmetic: what holds on both does
//! not rest on either.

use crate::backend::{Backend, DeviceMemory, Executable, Timing, results};
use crate::graph::{Initial, State};
use crate::ops::{Check, Effect, Elementwise, Form, Matmul, Operation, Reals};
use crate::plan::{Absorption, BufferId, BufferKind, FusionLimits, Machine, Operand, Plan, Reading, Scratch, Step};
use crate::{Array, DType, Error, Layout, Result};
use std::ops::Range;
use std::time::Duration;

/// Buffers start at multiples of 256 bytes; operands are read densely only; nothing is absorbed; products of 16-bit
/// numbers take 16-bit operands; every step has scratch; time is counted in bytes alone. Its memory is full of garbage,
/// and it looks for faults only before the first write of a state.
#[derive(Clone, Copy, Debug)]
pub struct SecondMachine;

/// What its memory holds before anything is written: a NaN in every floating-point type.
const GARBAGE: u8 = 0xFF;

impl Machine for SecondMachine {
    fn alignment(&self) -> usize {
        256
    }

    fn workers(&self) -> usize {
        3
    }

    fn fusion(&self) -> FusionLimits {
        FusionLimits { inputs: 3, instructions: 5 }
    }

    fn absorbs(&self, _product: &Matmul, _epilogue: &Elementwise) -> Absorption {
        Absorption::No
    }

    fn gives_aside(&self, _product: &Matmul, _epilogue: &Elementwise, _aside: &Elementwise) -> bool {
        false
    }

    fn shares_columns(&self, product: &Matmul, _rows: usize) -> bool {
        product.types().computed == DType::F32
    }

    fn holds_logits(&self) -> bool {
        false
    }

    fn multiplies_tf32(&self) -> bool {
        false
    }

    fn takes_in(&self, _op: &dyn Operation) -> bool {
        true
    }

    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading {
        let wanted = product_of(op).filter(|_| input < 2).map_or(dtype, |product| product.types().computed);
        match wanted == dtype && layout.is_dense() {
            true => Reading::AsItLies,
            false => Reading::Copied(wanted),
        }
    }

    fn scratch(&self, step: &Step) -> Result<Scratch> {
        let shared = step.outputs.iter().map(|output| output.ty().bytes()).sum::<usize>() / 3 + 2;
        Ok(Scratch { shared, per_worker: 40 })
    }

    fn seconds(&self, step: &Step) -> f64 {
        1e-5 + step.cost().bytes as f64 * 1e-9
    }
}

/// The product that an operation computes, if it is one.
fn product_of(op: &dyn Operation) -> Option<&Matmul> {
    match op.form() {
        Form::Product(product) => Some(product),
        Form::Accumulation(accumulation) => product_of(accumulation.inner()),
        _ => None,
    }
}

impl Backend for SecondMachine {
    fn name(&self) -> &'static str {
        "second machine"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(None)
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        let mut executable = SecondExecutable { memory: vec![GARBAGE; plan.regions.total()], plan: plan.clone() };
        for (id, buffer) in plan.buffers.iter().enumerate() {
            match &buffer.kind {
                BufferKind::State(State { initial: Initial::Numbers(array), .. }) => {
                    executable.write(id, array.bytes())?
                }
                BufferKind::State(_) => executable.write(id, &vec![0; buffer.bytes()])?,
                _ => {}
            }
        }
        executable.write_constants()?;
        Ok(Box::new(executable))
    }
}

struct SecondExecutable {
    plan: Plan,
    memory: Vec<u8>,
}

impl SecondExecutable {
    fn write_constants(&mut self) -> Result<()> {
        for id in 0..self.plan.buffers.len() {
            if let BufferKind::Constant(array) = self.plan.buffers[id].kind.clone() {
                self.write(id, array.bytes())?;
            }
        }
        Ok(())
    }

    fn range(&self, buffer: BufferId) -> Range<usize> {
        let buffer = &self.plan.buffers[buffer];
        assert!(buffer.bytes() == 0 || buffer.offset.is_multiple_of(256), "a buffer at {}", buffer.offset);
        buffer.offset..buffer.offset + buffer.bytes()
    }

    /// The numbers of an operand, as they lie.
    fn numbers(&self, operand: &Operand) -> Reals {
        let ty = &self.plan.buffers[operand.buffer].ty;
        let whole = Array::from_bytes(ty.clone(), self.memory[self.range(operand.buffer)].to_vec()).unwrap();
        Reals::new(&ty.shape, whole.to_f64()).picked(&operand.layout)
    }

    /// Carries a step out; gives what it found wrong with its data, which it then puts right to go on.
    fn step(&mut self, step: &Step) -> Option<Error> {
        let mut inputs: Vec<Reals> = step.inputs.iter().map(|input| self.numbers(input)).collect();
        let fault = match step.effect() {
            Effect::Faults(check) => fault(step, &check, &mut inputs[check.input()]),
            _ => None,
        };
        // Scratch and results are garbage until they are written, whatever lay there; in place or not.
        for buffer in step.scratch.iter().copied().chain(step.outputs.iter().map(|output| output.buffer)) {
            let range = self.range(buffer);
            self.memory[range].fill(GARBAGE);
        }
        let results = match results(step, &inputs) {
            Ok(results) => results,
            Err(error) => return Some(error),
        };
        for (output, value) in step.outputs.iter().zip(results) {
            let range = self.range(output.buffer);
            self.memory[range].copy_from_slice(Array::from_f64(output.ty(), &value.data).unwrap().bytes());
        }
        fault
    }
}

/// What a check does not let pass; the numbers are made harmless, so that the step can be carried out all the same.
fn fault(step: &Step, check: &Check, numbers: &mut Reals) -> Option<Error> {
    let operand = step.inputs[check.input()].dtype;
    let error = check.error(step.op.name(), operand, check.detail(numbers)?, step.location);
    if let Check::Indices { bound, .. } = check {
        numbers.data.iter_mut().for_each(|index| *index = index.clamp(0.0, (*bound as f64 - 1.0).max(0.0)));
    }
    Some(error)
}

impl Executable for SecondExecutable {
    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()> {
        self.run(routine)?;
        timing.steps.iter_mut().for_each(|time| *time += Duration::from_micros(1));
        Ok(())
    }

    fn run(&mut self, routine: usize) -> Result<()> {
        let plan = self.plan.clone();
        let routine = &plan.routines[routine];
        let first_write = plan.first_write(routine);
        let mut fault = None;
        for (index, step) in routine.steps.iter().enumerate() {
            if index == first_write
                && let Some(fault) = fault
            {
                return Err(fault);
            }
            fault = fault.or(self.step(step));
        }
        fault.map_or(Ok(()), Err)
    }

    fn relink(&mut self, plan: &Plan) -> Result<()> {
        self.memory.truncate(plan.regions.states);
        self.memory.resize(plan.regions.total(), GARBAGE);
        self.plan = plan.clone();
        self.write_constants()
    }

    fn addresses(&self) -> Option<Range<usize>> {
        None
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let range = self.range(buffer);
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(Array::from_f64(operand.ty(), &self.numbers(operand).data).unwrap().bytes());
        Ok(())
    }

    fn look(&self, _buffer: BufferId) -> Option<&[u8]> {
        None
    }

    fn look_mut(&mut self, _buffer: BufferId) -> Option<&mut [u8]> {
        None
    }
}
