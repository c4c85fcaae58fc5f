//! Choosing a token of each row by its logits.

use super::*;
use crate::DType;
use gradus_kernels::sample::{self as kernel, WORD_TOKENS};

/// A token of each row of logits.
#[derive(Debug)]
pub struct Sample;

/// What [`Tensor::sample`] chooses by, besides logits [..., v]. All of it is read when the program runs.
#[derive(Clone, Copy, Debug)]
pub struct SampleInputs<'a> {
    /// Which tokens may be chosen: u32 [v / 32, rounded up], a bit for each, the lowest of a word first.
    pub allowed: &'a Tensor,
    /// Where in the distribution each choice falls: f32 [...], at least 0 and less than 1.
    pub uniform: &'a Tensor,
    /// What logits are divided by: one f32. The likeliest token is taken if it is 0, the first of those.
    pub temperature: &'a Tensor,
    /// Only so many of the likeliest tokens are considered, one at least: an i32. All are if it is v or more.
    pub top_k: &'a Tensor,
    /// Of these, only the likeliest that together have this probability, one at least: an f32. All are if it is 1.
    pub top_p: &'a Tensor,
}

impl Operation for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, 6)?;
        let logits = &inputs[0];
        Mismatch::unless_float(logits)?;
        Mismatch::unless_rank("the logits", logits, 1)?;
        let (rows, tokens) = (&logits.shape[..logits.shape.rank() - 1], logits.shape.rows_and_columns().1);
        if tokens == 0 || i32::try_from(tokens).is_err() {
            return Err(Mismatch::Shape(format!("there are {tokens} tokens to choose from; have 1 to 2^31 - 1")));
        }
        let expected: [(&str, DType, &[usize]); 5] = [
            ("the allowed tokens", DType::U32, &[tokens.div_ceil(WORD_TOKENS)]),
            ("the uniform numbers", DType::F32, rows),
            ("the temperature", DType::F32, &[1]),
            ("top-k", DType::I32, &[1]),
            ("top-p", DType::F32, &[1]),
        ];
        for (input, (what, dtype, shape)) in inputs[1..].iter().zip(expected) {
            if input.dtype != dtype {
                return Err(Mismatch::DType(format!("{what} must be of {dtype}, not {}; cast first", input.dtype)));
            }
            Mismatch::unless_shape(what, input, &shape.into())?;
        }
        Ok(vec![TensorType::new(DType::I32, rows)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.inputs.iter().map(|_| None).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.outputs.iter().map(|_| None).collect()
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let operations = (inputs[0].shape.elements() as u64).saturating_mul(40);
        Cost { work: Work::Elements, operations, bytes: Cost::traffic(inputs, outputs) }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let [logits, allowed, uniform, temperature, top_k, top_p] = inputs else { unreachable!("six operands") };
        let is_allowed = |token: &usize| allowed.data[token / WORD_TOKENS] as u32 >> (token % WORD_TOKENS) & 1 == 1;
        let choice = |(row, &uniform): (&[f64], &f64)| {
            let tokens: Vec<usize> = (0..row.len()).filter(is_allowed).collect();
            choose(row, tokens, uniform, [temperature.data[0], top_k.data[0], top_p.data[0]])
        };
        vec![Reals::new(&outputs[0].shape, logits.rows().zip(&uniform.data).map(choice).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![
            case("one token", [2, 1], Fill::Uniform(-2.0, 2.0), ALL, [1.0, 5.0, 1.0]),
            case("no rows", [0, 4], Fill::Uniform(-2.0, 2.0), ALL, [1.0, 5.0, 1.0]),
            case("all equal", [9, 70], Fill::Numbers(vec![-3.5; 630]), ALL, [0.5, 70.0, 1.0]),
            case("the first few of equals", [9, 70], Fill::Numbers(vec![2.0; 630]), ALL, [1.0, 50.0, 0.3125]),
            case("one allowed", [3, 40], Fill::Distinct, |token| token == 37, [1.0, 40.0, 1.0]),
            case("none allowed", [2, 33], Fill::Distinct, |_| false, [1.0, 40.0, 1.0]),
            case("huge numbers", [1, 5], Fill::Numbers(vec![-3e38, 3e38, 0.0, 3e38, 1e38]), ALL, [2.0, 5.0, 1.0]),
            case("two zeros", [1, 3], Fill::Numbers(vec![-1.0, -0.0, 0.0]), ALL, [0.0, 3.0, 1.0]),
            case("tiny temperature", [3, 9], Fill::Distinct, ALL, [2f64.powi(-100), 9.0, 1.0]),
            case("many tokens", [3, 9001], Fill::Uniform(-2.0, 2.0), ALL, [1.0, 9001.0, 1.0]),
            case("the likeliest of many", [3, 9001], Fill::Uniform(-2.0, 2.0), ALL, [1.0, 700.0, 0.3125]),
        ];
        let most = |token: usize| !token.is_multiple_of(5);
        for settings in [
            [1.0, 300.0, 1.0],
            [0.0, 300.0, 1.0],
            [0.5, 1.0, 1.0],
            [2.0, 7.0, 1.0],
            [1.0, 300.0, 0.6875],
            [1.0, 300.0, 2f64.powi(-20)],
            [3.0, 20.0, 0.40625],
            [1.0, -4.0, 0.0],
        ] {
            cases.push(case(&format!("ties, {settings:?}"), [7, 95], Fill::Below(9), most, settings));
            cases.push(case(&format!("distinct, {settings:?}"), [5, 33], Fill::Distinct, most, settings));
        }
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let rows = bad.iter().flat_map(|&bad| [0.5, 1.0, bad, 2.0]).chain([0.5, 9.0, 1.0, 0.0]).collect();
        cases.push(case("not finite", [4, 4], Fill::Numbers(rows), ALL, [1.0, 4.0, 1.0]));
        let rows = bad.iter().flat_map(|&bad| [0.5, 1.0, bad, 2.0]).collect();
        cases.push(case("not finite, not allowed", [3, 4], Fill::Numbers(rows), |token| token != 2, [1.0, 4.0, 1.0]));
        cases
    }
}

const ALL: fn(usize) -> bool = |_| true;

/// Rows of logits, with numbers from 0 to just below 1 to choose by, and the settings temperature, top-k and top-p.
fn case(name: &str, shape: [usize; 2], logits: Fill, is_allowed: fn(usize) -> bool, settings: [f64; 3]) -> Case {
    let [rows, tokens] = shape;
    let numbers = |dtype: DType, numbers: Vec<f64>| CaseInput {
        ty: TensorType::new(dtype, [numbers.len()]),
        fill: Fill::Numbers(numbers),
        differentiable: false,
    };
    let word = |word: usize| {
        // What lies beyond the last token means nothing.
        let bits = (0..WORD_TOKENS).map(|bit| word * WORD_TOKENS + bit);
        bits.rev().fold(0.0, |bits, token| 2.0 * bits + (token >= tokens || is_allowed(token)) as u8 as f64)
    };
    let uniform = |row: usize| match rows - 1 - row {
        0 => 0.0,
        1 => 1.0 - 2f64.powi(-24),
        // None of them where rows of equal tokens have a boundary.
        row => 0.5 / 128.0 + (row * 37 % 64) as f64 / 64.0,
    };
    let inputs = vec![
        CaseInput::filled(shape, logits).without_gradient(),
        numbers(DType::U32, (0..tokens.div_ceil(WORD_TOKENS)).map(word).collect()),
        numbers(DType::F32, (0..rows).map(uniform).collect()),
        numbers(DType::F32, vec![settings[0]]),
        numbers(DType::I32, vec![settings[1]]),
        numbers(DType::F32, vec![settings[2]]),
    ];
    // Only the logits are tried in other types.
    Case::with_inputs(name, inputs, |x| {
        let [uniform, temperature, top_p] = [2, 3, 5].map(|operand: usize| x[operand].cast(DType::F32));
        let (allowed, top_k) = (&x[1], &x[4]);
        let at = SampleInputs { allowed, uniform: &uniform, temperature: &temperature, top_k, top_p: &top_p };
        vec![x[0].sample(at)]
    })
}

/// The meaning: the choice among these tokens of a row, or -1.
fn choose(row: &[f64], mut tokens: Vec<usize>, uniform: f64, [temperature, top_k, top_p]: [f64; 3]) -> f64 {
    if tokens.is_empty() || tokens.iter().any(|&token| !row[token].is_finite()) {
        return -1.0;
    }
    tokens.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("finite numbers"));
    tokens.truncate(if temperature > 0.0 { top_k.max(1.0) as usize } else { 1 });
    let largest = row[tokens[0]];
    let share = |&token: &usize| if row[token] == largest { 1.0 } else { ((row[token] - largest) / temperature).exp() };
    // The first token at which the sum of shares reaches so much, or the last that has one.
    let reaching = |tokens: &[usize], wanted: &dyn Fn(f64) -> bool| {
        let mut sum = 0.0;
        let found = tokens.iter().position(|token| {
            sum += share(token);
            wanted(sum)
        });
        found.or(tokens.iter().rposition(|token| share(token) > 0.0)).expect("the largest has a share")
    };
    if top_p < 1.0 {
        let enough = top_p * tokens.iter().map(share).sum::<f64>();
        tokens.truncate(reaching(&tokens, &|sum| sum >= enough) + 1);
    }
    tokens.sort();
    let before = uniform * tokens.iter().map(share).sum::<f64>();
    tokens[reaching(&tokens, &|sum| sum > before)] as f64
}

impl Kernels for Sample {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let logits = linker.input(0);
        let (_, columns) = logits.layout.shape.rows_and_columns();
        with_float!(logits.dtype, T => {
            let operands = kernel::SampleOperands::<T> {
                logits: logits.read(),
                allowed: linker.input(1).read(),
                uniform: linker.input(2).read(),
                temperature: linker.input(3).read(),
                top_k: linker.input(4).read(),
                top_p: linker.input(5).read(),
                tokens: linker.output(0).write(),
            };
            linker.job(kernel::Sample::new(linker.isa(), operands, columns));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let settings = [1, 2, 3, 4, 5].map(|input| linker.input(input).address);
        linker.launch(gradus_cuda::sample(&linker.input(0), settings, &linker.output(0)));
        Ok(())
    }
}

impl Tensor {
    /// A token of each row of these logits [..., v], i32 [...]. Of the allowed tokens, the `top_k` with the largest logits are
    /// considered, of these the likeliest that together have the probability `top_p`, in both cases of equals the first ones;
    /// of those the one at `uniform` in the cumulative distribution over tokens in their order.
    ///
    /// A row without an allowed token, or with one whose logit is not finite, gives -1: no choice.
    #[track_caller]
    pub fn sample(&self, at: SampleInputs<'_>) -> Tensor {
        self.trace().apply_one(Sample, &[self, at.allowed, at.uniform, at.temperature, at.top_k, at.top_p])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::{Array, Routine, Trace};

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];

    /// How often each token is chosen in many choices, all of which one program makes.
    fn frequencies(settings: [(f32, i32, f32); 6]) -> Vec<[f64; 5]> {
        const CHOICES: usize = 20_000;
        let trace = Trace::new();
        let [temperature, top_p] = ["temperature", "top_p"].map(|name| trace.input(name, DType::F32, [1]));
        let top_k = trace.input("top_k", DType::I32, [1]);
        let constant = |words: &[u32]| trace.constant(Array::new([words.len()], words).unwrap());
        let uniform = constant(&[7, 1]).random_uniform(3, [CHOICES]);
        let logits = trace.constant(Array::new([1, 5], &LOGITS).unwrap()).broadcast([CHOICES, 5]);
        let (allowed, uniform) = (&constant(&[!0]), &uniform);
        let at = SampleInputs { allowed, uniform, temperature: &temperature, top_k: &top_k, top_p: &top_p };
        let routine = Routine::new("r").output("tokens", &logits.sample(at));
        let mut program = trace.compile(&Cpu::new(2).unwrap(), &[routine]).unwrap();
        let mut count = |(temperature, top_k, top_p): (f32, i32, f32)| {
            program.write("temperature", &[temperature]).unwrap();
            program.write("top_k", &[top_k]).unwrap();
            program.write("top_p", &[top_p]).unwrap();
            program.run("r").unwrap();
            let mut counts = [0.0; 5];
            for token in program.read("tokens").unwrap().to_vec::<i32>().unwrap() {
                counts[token as usize] += 1.0 / CHOICES as f64;
            }
            counts
        };
        settings.map(&mut count).to_vec()
    }

    #[test]
    fn tokens_are_chosen_as_often_as_they_are_likely() {
        let among = |tokens: &[usize], temperature: f64| {
            let share = |token| if tokens.contains(&token) { (LOGITS[token] as f64 / temperature).exp() } else { 0.0 };
            let shares = [0, 1, 2, 3, 4].map(share);
            shares.map(|share| share / shares.iter().sum::<f64>())
        };
        let expected = [
            ((0.5, 5, 1.0), among(&[0, 1, 2, 3, 4], 0.5)),
            ((3.0, 100, 1.0), among(&[0, 1, 2, 3, 4], 3.0)),
            ((1.0, 3, 1.0), among(&[1, 2, 4], 1.0)),
            ((1.0, 5, 0.7), among(&[1, 4], 1.0)),
            ((1.0, 5, 0.9), among(&[1, 2, 4], 1.0)),
            ((0.0, 5, 1.0), among(&[1], 1.0)),
        ];
        for (found, (settings, expected)) in frequencies(expected.map(|(settings, _)| settings)).iter().zip(expected) {
            for (found, expected) in found.iter().zip(expected) {
                let fits = if expected == 0.0 { *found == 0.0 } else { (found - expected).abs() < 0.015 };
                assert!(fits, "{settings:?}: {found} instead of {expected}");
            }
        }
    }

    #[test]
    fn operands_of_other_types_and_shapes_are_refused() {
        let trace = Trace::new();
        let input = |name: &str, dtype: DType, shape: &[usize]| trace.input(name, dtype, shape);
        let logits = input("logits", DType::F32, &[3, 40]);
        let (allowed, uniform) = (input("allowed", DType::U32, &[2]), input("uniform", DType::F32, &[3]));
        let (one, top_k) = (input("one", DType::F32, &[1]), input("top_k", DType::I32, &[1]));
        let good = SampleInputs { allowed: &allowed, uniform: &uniform, temperature: &one, top_k: &top_k, top_p: &one };
        assert_eq!(logits.sample(good).ty(), TensorType::new(DType::I32, [3]));
        trace.check().unwrap();
        let refused = |logits: &Tensor, at: SampleInputs<'_>| {
            Sample.outputs(&[logits, at.allowed, at.uniform, at.temperature, at.top_k, at.top_p].map(Tensor::ty))
        };
        let problem = |logits: &Tensor, at: SampleInputs<'_>| match refused(logits, at).unwrap_err() {
            Mismatch::Shape(problem) | Mismatch::DType(problem) | Mismatch::Parameter(problem) => problem,
        };
        let said = problem(&logits, SampleInputs { allowed: &uniform, ..good });
        assert!(said.starts_with("the allowed tokens must be of u32, not f32"), "{said}");
        let said = problem(&logits, SampleInputs { uniform: &one, ..good });
        assert!(said.starts_with("the uniform numbers must be of shape [3], not [1]"), "{said}");
        let said = problem(&logits, SampleInputs { top_k: &one, ..good });
        assert!(said.starts_with("top-k must be of i32"), "{said}");
        let said = problem(&input("none", DType::F32, &[3, 0]), good);
        assert!(said.starts_with("there are 0 tokens to choose from"), "{said}");
    }
}
