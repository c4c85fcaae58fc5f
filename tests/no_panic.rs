//! Whatever is asked for, with whatever operands, ends in numbers or in an error: never in a panic. Every method of
//! a tensor is tried with random shapes, element types and parameters, most of which do not fit.

mod support;

use gradus::backend::Cpu;
use gradus::ops::{
    Adafactor, AdafactorInputs, AdamW, AdamWInputs, AttentionOptions, Conv1dOptions, Conv2dOptions, Function, Lion,
    LionInputs, Order, Pool1dOptions, Pool2dOptions, ProductTypes, SecondMoment, Sgd, SgdInputs, clip_by_global_norm,
    clip_by_value,
};
use gradus::{DType, Error, Routine, Tensor, Trace, gradient, gradient_or_zeros};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::numbers::Random;

const DTYPES: [DType; 6] = [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I32, DType::U32];

/// Small sizes, nothing, and more than any machine holds.
const SIZES: [usize; 11] = [0, 1, 1, 2, 2, 3, 4, 1 << 40, 1 << 45, 1 << 46, usize::MAX];

/// Operands and parameters that may or may not fit each other.
struct Guess<'a> {
    random: &'a mut Random,
    trace: Trace,
    pool: Vec<Tensor>,
}

impl Guess<'_> {
    fn new(random: &mut Random) -> Guess<'_> {
        let trace = Trace::new();
        // Often all operands are alike, or else hardly any operation would take them.
        let alike = random.below(2) == 0;
        let (dtype, sizes) = (DTYPES[random.below(6)], [1 + random.below(4), 1 + random.below(4)]);
        let mut pool = vec![];
        for index in 0..6 {
            let rank = random.below(5);
            let limit = if random.below(8) == 0 { SIZES.len() } else { 7 };
            let size = |random: &mut Random| match alike {
                true => sizes[random.below(2)],
                false => SIZES[random.below(limit)],
            };
            let shape: Vec<usize> = (0..rank).map(|_| size(random)).collect();
            let dtype = if alike && index < 4 { dtype } else { DTYPES[random.below(6)] };
            pool.push(trace.input(&format!("x{index}"), dtype, shape));
        }
        Guess { random, trace, pool }
    }

    fn tensor(&mut self) -> Tensor {
        self.pool[self.random.below(self.pool.len())].clone()
    }

    /// An operand, if the method can do without.
    fn types(&mut self) -> ProductTypes {
        let [computed, stored] = [0; 2].map(|_| DTYPES[self.random.below(6)]);
        ProductTypes { computed, stored, allow_tf32: self.random.below(2) == 0 }
    }

    fn attention_options(&mut self, number: f32) -> AttentionOptions {
        let window = (self.random.below(2) == 0).then(|| SIZES[self.random.below(SIZES.len())]);
        AttentionOptions { causal: self.random.below(2) == 0, window, scale: Some(number) }
    }

    fn maybe(&mut self) -> Option<Tensor> {
        (self.random.below(2) == 0).then(|| self.tensor())
    }

    fn axis(&mut self) -> isize {
        [-1, 0, 1, -2, 2, 3, -5, isize::MIN, isize::MAX][self.random.below(9)]
    }

    fn axes(&mut self) -> Vec<isize> {
        (0..self.random.below(3)).map(|_| self.axis()).collect()
    }

    fn size(&mut self) -> usize {
        SIZES[self.random.below(SIZES.len())]
    }

    fn sizes(&mut self) -> Vec<usize> {
        (0..self.random.below(5)).map(|_| self.size()).collect()
    }

    fn pair(&mut self) -> [usize; 2] {
        [self.size(), self.size()]
    }

    fn pool(&mut self) -> Pool2dOptions {
        Pool2dOptions { stride: self.pair(), padding: self.pair(), ..Pool2dOptions::new(self.pair()) }
    }

    fn number(&mut self) -> f32 {
        [0.0, 1.0, -1.0, 0.5, 2.0, f32::NAN, f32::INFINITY, 1e-30][self.random.below(8)]
    }

    fn options(&mut self) -> Conv2dOptions {
        let [stride, padding, dilation] = [(); 3].map(|()| self.pair());
        let mut options = Conv2dOptions { stride, padding, dilation, groups: self.size() };
        if self.random.below(2) == 0 {
            options = Conv2dOptions { groups: 1 + self.random.below(2), ..Conv2dOptions::default() };
        }
        options
    }

    /// The results of a method chosen at random.
    fn results(&mut self) -> Vec<Tensor> {
        let (x, y, z) = (self.tensor(), self.tensor(), self.tensor());
        let (axis, axes, number) = (self.axis(), self.axes(), self.number());
        let one = match self.random.below(72) {
            0 => x.sum(&axes),
            1 => x.sum_keep(&axes),
            2 => x.sum_all(),
            3 => x.sum_of_squares(&axes),
            4 => x.max(&axes),
            5 => x.min(&axes),
            6 => x.mean(&axes),
            7 => x.mean_keep(&axes),
            8 => x.mean_all(),
            9 => x.variance(&axes),
            10 => Tensor::global_norm(&[&x, &y]),
            11 => x.layer_norm(&y, &z, number),
            12 => x.rms_norm(&y, number),
            13 => return vec![x.batch_norm(&y, &z, number).output, x.batch_norm(&y, &z, 1e-5).variance],
            14 => x.batch_norm_with(&y, &z, &y, &z, number),
            15 => x.group_norm(self.size(), &y, &z, number),
            16 => x.check_finite("x"),
            17 => x.reshape(self.sizes()),
            18 => x.permute(&axes),
            19 => x.transpose(axis, self.axis()),
            20 => x.slice(axis, self.size()..self.size()),
            21 => x.slice_by(axis, self.size()..self.size(), self.size()),
            22 => return x.split(axis, &self.sizes()),
            23 => x.broadcast(self.sizes()),
            24 => x.stop_gradient(),
            25 => x.embedding(&y),
            26 => x.gather(axis, &y),
            27 => x.scatter_add(axis, &y, &z),
            28 => x.matmul(&y),
            29 => x.linear(&y, self.maybe().as_ref()),
            30 => x.linear_as(&y, self.maybe().as_ref(), self.types()),
            31 => x.linear_cross_entropy(&y, &z, self.maybe().map(|_| -1)),
            32 => x.attention(&y, &z, self.random.below(2) == 0),
            33 => x.attention_with(&x, &x, self.attention_options(number)),
            34 => x.cross_entropy(&y, self.maybe().map(|_| 1)),
            35 => x.cross_entropy_rows(&y, None),
            36 => x.softmax(axis),
            37 => x.log_softmax(axis),
            38 => x.dropout(number, &y, 1),
            39 => x.max_pool2d(self.pool()),
            40 => x.max_pool1d(Pool1dOptions {
                stride: self.size(),
                padding: self.size(),
                ..Pool1dOptions::new(self.size())
            }),
            41 => x.avg_pool2d(self.pool()),
            42 => x.avg_pool1d(Pool1dOptions {
                stride: self.size(),
                padding: self.size(),
                ..Pool1dOptions::new(self.size())
            }),
            43 => x.conv2d(&y, self.maybe().as_ref(), self.options()),
            44 => {
                let [stride, padding, dilation, groups] = [(); 4].map(|()| self.size());
                x.conv1d(&y, self.maybe().as_ref(), Conv1dOptions { stride, padding, dilation, groups })
            }
            45 => {
                let pool: Vec<Tensor> = (0..self.random.below(4)).map(|_| self.tensor()).collect();
                Tensor::concat(&pool.iter().collect::<Vec<_>>(), axis)
            }
            46 => x.pad(axis, self.pair(), number),
            47 => {
                let function = Function::ALL[self.random.below(Function::ALL.len())];
                let operands: Vec<Tensor> = (0..self.random.below(5)).map(|_| self.tensor()).collect();
                self.trace.function(function, &operands.iter().collect::<Vec<_>>())
            }
            48 => x.trace().full(number, DTYPES[self.random.below(6)], self.sizes()),
            49 => x.cast(DTYPES[self.random.below(6)]).cast(DTYPES[self.random.below(6)]),
            50 => [x.powf(number), x.clamp(number, 1.0), x.leaky_relu(number), &x + number, number / &x]
                [self.random.below(5)]
            .clone(),
            51 => x.rotary(&y, &z),
            52 => {
                let (clipped, norm) = clip_by_global_norm(&[&x, &y], number);
                return clipped.into_iter().chain([norm]).chain(clip_by_value(&[&z], number)).collect();
            }
            53 => {
                let rule = AdamW { beta1: number, ..AdamW::default() };
                let at = AdamWInputs {
                    weight: &x,
                    gradient: &y,
                    first_moment: &x,
                    second_moment: &z,
                    learning_rate: &self.tensor(),
                    step: &self.tensor(),
                    scale: &self.tensor(),
                };
                rule.update(at).weight
            }
            54 => {
                let (learning_rate, scale) = (&self.tensor(), &self.tensor());
                let lion = Lion::default();
                lion.update(LionInputs { weight: &x, gradient: &y, moment: &z, learning_rate, scale });
                let sgd = Sgd { momentum: number, ..Sgd::default() };
                sgd.update(SgdInputs { weight: &x, gradient: &y, buffer: &z, learning_rate, scale }).weight
            }
            55 => {
                let second_moment = &match self.random.below(2) {
                    0 => SecondMoment::Whole(z),
                    _ => SecondMoment::Factored { rows: z, columns: self.tensor() },
                };
                let (learning_rate, step, scale) = (&self.tensor(), &self.tensor(), &self.tensor());
                let at = AdafactorInputs { weight: &x, gradient: &y, second_moment, learning_rate, step, scale };
                Adafactor { clip: number, ..Adafactor::default() }.update(at).weight
            }
            56 => return vec![x.sort(axis, Order::Ascending).values, x.argsort(axis, Order::Descending)],
            57 => x.top_k(axis, self.size(), Order::Descending).values,
            58 => return vec![x.argmax(axis), x.argmin_keep(axis)],
            59 => x.cumulative_sum(axis),
            60 => x.random_uniform(3, self.sizes()),
            61 => x.random_normal(3, self.sizes()),
            62 => x.random_categorical(&y, 1),
            63 => return vec![x.tril(axis), x.triu(axis)],
            64 => x.norm(number, &axes),
            65 => return vec![x.log_sum_exp(&axes), x.standard_deviation_keep(&axes), x.max_keep(&axes)],
            66 => x.one_hot(self.size()) + x.trace().arange(self.size(), DType::F32),
            67 => x.index_select(axis, &y),
            68 => return vec![x.squeeze(axis), x.unsqueeze(axis), x.flatten(axis), Tensor::stack(&[&x, &y], axis)],
            69 => return vec![x.select(&y, &z), x.masked_fill(&y, number), x.abs(), -&x],
            70 => return vec![&x + &y, &x * number, number - &x, x.less(&y), x.maximum(&y)],
            _ => match gradient_or_zeros(&x, &[&y]) {
                Ok(mut slope) => slope.remove(0),
                Err(_) => x,
            },
        };
        vec![one]
    }

    /// Traces a method, differentiates what it gives twice, and replays all of it.
    fn try_out(&mut self, cpu: &Cpu) -> Result<(), Error> {
        let results = self.results();
        let mut routine = Routine::new("r");
        for (index, result) in results.iter().enumerate() {
            routine = routine.output(&format!("y{index}"), result);
            for (operand, x) in self.pool.iter().enumerate() {
                if let Ok(slope) = gradient(result, &[x]) {
                    routine = routine.output(&format!("slope{operand} of {index}"), &slope[0]);
                    if let Ok(bend) = gradient(&slope[0], &[x]) {
                        routine = routine.output(&format!("bend{operand} of {index}"), &bend[0]);
                    }
                }
            }
        }
        let mut program = self.trace.compile(cpu, &[routine])?;
        program.run("r")?;
        for index in 0..results.len() {
            program.read(&format!("y{index}"))?;
        }
        Ok(())
    }
}

#[test]
fn every_method_gives_numbers_or_an_error() {
    let cpu = Cpu::new(1).unwrap();
    let (mut computed, mut refused, mut panicked) = (0, 0, vec![]);
    for seed in 0..20_000 {
        let outcome = catch_unwind(AssertUnwindSafe(|| Guess::new(&mut Random::new(seed)).try_out(&cpu)));
        match outcome {
            Ok(Ok(())) => computed += 1,
            Ok(Err(_)) => refused += 1,
            Err(_) => panicked.push(seed),
        }
    }
    assert!(panicked.is_empty(), "seeds {panicked:?} panic; their messages are above");
    assert!(computed > 1_000 && refused > 1_000, "one-sided: {computed} computed, {refused} refused");
}
