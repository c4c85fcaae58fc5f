//! Random numbers that are a function of a key: computing them again gives the same, on any number of threads.

use super::*;
use crate::{DType, Shape};
use gradus_cuda::{Source, sources};
use gradus_kernels::{random, uniform as kernel};
use std::f32::consts::TAU;

/// Numbers of equal likelihood, at least 0 and less than 1.
///
/// Takes a key of two u32 words, which should differ from step to step; `stream` keeps the numbers of one trace apart.
#[derive(Debug)]
pub struct RandomUniform {
    stream: u32,
    shape: Shape,
}

impl Operation for RandomUniform {
    fn name(&self) -> &'static str {
        "random_uniform"
    }

    fn attributes(&self) -> String {
        format!("{}, stream {}", self.shape, self.stream)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_key(&inputs[0])?;
        Ok(vec![TensorType::new(DType::F32, &self.shape)])
    }

    fn gradient(&self, _at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }

    fn tangent(&self, _at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(24, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Random
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let key = [inputs[0].data[0] as u32, inputs[0].data[1] as u32];
        let number = |index: usize| kernel::unit(random::word(index as u64, self.stream, key)) as f64;
        vec![Reals::new(&outputs[0].shape, (0..outputs[0].shape.elements()).map(number).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let key = || CaseInput::integers(DType::U32, [2], u32::MAX as usize);
        let mut cases: Vec<Case> = [&[][..], &[1], &[0, 3], &[5, 13], &[3, 8001]]
            .map(|shape| {
                let name = format!("uniform {shape:?}");
                Case::with_inputs(&name, vec![key()], move |x| vec![x[0].random_uniform(3, shape)])
            })
            .into();
        cases.push(Case::with_inputs("normal", vec![key()], |x| vec![x[0].random_normal(0, [7, 30])]));
        let logits = CaseInput::uniform([9, 5], -2.0, 2.0).without_gradient();
        cases.push(Case::with_inputs("categorical", vec![logits, key()], |x| vec![x[0].random_categorical(&x[1], 1)]));
        cases
    }
}

impl Kernels for RandomUniform {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (key, y) = (linker.input(0).read(), linker.output(0).write());
        linker.job(kernel::Uniform::new(linker.isa(), key, y, self.stream));
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (key, y) = (linker.input(0), linker.output(0));
        let source = Source::new("uniform", sources::UNIFORM).code(sources::PHILOX).address(key.address);
        let source = source.operand("y", &y).size("COUNT", y.elements()).constant("THREADS", THREADS);
        let counters = y.elements().div_ceil(random::GROUP) * (random::GROUP / 4);
        let source = source.constant("STREAM", format_args!("{}u", self.stream));
        linker.launch(source.launch(counters.div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Tensor {
    /// f32 numbers of equal likelihood, at least 0 and less than 1, by this key of two u32 words, such as a seed and the
    /// step's number. `stream` is a number of this call's own: calls with the same stream, key and shape give the same.
    #[track_caller]
    pub fn random_uniform(&self, stream: u32, shape: impl Into<Shape>) -> Tensor {
        self.trace().apply_one(RandomUniform { stream, shape: shape.into() }, &[self])
    }

    /// f32 numbers of the normal distribution with mean 0 and deviation 1, by this key, as [`Tensor::random_uniform`]
    /// takes it. None is further from 0 than 5.8.
    #[track_caller]
    pub fn random_normal(&self, stream: u32, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let both = [&[2], &shape[..]].concat();
        let uniform = self.random_uniform(stream, both).split(0, &[1, 1]);
        let [radius, angle] = [0, 1].map(|half: usize| uniform[half].reshape(&shape));
        // One minus a number below one is never zero.
        ((1.0 - radius).log() * -2.0).sqrt() * (angle * TAU).cos()
    }

    /// An index along the last axis for every row of these logits [..., classes], i32: each class as often as its softmax
    /// says, to within 2^-24. A row whose softmax says nothing, with a logit that is NaN or infinite or with minus infinity
    /// alone, is an error of the replay. The key and stream are those of [`Tensor::random_uniform`].
    #[track_caller]
    pub fn random_categorical(&self, key: &Tensor, stream: u32) -> Tensor {
        if self.axis_to_choose_from("random_categorical", -1).is_none() {
            return self.trace().poisoned();
        }
        let logits = self.cast(DType::F32);
        let largest = logits.max_keep(&[-1]).check_finite("the largest logit of a row");
        // Never zero, whose logarithm would leave the class no chance even where it is the only one.
        let uniform = key.random_uniform(stream, self.shape()).clamp(2f32.powi(-25), 1.0);
        (logits - largest - (-uniform.log()).log()).argmax(-1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::{Array, Routine, Trace};

    /// What a tensor made from a key holds.
    fn numbers(of: impl Fn(&Trace, &Tensor) -> Tensor) -> Vec<f64> {
        let trace = Trace::new();
        let key = trace.constant(Array::new([2], &[17u32, 4]).unwrap());
        let routine = Routine::new("r").output("y", &of(&trace, &key).cast(DType::F32));
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        program.run("r").unwrap();
        program.read("y").unwrap().to_f64()
    }

    #[test]
    fn normal_numbers_have_the_moments_of_the_distribution() {
        let numbers = numbers(|_, key| key.random_normal(0, [100_000]));
        let moment = |power: i32| numbers.iter().map(|number| number.powi(power)).sum::<f64>() / numbers.len() as f64;
        for (power, expected) in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)] {
            assert!((moment(power) - expected).abs() < 0.06, "moment {power}: {}", moment(power));
        }
    }

    #[test]
    fn classes_are_drawn_as_often_as_their_softmax_says() {
        let shares = [0.5f32, 0.0, 0.3, 0.2];
        let drawn = numbers(|trace, key| {
            let logits = trace.constant(Array::new([1, 4], &shares.map(f32::ln)).unwrap());
            logits.broadcast([40_000, 4]).random_categorical(key, 3)
        });
        for (class, share) in shares.into_iter().enumerate() {
            let found = drawn.iter().filter(|&&index| index == class as f64).count() as f64 / 40_000.0;
            assert!((found - share as f64).abs() < 0.01 && (share > 0.0 || found == 0.0), "class {class}: {found}");
        }
    }

    #[test]
    fn rows_that_no_class_can_be_drawn_from_are_an_error() {
        let trace = Trace::new();
        let key = trace.constant(Array::new([2], &[17u32, 4]).unwrap());
        let logits = trace.input("logits", DType::F32, [2, 3]);
        let routine = Routine::new("r").output("drawn", &logits.random_categorical(&key, 1));
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        let low = f32::NEG_INFINITY;
        for bad in [[f32::NAN, 0.0, 1.0], [low; 3], [0.0, f32::INFINITY, 0.0]] {
            program.write("logits", &[[0.0, low, low], bad].concat()).unwrap();
            let error = program.run("r").unwrap_err().to_string();
            assert!(error.contains("the largest logit of a row is not finite (element 1)"), "{error}");
        }
        program.write("logits", &[low, 0.0, low, 9.0, low, low]).unwrap();
        program.run("r").unwrap();
        assert_eq!(program.read("drawn").unwrap().to_f64(), [1.0, 0.0]);
    }

    #[test]
    fn streams_and_keys_are_apart_and_other_keys_are_refused() {
        let [a, b] = [1, 2].map(|stream| numbers(move |_, key| key.random_uniform(stream, [50])));
        assert_ne!(a, b);
        let trace = Trace::new();
        trace.input("key", DType::I32, [2]).random_uniform(0, [3]);
        assert!(trace.check().unwrap_err().to_string().contains("takes a key of u32, not i32"));
    }
}
