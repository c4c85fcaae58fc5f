//! The functions that element-wise programs are made of: meaning, gradient, cost and cases of each.

use super::*;
use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

/// sqrt(2 / pi), the constant of the tanh form of GELU.
const GELU_SCALE: f64 = FRAC_2_SQRT_PI / SQRT_2;
/// The constant of the cubic term in the tanh form of GELU.
const GELU_CUBIC: f64 = 0.044715;

/// The meaning of a function.
pub(super) fn apply(function: Function, x: &[f64]) -> f64 {
    use Function::*;
    let truth = |condition: bool| condition as u8 as f64;
    match function {
        Neg => -x[0],
        Abs => x[0].abs(),
        Exp => x[0].exp(),
        Log => x[0].ln(),
        Sqrt => x[0].sqrt(),
        Tanh => x[0].tanh(),
        TanhSlope => x[0].cosh().recip().powi(2),
        Sigmoid => 1.0 / (1.0 + (-x[0]).exp()),
        Erf => erf(x[0]),
        Sin => x[0].sin(),
        Cos => x[0].cos(),
        Relu => {
            if x[0] < 0.0 {
                0.0
            } else {
                x[0]
            }
        }
        Silu => x[0] / (1.0 + (-x[0]).exp()),
        GeluTanh => 0.5 * x[0] * (1.0 + gelu_argument(x[0]).tanh()),
        GeluTanhSlope => {
            let t = gelu_argument(x[0]).tanh();
            let inner = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * x[0] * x[0]);
            0.5 * (1.0 + t) + 0.5 * x[0] * (1.0 - t * t) * inner
        }
        GeluErf => 0.5 * x[0] * (1.0 + erf(x[0] / SQRT_2)),
        // The reference does not round: a 16-bit kernel is compared within that type's tolerance.
        RoundBf16 | RoundF16 => x[0],
        Add => x[0] + x[1],
        Sub => x[0] - x[1],
        Mul => x[0] * x[1],
        Div => x[0] / x[1],
        Minimum => {
            if x[0] < x[1] || x[0].is_nan() {
                x[0]
            } else {
                x[1]
            }
        }
        Maximum => {
            if x[0] > x[1] || x[0].is_nan() {
                x[0]
            } else {
                x[1]
            }
        }
        Pow => x[0].powf(x[1]),
        Less => truth(x[0] < x[1]),
        LessEqual => truth(x[0] <= x[1]),
        Equal => truth(x[0] == x[1]),
        NotEqual => truth(x[0] != x[1]),
        Select => {
            if x[0] != 0.0 {
                x[1]
            } else {
                x[2]
            }
        }
    }
}

/// Floating-point operations of one evaluation, roughly: a division counts as four.
pub(super) fn cost(function: Function) -> u64 {
    use Function::*;
    match function {
        Neg | Abs | Relu | Add | Sub | Mul | Minimum | Maximum | Less | LessEqual | Equal | NotEqual | Select => 1,
        RoundBf16 | RoundF16 => 4,
        Sqrt | Div => 4,
        Exp | Log => 16,
        Sin | Cos | Tanh | TanhSlope | Sigmoid | Silu | Erf => 20,
        GeluTanh | GeluTanhSlope | GeluErf => 28,
        Pow => 60,
    }
}

/// An argument of an instruction that is a program by itself.
fn argument(instruction: &Instruction, inputs: &[Tensor], index: usize) -> Tensor {
    match instruction.arguments[index] {
        Argument::Input(input) => inputs[input].clone(),
        Argument::Constant(number) => inputs[0].full_like(number),
        Argument::Result(_) => unreachable!("a program of one instruction has no earlier results"),
    }
}

/// The tangent of the result of a program of one instruction: element by element, what a gradient is multiplied by on its
/// way back, a tangent is on its way there.
pub(super) fn tangent(instruction: &Instruction, at: &Linearization<'_>) -> Option<Tensor> {
    let argument = |index: usize| argument(instruction, at.inputs, index);
    let term = |index: usize| {
        let Argument::Input(input) = instruction.arguments[index] else { return None };
        let tangent = at.tangent(input)?.cast(at.outputs[0].dtype());
        rule(instruction, index, &argument, &at.outputs[0], &tangent)
    };
    at.sum((0..instruction.function.arity()).map(term))
}

/// The gradients of the operands of a program of one instruction.
pub(super) fn gradient(instruction: &Instruction, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
    let argument = |index: usize| argument(instruction, at.inputs, index);
    let mut gradients: Vec<Option<Tensor>> = at.inputs.iter().map(|_| None).collect();
    for index in 0..instruction.function.arity() {
        let Argument::Input(input) = instruction.arguments[index] else { continue };
        if !at.wants(input) {
            continue;
        }
        let Some(gradient) = rule(instruction, index, &argument, &at.outputs[0], &at.gradient(0)) else { continue };
        gradients[input] = Some(match gradients[input].take() {
            Some(earlier) => earlier + gradient,
            None => gradient,
        });
    }
    gradients
}

/// The gradient that flows to one argument; `None` where the function is flat.
fn rule(
    instruction: &Instruction,
    index: usize,
    x: &dyn Fn(usize) -> Tensor,
    y: &Tensor,
    g: &Tensor,
) -> Option<Tensor> {
    use Function::*;
    let function = instruction.function;
    let other_is_fixed = matches!(instruction.arguments[1 - index.min(1)], Argument::Constant(_));
    Some(match (function, index) {
        (Neg, _) => -g,
        (Abs, _) => {
            let zero = x(0).full_like(0.0);
            g * (x(0).greater(&zero) - x(0).less(&zero))
        }
        (Exp, _) => g * y,
        (Log, _) => g / x(0),
        (Sqrt, _) => g * 0.5 / y,
        (Tanh, _) => g * slope_of_tanh(&x(0)),
        (TanhSlope, _) => g * (x(0).tanh() * slope_of_tanh(&x(0)) * -2.0),
        (Sigmoid, _) => g * (y * (1.0 - y)),
        (Erf, _) => g * ((-(x(0) * x(0))).exp() * FRAC_2_SQRT_PI as f32),
        (Sin, _) => g * x(0).cos(),
        (Cos, _) => -(g * x(0).sin()),
        // The result is above zero where the argument is, and is there anyway.
        (Relu, _) => g * y.greater(&y.full_like(0.0)),
        (Silu, _) => {
            let s = x(0).sigmoid();
            g * (&s * (1.0 + x(0) * (1.0 - &s)))
        }
        (GeluTanh, _) => g * y.trace().function(GeluTanhSlope, &[&x(0)]),
        (GeluTanhSlope, _) => g * gelu_tanh_curvature(&x(0)),
        (GeluErf, _) => {
            let density = (x(0) * x(0) * -0.5).exp() * (1.0 / (2.0 * PI).sqrt()) as f32;
            g * ((x(0) * (1.0 / SQRT_2) as f32).erf() * 0.5 + 0.5 + x(0) * density)
        }
        (RoundBf16 | RoundF16, _) => g.clone(),
        (Add, _) | (Sub, 0) => g.clone(),
        (Sub, _) => -g,
        (Mul, _) => g * x(1 - index),
        (Div, 0) => g / x(1),
        (Div, _) => -(g * y / x(1)),
        (Minimum | Maximum, _) if other_is_fixed => {
            let (mine, bound) = (x(index), x(1 - index));
            g * if function == Minimum { mine.less_equal(&bound) } else { mine.greater_equal(&bound) }
        }
        (Minimum | Maximum, _) => {
            // Equal arguments share the gradient.
            let (mine, other) = (x(index), x(1 - index));
            let wins = if function == Minimum { mine.less(&other) } else { mine.greater(&other) };
            g * (wins + mine.equal(&other) * 0.5)
        }
        (Pow, 0) => {
            // At 0^0 it is nothing; no other base is replaced, for there the slope changes with the exponent.
            let (base, exponent) = (x(0), x(1));
            let zero = base.full_like(0.0);
            let corner = base.abs().less(&base.full_like(1e-37)) * exponent.equal(&zero);
            let base = corner.select(&base.full_like(1.0), &base);
            g * (&exponent * base.pow(&(&exponent - 1.0)))
        }
        (Pow, _) => {
            // x^y log(x) tends to 0 with x, where the logarithm does not exist.
            let base = x(0);
            let zero = base.full_like(0.0);
            g * base.greater(&zero).select(&(y * base.greater(&zero).select(&base, &base.full_like(1.0)).log()), &zero)
        }
        (Less | LessEqual | Equal | NotEqual, _) | (Select, 0) => return None,
        (Select, 1) => x(0).select(g, &g.full_like(0.0)),
        (Select, _) => x(0).select(&g.full_like(0.0), g),
    })
}

fn slope_of_tanh(x: &Tensor) -> Tensor {
    x.trace().function(Function::TanhSlope, &[x])
}

/// The second derivative of the tanh form of GELU, made of simpler functions.
fn gelu_tanh_curvature(x: &Tensor) -> Tensor {
    let (scale, cubic) = (GELU_SCALE as f32, GELU_CUBIC as f32);
    let square = &(x * x);
    let argument = &(x * (square * (scale * cubic) + scale));
    let inner = &(square * (3.0 * scale * cubic) + scale);
    slope_of_tanh(argument) * (inner + square * (3.0 * scale * cubic) - x * argument.tanh() * inner * inner)
}

fn gelu_argument(x: f64) -> f64 {
    GELU_SCALE * (x + GELU_CUBIC * x * x * x)
}

/// The error function, by its series near zero and its continued fraction away from it.
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut total, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * total.abs() {
            n += 1.0;
            term *= -x * x / n;
            total += term / (2.0 * n + 1.0);
        }
        return total * FRAC_2_SQRT_PI;
    }
    let square = x * x;
    let fraction = (1..=60).rev().fold(0.0, |below, k| 0.5 * k as f64 / (x.abs() + below));
    x.signum() * (1.0 - (-square).exp() / PI.sqrt() / (x.abs() + fraction))
}

/// The value of a program.
pub(super) fn evaluate(program: &ScalarProgram, inputs: &[f64]) -> f64 {
    let mut results: Vec<f64> = Vec::with_capacity(program.instructions.len());
    let number = |argument: Argument, results: &[f64]| match argument {
        Argument::Input(index) => inputs[index],
        Argument::Result(index) => results[index],
        Argument::Constant(number) => number as f64,
    };
    for instruction in &program.instructions {
        let mut arguments = [0.0; 3];
        for (to, &from) in arguments.iter_mut().zip(instruction.used()) {
            *to = number(from, &results);
        }
        results.push(apply(instruction.function, &arguments));
    }
    number(program.result, &results)
}

/// The program as text that tells any two apart.
pub(super) fn text(program: &ScalarProgram) -> String {
    let argument = |argument: &Argument| match argument {
        Argument::Input(index) => format!("x{index}"),
        Argument::Result(index) => format!("r{index}"),
        // Rust prints the shortest text that reads back as the same number; NaNs are written by their bits.
        Argument::Constant(number) if number.is_nan() => format!("nan:{:x}", number.to_bits()),
        Argument::Constant(number) => format!("{number:?}"),
    };
    let mut text = String::new();
    for (index, instruction) in program.instructions.iter().enumerate() {
        let arguments: Vec<String> = instruction.used().iter().map(argument).collect();
        text += &format!("r{index} = {:?}({}); ", instruction.function, arguments.join(", "));
    }
    text + &argument(&program.result)
}

/// Cases of every function, and of programs as such.
pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Function::ALL.into_iter().flat_map(function_cases).collect();
    cases.push(Case::new("broadcast operands", &[&[2, 1, 3], &[4, 1], &[]], |x| vec![&x[0] * &x[1] - &x[2]]));
    cases.push(Case::new("permuted operand", &[&[3, 4], &[4, 3]], |x| vec![&x[0].transpose(0, 1) + &x[1]]));
    cases.push(Case::new("many elements", &[&[9, 4001]], |x| vec![&x[0] * 0.5 + 1.0]));
    cases.push(Case::new("chain", &[&[5, 7], &[7]], |x| vec![(&x[0] + &x[1]).gelu().tanh() * &x[0]]));
    cases.push(Case::new("clamp and leaky relu", &[&[37]], |x| vec![x[0].clamp(-1.23, 0.77), x[0].leaky_relu(0.1)]));
    cases.push(Case::new("one and none", &[&[1], &[0, 3]], |x| vec![-&x[0], x[1].exp()]));
    cases.push(Case::new("no operands", &[&[2]], |x| vec![x[0].ones_like() * 3.0]));
    cases.push(Case::new("a function of one's own", &[&[5, 7], &[7]], |x| {
        let mish = Tensor::elementwise([&x[0]], |[x]| x * (x.exp() + 1.0).log().tanh());
        let joined = Tensor::elementwise([&mish, &x[1]], |[x, y]| {
            let bent = (1.0 - x * y).sigmoid() / (y * y + 2.0);
            x.less(y).select(bent, -bent + 0.25).maximum(y.constant(-3.0))
        });
        vec![joined]
    }));
    cases.push(Case::new("a function that gives an operand", &[&[3], &[2, 1]], |x| {
        vec![Tensor::elementwise([&x[0], &x[1]], |[_, y]| y)]
    }));
    let integers = CaseInput::integers(DType::I32, [3, 5], 40);
    cases.push(Case::with_inputs("cast of integers", vec![integers], |x| vec![x[0].cast(DType::F32) * 2.0]));
    cases.extend(super::super::masks::cases());
    let halves = CaseInput::filled([4], Fill::Numbers(vec![-2.5, -0.5, 0.5, 7.9])).without_gradient();
    cases.push(Case::with_inputs("cast to integers", vec![halves], |x| vec![x[0].cast(DType::I32)]));
    cases
}

fn function_cases(function: Function) -> Vec<Case> {
    use Function::*;
    let fill = match function {
        Log | Sqrt => Fill::Uniform(0.05, 4.0),
        Abs | Relu => Fill::AwayFromZero(-2.0, 2.0, 0.05),
        _ => Fill::Uniform(-2.0, 2.0),
    };
    let other = match function {
        Minimum | Maximum => Fill::Uniform(2.5, 3.0),
        Div => Fill::AwayFromZero(-2.0, 2.0, 0.3),
        _ => Fill::Uniform(-2.0, 2.0),
    };
    let first = if function == Pow { Fill::Uniform(0.2, 2.0) } else { fill };
    let tolerance = match function {
        RoundBf16 => 5e-3,
        RoundF16 => 1e-3,
        _ => 2e-6,
    };
    let case = |shape: &[usize]| {
        let input = |index: usize| match index {
            // A condition: some elements zero, and no gradient.
            0 if function == Select => CaseInput::integers(DType::F32, shape, 2),
            0 => CaseInput::filled(shape, first.clone()),
            _ => CaseInput::filled(shape, other.clone()),
        };
        let mut inputs: Vec<CaseInput> = (0..function.arity()).map(input).collect();
        if matches!(function, Less | LessEqual | Equal | NotEqual | RoundBf16 | RoundF16) {
            inputs = inputs.into_iter().map(CaseInput::without_gradient).collect();
        }
        let name = format!("{function:?} of {shape:?}");
        Case::with_inputs(&name, inputs, move |x| vec![x[0].trace().function(function, &x.iter().collect::<Vec<_>>())])
            .within(tolerance)
    };
    vec![case(&[]), case(&[3, 1, 7]), case(&[1000])]
}
