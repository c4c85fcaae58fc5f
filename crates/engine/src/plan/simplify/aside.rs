//! What a program takes of one operand alone, apart from the rest of it.

use crate::DType;
use crate::TensorType;
use crate::graph::Value;
use crate::ops::{Argument, Elementwise, Function, Instruction, ScalarProgram};

/// A program in two: `outer(.., inner(operand), ..)`.
#[derive(Debug)]
pub(super) struct Divided {
    /// Of the operand alone; its numbers are of that one's type.
    pub inner: Elementwise,
    /// Of the same operands, with the numbers of `inner` in place of the operand.
    pub outer: Elementwise,
}

/// A program, with what it takes of one of its operands apart: a function of that alone, which is rounded to the operand's type, so
/// that it can be stored and read again. Nothing, if it reads the operand by itself too.
pub(super) fn divided(program: &Elementwise, inputs: &[Value], operand: Value, ty: &TensorType) -> Option<Divided> {
    let place = inputs.iter().position(|&input| input == operand)?;
    if ty.shape != program.shape || inputs[place + 1..].contains(&operand) {
        return None;
    }
    let instructions = &program.program.instructions;
    let of_operand = of_one(instructions, Argument::Input(place));
    let rounding = rounding(ty.dtype)?;
    let is_end = |&index: &usize| of_operand[index] && instructions[index].function == rounding;
    let end = (0..instructions.len()).rev().find(is_end)?;
    let within = |argument: &Argument| match *argument {
        Argument::Result(index) => of_operand[index],
        argument => argument == Argument::Input(place),
    };
    // What is rounded last is all that the rest reads of it.
    let rest = || instructions.iter().zip(&of_operand).filter(|(_, inner)| !**inner);
    let read = rest().flat_map(|(instruction, _)| instruction.used()).chain([&program.program.result]);
    let plain = read.filter(|argument| within(argument)).all(|argument| *argument == Argument::Result(end));
    let [value, ..] = instructions[end].arguments;
    if !plain || value == Argument::Input(place) {
        return None;
    }
    let inner = part(
        instructions,
        |index| of_operand[index] && index != end,
        value,
        |argument| match argument {
            Argument::Input(_) => Argument::Input(0),
            argument => argument,
        },
    );
    let outer = part(
        instructions,
        |index| !of_operand[index],
        program.program.result,
        |argument| match argument {
            Argument::Result(index) if index == end => Argument::Input(place),
            argument => argument,
        },
    );
    Some(Divided {
        inner: Elementwise { program: inner, input_count: 1, shape: program.shape.clone(), dtype: ty.dtype },
        outer: Elementwise { program: outer, ..program.clone() },
    })
}

/// The function that rounds to a 16-bit type.
fn rounding(dtype: DType) -> Option<Function> {
    match dtype {
        DType::Bf16 => Some(Function::RoundBf16),
        DType::F16 => Some(Function::RoundF16),
        _ => None,
    }
}

/// By instruction: whether it reads an operand, or what is made of it, and constants; nothing else.
fn of_one(instructions: &[Instruction], operand: Argument) -> Vec<bool> {
    let mut of_one: Vec<bool> = vec![];
    for instruction in instructions {
        let is_of_it = |argument: &Argument| match *argument {
            Argument::Result(index) => of_one[index],
            argument => argument == operand,
        };
        let is_constant = |argument: &Argument| matches!(argument, Argument::Constant(_));
        let used = instruction.used();
        let alone =
            used.iter().any(is_of_it) && used.iter().all(|argument| is_of_it(argument) || is_constant(argument));
        of_one.push(alone);
    }
    of_one
}

/// Some of the instructions as a program, with its arguments replaced.
fn part(
    instructions: &[Instruction],
    belongs: impl Fn(usize) -> bool,
    result: Argument,
    replaced: impl Fn(Argument) -> Argument,
) -> ScalarProgram {
    let mut places = vec![usize::MAX; instructions.len()];
    let mut new: Vec<Instruction> = vec![];
    let moved = |argument: Argument, places: &[usize]| match replaced(argument) {
        Argument::Result(index) => Argument::Result(places[index]),
        argument => argument,
    };
    for (index, instruction) in instructions.iter().enumerate().filter(|(index, _)| belongs(*index)) {
        // What is not used may name anything, and is left behind.
        let mut arguments = [Argument::Constant(0.0); 3];
        for (to, &from) in arguments.iter_mut().zip(instruction.used()) {
            *to = moved(from, &places);
        }
        places[index] = new.len();
        new.push(Instruction { function: instruction.function, arguments });
    }
    let result = moved(result, &places);
    ScalarProgram { instructions: new, result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    const UNUSED: Argument = Argument::Constant(0.0);

    fn program(instructions: Vec<Instruction>) -> Elementwise {
        let result = Argument::Result(instructions.len() - 1);
        let program = ScalarProgram { instructions, result };
        Elementwise { program, input_count: 2, shape: Shape::from([4, 8]), dtype: DType::Bf16 }
    }

    fn one(function: Function, first: Argument, second: Argument) -> Instruction {
        Instruction { function, arguments: [first, second, UNUSED] }
    }

    fn divide(program: &Elementwise, dtype: DType) -> Option<Divided> {
        let [g, p] = [0, 1].map(|node| Value { node, output: 0 });
        divided(program, &[g, p], p, &TensorType::new(dtype, [4, 8]))
    }

    #[test]
    fn a_rounded_function_of_one_operand_is_apart() {
        use Argument::{Input, Result};
        let slope = one(Function::GeluTanhSlope, Input(1), UNUSED);
        let rounded = one(Function::RoundBf16, Result(0), UNUSED);
        let times = program(vec![slope, rounded, one(Function::Mul, Input(0), Result(1))]);
        let Divided { inner, outer } = divide(&times, DType::Bf16).expect("a slope, rounded");
        assert_eq!((inner.input_count, inner.program.result), (1, Result(0)));
        assert_eq!(inner.program.instructions, vec![one(Function::GeluTanhSlope, Input(0), UNUSED)]);
        assert_eq!((outer.input_count, outer.program.result), (2, Result(0)));
        assert_eq!(outer.program.instructions, vec![one(Function::Mul, Input(0), Input(1))]);
        assert!(divide(&times, DType::F16).is_none(), "rounded to another type");
    }

    #[test]
    fn what_is_read_by_itself_or_not_rounded_is_not() {
        use Argument::{Input, Result};
        let slope = one(Function::GeluTanhSlope, Input(1), UNUSED);
        let rounded = one(Function::RoundBf16, Result(0), UNUSED);
        let whole = program(vec![slope, one(Function::Mul, Input(0), Result(0))]);
        let both = program(vec![slope, rounded, one(Function::Mul, Input(1), Result(1))]);
        let twice = program(vec![slope, rounded, one(Function::Mul, Result(0), Result(1))]);
        let early = program(vec![
            slope,
            rounded,
            one(Function::Mul, Input(0), Result(1)),
            one(Function::Add, Result(2), Input(1)),
        ]);
        let itself = program(vec![one(Function::RoundBf16, Input(1), UNUSED), one(Function::Mul, Input(0), Result(0))]);
        for program in [whole, both, twice, early, itself] {
            assert!(divide(&program, DType::Bf16).is_none(), "{program:?}");
        }
    }
}
