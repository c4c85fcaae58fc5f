use super::*;
use crate::{Element, Isa, Job, run_alone};
use gradus_scalar::Argument::{self, Constant, Input, Result};
use gradus_scalar::{Function, Instruction, ScalarProgram};

fn instruction(function: Function, arguments: &[Argument]) -> Instruction {
    let mut padded = [Constant(0.0); 3];
    padded[..arguments.len()].copy_from_slice(arguments);
    Instruction { function, arguments: padded }
}

fn one(function: Function) -> ScalarProgram {
    let arguments: Vec<Argument> = (0..function.arity()).map(Input).collect();
    ScalarProgram { instructions: vec![instruction(function, &arguments)], result: Result(0) }
}

/// Numbers between -4 and 4 that do not repeat soon.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729 + 13) % 8009) as f32 / 1001.0 - 4.0).collect()
}

fn dense(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

fn f32_source(x: &[f32]) -> InputElements {
    InputElements::F32(In::new(x.as_ptr(), x.len()))
}

fn f32_target(y: &mut [f32]) -> OutputElements {
    OutputElements::F32(Out::new(y.as_mut_ptr(), y.len()))
}

/// Runs a program on dense f32 operands.
fn run(isa: Isa, program: &ScalarProgram, inputs: &[Vec<f32>], length: usize) -> Vec<f32> {
    let mut y = vec![f32::NAN; length];
    let sources = inputs.iter().map(|x| (f32_source(x), vec![1])).collect();
    run_alone(&Map::new(isa, program, sources, f32_target(&mut y), &[length]));
    y
}

/// What a function means, in f64.
fn meaning(function: Function, x: [f64; 3]) -> f64 {
    use Function::*;
    let [a, b, c] = x;
    let truth = |condition: bool| condition as u8 as f64;
    let gelu_u = (2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a.powi(3));
    let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    match function {
        Neg => -a,
        Abs => a.abs(),
        Exp => a.exp(),
        Log => a.ln(),
        Sqrt => a.sqrt(),
        Tanh => a.tanh(),
        TanhSlope => a.cosh().recip().powi(2),
        Sigmoid => 1.0 / (1.0 + (-a).exp()),
        Erf => erf(a),
        Sin => a.sin(),
        Cos => a.cos(),
        Relu => a.max(0.0),
        Silu => a / (1.0 + (-a).exp()),
        GeluTanh => 0.5 * a * (1.0 + gelu_u.tanh()),
        GeluTanhSlope => (gelu(a + 1e-5) - gelu(a - 1e-5)) / 2e-5,
        GeluErf => 0.5 * a * (1.0 + erf(a / std::f64::consts::SQRT_2)),
        RoundBf16 => bf16::from_f64(a).to_f64(),
        RoundF16 => f16::from_f64(a).to_f64(),
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Div => a / b,
        Minimum => a.min(b),
        Maximum => a.max(b),
        Pow => a.powf(b),
        Less => truth(a < b),
        LessEqual => truth(a <= b),
        Equal => truth(a == b),
        NotEqual => truth(a != b),
        Select => [c, b][(a != 0.0) as usize],
    }
}

/// The error function by Simpson's rule.
fn erf(x: f64) -> f64 {
    let (steps, density) = (400, |t: f64| (-t * t).exp());
    let h = x / steps as f64;
    let inner: f64 = (1..steps).map(|i| density(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (density(0.0) + inner + density(x)) * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn every_function_at_every_size_and_level() {
    for function in Function::ALL {
        for length in [1, 5, 16, 513] {
            let mut inputs: Vec<Vec<f32>> = (0..function.arity()).map(|seed| numbers(length, seed)).collect();
            if matches!(function, Function::Less | Function::Equal | Function::Select) {
                inputs[0][0] = 0.0;
                inputs[1][0] = 0.0;
            }
            let baseline = run(Isa::Baseline, &one(function), &inputs, length);
            for (index, &got) in baseline.iter().enumerate() {
                let x = std::array::from_fn(|at| inputs.get(at).map_or(0.0, |input| input[index] as f64));
                let want = meaning(function, x);
                let close = (got as f64 - want).abs() <= 1e-6 * want.abs().max(0.5);
                assert!(close || (got.is_nan() && want.is_nan()), "{function:?} of {x:?}: {got} is not {want}");
            }
            for isa in Isa::available() {
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>();
                assert!(bits(&run(isa, &one(function), &inputs, length)) == bits(&baseline), "{function:?} on {isa}");
            }
        }
    }
}

#[test]
fn nan_propagates() {
    for function in Function::ALL {
        if function >= Function::Less {
            continue;
        }
        for at in 0..function.arity() {
            let mut inputs = vec![vec![0.5; 3]; function.arity()];
            inputs[at][1] = f32::NAN;
            let y = run(Isa::detect(), &one(function), &inputs, 3);
            let found: Vec<bool> = y.iter().map(|y| y.is_nan()).collect();
            assert_eq!(found, [false, true, false], "{function:?}, argument {at}");
        }
    }
}

/// `((x0 * x1 + 2) * x0 - x2) / (x1 * x1 + 2)`, with a result nobody reads and one read late.
fn chain() -> ScalarProgram {
    use Function::*;
    let instructions = vec![
        instruction(Mul, &[Input(1), Input(1)]),
        instruction(Mul, &[Input(0), Input(1)]),
        instruction(Exp, &[Result(1)]),
        instruction(Add, &[Result(1), Constant(2.0)]),
        instruction(Mul, &[Result(3), Input(0)]),
        instruction(Sub, &[Result(4), Input(2)]),
        instruction(Add, &[Result(0), Constant(2.0)]),
        instruction(Div, &[Result(5), Result(6)]),
        instruction(Neg, &[Result(7)]),
    ];
    ScalarProgram { instructions, result: Result(7) }
}

fn chain_of(x: f32, y: f32, z: f32) -> f32 {
    ((x * y + 2.0) * x - z) / (y * y + 2.0)
}

#[test]
fn chains_over_several_parts_and_over_their_operands() {
    for isa in Isa::available() {
        for length in [1, 17, 512, 20_000, 16_384 * 2 + 16] {
            let inputs: Vec<Vec<f32>> = (0..3).map(|seed| numbers(length, seed)).collect();
            let want: Vec<f32> = (0..length).map(|i| chain_of(inputs[0][i], inputs[1][i], inputs[2][i])).collect();
            assert_eq!(run(isa, &chain(), &inputs, length), want);
            for over in 0..3 {
                let mut inputs = inputs.clone();
                let pointer = inputs[over].as_mut_ptr();
                let source = |index: usize| match index == over {
                    true => InputElements::F32(In::new(pointer.cast_const(), length)),
                    false => f32_source(&inputs[index]),
                };
                let sources = (0..3).map(|index| (source(index), vec![1])).collect();
                run_alone(&Map::new(isa, &chain(), sources, OutputElements::F32(Out::new(pointer, length)), &[length]));
                assert_eq!(inputs[over], want, "over operand {over}");
            }
        }
    }
}

/// Programs of any form: values read often, late or never, over blocks that are whole and not.
#[test]
fn random_programs_equal_their_meaning_to_the_bit() {
    use Function::*;
    let mut state = 1u32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    for round in 0..300 {
        let count = 1 + random(9);
        let mut argument = |earlier: usize| match random(if earlier == 0 { 3 } else { 6 }) {
            0 => Constant(random(4) as f32 * 0.75),
            1 | 2 => Input(random(3)),
            _ => Result(random(earlier)),
        };
        let functions = [Add, Sub, Mul, Maximum, Less, Select, Neg, Relu];
        let instructions: Vec<Instruction> = (0..count)
            .map(|index| instruction(functions[(round + index * 3) % 8], &[0; 3].map(|_| argument(index))))
            .collect();
        let program = ScalarProgram { instructions, result: argument(count) };
        let length = [7, 600, 1024][round % 3];
        let inputs: Vec<Vec<f32>> = (0..3).map(|seed| numbers(length, seed)).collect();
        let mut repeated = numbers(1, 9);
        repeated.resize(length, repeated[0]);
        let evaluated = |index: usize| {
            let mut results: Vec<f32> = vec![];
            let value = |argument: Argument, results: &[f32]| match argument {
                Input(2) => repeated[index],
                Input(input) => inputs[input][index],
                Result(result) => results[result],
                Constant(number) => number,
            };
            for instruction in &program.instructions {
                let x = instruction.arguments.map(|argument| value(argument, &results) as f64);
                results.push(meaning(instruction.function, x) as f32);
            }
            value(program.result, &results)
        };
        let want: Vec<f32> = (0..length).map(evaluated).collect();
        let mut got = vec![f32::NAN; length];
        let strides = [vec![1], vec![1], vec![0]];
        let sources = [&inputs[0], &inputs[1], &repeated].map(|x| f32_source(x)).into_iter().zip(strides).collect();
        run_alone(&Map::new(Isa::detect(), &program, sources, f32_target(&mut got), &[length]));
        assert_eq!(got, want, "{program:?}");
    }
}

#[test]
fn strides_of_every_kind() {
    let (rows, columns) = (37, 29);
    let shape = [rows, 2, columns];
    let (x, y, z) = (numbers(2 * rows * columns, 1), numbers(columns, 2), numbers(1, 3));
    let sources = || {
        vec![
            (f32_source(&x), vec![1, rows * columns, rows]), // transposed
            (f32_source(&y), vec![0, 0, 1]),                 // a repeated row
            (f32_source(&z), vec![0, 0, 0]),                 // a repeated number
        ]
    };
    for isa in Isa::available() {
        let mut got = vec![0.0; 2 * rows * columns];
        run_alone(&Map::new(isa, &chain(), sources(), f32_target(&mut got), &shape));
        for (index, got) in got.into_iter().enumerate() {
            let (row, half, column) = (index / (2 * columns), index / columns % 2, index % columns);
            assert_eq!(got, chain_of(x[row + half * rows * columns + column * rows], y[column], z[0]));
        }
    }
}

#[test]
fn more_axes_than_two_that_do_not_join() {
    let shape = [3, 4, 5, 6];
    let strides = [1000, 200, 30, 3];
    let x = numbers(3000 + 1000, 1);
    let copy = ScalarProgram { instructions: vec![], result: Input(0) };
    for program in [copy, one(Function::Neg)] {
        let mut got = vec![0.0; 360];
        let sources = vec![(f32_source(&x), strides.to_vec())];
        run_alone(&Map::new(Isa::detect(), &program, sources, f32_target(&mut got), &shape));
        for (index, got) in got.into_iter().enumerate() {
            let at: usize = (0..4).map(|axis| index / dense(&shape)[axis] % shape[axis] * strides[axis]).sum();
            assert_eq!(got.abs(), x[at].abs());
        }
    }
}

#[test]
fn sixteen_bit_operands_and_targets() {
    fn check<T: Element>(source: fn(In<T>) -> InputElements, target: fn(Out<T>) -> OutputElements) {
        for isa in Isa::available() {
            for length in [3, 700, 40_000] {
                let mut x: Vec<T> = numbers(length, 1).into_iter().map(T::from_f32).collect();
                let y = numbers(length, 2);
                let want: Vec<T> = x.iter().zip(&y).map(|(x, y)| T::from_f32(x.to_f32() * y)).collect();
                let pointer = x.as_mut_ptr();
                let sources = vec![(source(In::new(pointer, length)), vec![1]), (f32_source(&y), vec![1])];
                let target = target(Out::new(pointer, length));
                run_alone(&Map::new(isa, &one(Function::Mul), sources, target, &[length]));
                assert!(x.iter().zip(&want).all(|(x, want)| x.to_f32() == want.to_f32()));
            }
        }
    }
    check::<bf16>(InputElements::Bf16, OutputElements::Bf16);
    check::<f16>(InputElements::F16, OutputElements::F16);
}

#[test]
fn copies_and_casts() {
    let copy = ScalarProgram { instructions: vec![], result: Input(0) };
    for isa in Isa::available() {
        // Integers of the same type keep every bit, dense and strided.
        let x: Vec<i32> = (0..40_000).map(|i| i32::MAX - i * 3).collect();
        let mut y = vec![0i32; 40_000];
        let (source, target) = (InputElements::I32(In::new(x.as_ptr(), x.len())), Out::new(y.as_mut_ptr(), y.len()));
        run_alone(&Map::new(isa, &copy, vec![(source, vec![1])], OutputElements::I32(target), &[40_000]));
        assert!(x == y);
        run_alone(&Map::new(isa, &copy, vec![(source, vec![1, 200])], OutputElements::I32(target), &[200, 200]));
        assert!(y.iter().enumerate().all(|(i, &y)| y == x[i / 200 + i % 200 * 200]));

        let x = [f32::NAN, 1e30, -1e30, -2.9, 2.9, -0.0, 0.5, 4e9];
        let (mut signed, mut unsigned) = ([7i32; 8], [7u32; 8]);
        let target = OutputElements::I32(Out::new(signed.as_mut_ptr(), 8));
        run_alone(&Map::new(isa, &copy, vec![(f32_source(&x), vec![1])], target, &[8]));
        let target = OutputElements::U32(Out::new(unsigned.as_mut_ptr(), 8));
        run_alone(&Map::new(isa, &copy, vec![(f32_source(&x), vec![1])], target, &[8]));
        assert_eq!(signed, [0, i32::MAX, i32::MIN, -2, 2, 0, 0, i32::MAX]);
        assert_eq!(unsigned, [0, u32::MAX, 0, 0, 2, 0, 0, 4_000_000_000]);

        // A cast to another type of the same size may happen where the operand lies.
        let mut words: Vec<u32> = (0..1000).collect();
        let pointer = words.as_mut_ptr();
        let (source, target) =
            (InputElements::U32(In::new(pointer, 1000)), OutputElements::F32(Out::new(pointer.cast(), 1000)));
        run_alone(&Map::new(isa, &copy, vec![(source, vec![1])], target, &[1000]));
        assert!(words.iter().enumerate().all(|(i, &word)| f32::from_bits(word) == i as f32));
    }
}

#[test]
fn no_operands_and_no_elements() {
    let constant = ScalarProgram { instructions: vec![], result: Constant(2.5) };
    assert_eq!(run(Isa::detect(), &constant, &[], 1000), vec![2.5; 1000]);
    let power = instruction(Function::Pow, &[Constant(3.0), Constant(2.0)]);
    let power = ScalarProgram { instructions: vec![power], result: Result(0) };
    assert_eq!(run(Isa::detect(), &power, &[], 5), [9.0; 5]);
    let nothing =
        Map::new(Isa::detect(), &one(Function::Neg), vec![(f32_source(&[]), vec![0, 1])], f32_target(&mut []), &[0, 3]);
    assert_eq!(nothing.parts(), 0);
}

#[test]
fn turns_are_counted_however_many_there_are() {
    let mut x: Vec<f32> = (0..600).map(|i| f32::from_bits(0x4900_0000 + i * 0x000d_9f7b)).collect();
    x.extend([f32::MAX, f32::MIN, 2f32.powi(30), -2f32.powi(31), 1e22, 0.5, -3.0]);
    assert!(x.iter().all(|x| x.is_finite()) && x.iter().any(|x| x.abs() > 1e38));
    for isa in Isa::available() {
        for (function, exact) in [(Function::Sin, f64::sin as fn(f64) -> f64), (Function::Cos, f64::cos)] {
            for (x, y) in x.iter().zip(run(isa, &one(function), &[x.clone()], x.len())) {
                let error = (y as f64 - exact(*x as f64)).abs();
                assert!(error <= 1.2e-7, "{function:?} of {x:e} on {isa}: {y}, off by {error:e}");
            }
        }
    }
    let y = run(Isa::detect(), &one(Function::Sin), &[vec![f32::INFINITY, f32::NEG_INFINITY, 1e30]], 3);
    assert_eq!([y[0].is_nan(), y[1].is_nan(), y[2].is_nan()], [true, true, false]);
}
