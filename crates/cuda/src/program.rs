//! Scalar programs as expressions of a kernel.

use crate::source::number;
use gradus_scalar::{Argument, Function, Instruction, ScalarProgram};
use std::fmt::Write;

/// A device function `NAME(float x0, float x1, …)` that computes the program.
pub fn expression(name: &str, program: &ScalarProgram, operands: usize) -> String {
    let parameters: Vec<String> = (0..operands).map(|operand| format!("float x{operand}")).collect();
    let mut text = format!("__device__ __forceinline__ float {name}({}) {{\n", parameters.join(", "));
    for (index, instruction) in program.instructions.iter().enumerate() {
        writeln!(text, "    const float r{index} = {};", value(instruction)).expect("written to a string");
    }
    writeln!(text, "    return {};\n}}", argument(&program.result)).expect("written to a string");
    text
}

fn argument(argument: &Argument) -> String {
    match *argument {
        Argument::Input(index) => format!("x{index}"),
        Argument::Result(index) => format!("r{index}"),
        Argument::Constant(value) => number(value),
    }
}

fn value(instruction: &Instruction) -> String {
    use Function::*;
    let [a, b, c] = instruction.arguments.map(|each| argument(&each));
    match instruction.function {
        Neg => format!("-{a}"),
        Abs => format!("fabsf({a})"),
        Exp => format!("expf({a})"),
        Log => format!("logf({a})"),
        Sqrt => format!("sqrtf({a})"),
        Tanh => format!("tanhf({a})"),
        TanhSlope => format!("tanh_slope({a})"),
        Sigmoid => format!("sigmoid({a})"),
        Erf => format!("erff({a})"),
        Sin => format!("sinf({a})"),
        Cos => format!("cosf({a})"),
        Relu => format!("({a} < 0.0f ? 0.0f : {a})"),
        Silu => format!("silu({a})"),
        GeluTanh => format!("gelu_tanh({a})"),
        GeluTanhSlope => format!("gelu_tanh_slope({a})"),
        GeluErf => format!("gelu_erf({a})"),
        RoundBf16 => format!("to_float(from_float<bf16>({a}))"),
        RoundF16 => format!("to_float(from_float<f16>({a}))"),
        Add => format!("__fadd_rn({a}, {b})"),
        Sub => format!("__fsub_rn({a}, {b})"),
        Mul => format!("__fmul_rn({a}, {b})"),
        Div => format!("__fdiv_rn({a}, {b})"),
        Minimum => format!("({a} < {b} || {a} != {a} ? {a} : {b})"),
        Maximum => format!("({a} > {b} || {a} != {a} ? {a} : {b})"),
        Pow => format!("powf({a}, {b})"),
        Less => format!("({a} < {b} ? 1.0f : 0.0f)"),
        LessEqual => format!("({a} <= {b} ? 1.0f : 0.0f)"),
        Equal => format!("({a} == {b} ? 1.0f : 0.0f)"),
        NotEqual => format!("({a} != {b} ? 1.0f : 0.0f)"),
        Select => format!("({a} != 0.0f ? {b} : {c})"),
    }
}
