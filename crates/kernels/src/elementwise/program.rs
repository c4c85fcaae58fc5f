//! A program made ready to run on blocks: dead instructions dropped, a register found for every value.

use super::functions::{self, Loop};
use crate::Isa;
use gradus_scalar::{Argument, ScalarProgram};

/// Where a block of numbers is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Slot {
    /// The block of an operand; its register, where it is not read in place, has the same number.
    Source(usize),
    /// A register.
    Register(usize),
    /// A block filled with a constant.
    Constant(usize),
}

/// One instruction on blocks. The register it writes is none of those it reads.
pub(super) struct Step {
    pub body: Loop,
    pub arguments: [Slot; 3],
    pub to: usize,
}

/// A program on blocks.
pub(super) struct Compiled {
    pub steps: Vec<Step>,
    pub result: Slot,
    /// By the program's operand, its number among those it uses.
    pub sources: Vec<Option<usize>>,
    /// Registers in all; the first are the operands'.
    pub registers: usize,
    pub constants: Vec<f32>,
}

/// The place of each value, and which registers are free.
struct Allocation {
    results: Vec<usize>,
    sources: Vec<Option<usize>>,
    constants: Vec<f32>,
    free: Vec<usize>,
    registers: usize,
}

/// Makes a program ready. The register of an operand that `lasts` holds the same numbers for every block, so it
/// is never used for anything else.
pub(super) fn compile(isa: Isa, program: &ScalarProgram, lasts: &[bool]) -> Compiled {
    let last_uses = last_uses(program, lasts.len());
    let mut used = 0;
    let number = |last_use: &Option<usize>| {
        last_use.map(|_| {
            used += 1;
            used - 1
        })
    };
    let sources: Vec<Option<usize>> = last_uses.inputs.iter().map(number).collect();
    let mut allocation = Allocation { results: vec![], sources, constants: vec![], free: vec![], registers: used };
    let mut steps = vec![];
    for (index, instruction) in program.instructions.iter().enumerate() {
        if last_uses.results[index].is_none() {
            // Nothing reads this result: keep the numbering, compute nothing.
            allocation.results.push(usize::MAX);
            continue;
        }
        let arity = instruction.function.arity();
        // A function of fewer numbers ignores the rest; giving it the first again costs nothing.
        let arguments: [Slot; 3] =
            std::array::from_fn(|at| allocation.place(instruction.arguments[if at < arity { at } else { 0 }]));
        let to = allocation.take();
        allocation.results.push(to);
        steps.push(Step { body: functions::select(instruction.function, isa), arguments, to });
        for (at, place) in arguments[..arity].iter().enumerate() {
            let dies = match instruction.arguments[at] {
                Argument::Input(input) => last_uses.inputs[input] == Some(index) && !lasts[input],
                Argument::Result(result) => last_uses.results[result] == Some(index),
                Argument::Constant(_) => false,
            };
            let (Slot::Source(register) | Slot::Register(register) | Slot::Constant(register)) = *place;
            if dies && !allocation.free.contains(&register) {
                allocation.free.push(register);
            }
        }
    }
    let result = allocation.place(program.result);
    let Allocation { sources, constants, registers, .. } = allocation;
    Compiled { steps, result, sources, registers, constants }
}

impl Allocation {
    fn place(&mut self, argument: Argument) -> Slot {
        match argument {
            Argument::Input(input) => Slot::Source(self.sources[input].expect("a used operand has a register")),
            Argument::Result(result) => Slot::Register(self.results[result]),
            Argument::Constant(number) => {
                let same = |constant: &f32| constant.to_bits() == number.to_bits();
                Slot::Constant(self.constants.iter().position(same).unwrap_or_else(|| {
                    self.constants.push(number);
                    self.constants.len() - 1
                }))
            }
        }
    }

    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.registers - 1
        })
    }
}

/// The last instruction that reads each value; the end of the program for its result; `None` if nothing does.
struct LastUses {
    inputs: Vec<Option<usize>>,
    results: Vec<Option<usize>>,
}

fn last_uses(program: &ScalarProgram, inputs: usize) -> LastUses {
    let count = program.instructions.len();
    let mut uses = LastUses { inputs: vec![None; inputs], results: vec![None; count] };
    uses.read(program.result, count);
    for (index, instruction) in program.instructions.iter().enumerate().rev() {
        if uses.results[index].is_some() {
            for argument in instruction.used() {
                uses.read(*argument, index);
            }
        }
    }
    uses
}

impl LastUses {
    fn read(&mut self, argument: Argument, at: usize) {
        let last = match argument {
            Argument::Input(input) => &mut self.inputs[input],
            Argument::Result(result) => &mut self.results[result],
            Argument::Constant(_) => return,
        };
        // Instructions are seen last first.
        last.get_or_insert(at);
    }
}
