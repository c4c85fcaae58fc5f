//! Dropout with a mask that is a function of a key: it is never stored, and computing it again gives the same.

use super::*;
use crate::DType;
use gradus_cuda::{Source, sources};
use gradus_kernels::{dropout as kernel, random};

/// Elements set to zero at random at a rate, the others divided by one minus the rate.
///
/// Takes x and a key of two u32 words, which should differ from step to step (a seed and the step's number);
/// `stream` keeps the masks of one trace apart.
#[derive(Debug)]
pub struct Dropout {
    rate: f32,
    stream: u32,
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn attributes(&self) -> String {
        format!("rate {:?}, stream {}", self.rate, self.stream)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        Mismatch::unless_key(&inputs[1])?;
        if !(0.0..1.0).contains(&self.rate) {
            let problem = format!("the rate must be at least 0 and less than 1, not {}", self.rate);
            return Err(Mismatch::Parameter(problem));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0).dropout(self.rate, &at.inputs[1], self.stream)), None]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.dropout(self.rate, &at.inputs[1], self.stream))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(24, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
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
        let key = [inputs[1].data[0] as u32, inputs[1].data[1] as u32];
        let rate = self.rate as f64;
        let element = |index: usize| {
            let uniform = random::word(index as u64, self.stream, key) as f64 / (1u64 << 32) as f64;
            if uniform >= rate { inputs[0].data[index] / (1.0 - rate) } else { 0.0 }
        };
        vec![Reals::new(&outputs[0].shape, (0..inputs[0].data.len()).map(element).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |shape: &[usize], rate: f32| {
            let key = CaseInput::integers(DType::U32, [2], u32::MAX as usize);
            let inputs = vec![CaseInput::uniform(shape, -2.0, 2.0), key];
            let name = format!("{shape:?} at {rate}");
            Case::with_inputs(&name, inputs, move |x| vec![x[0].dropout(rate, &x[1], 3)])
        };
        let mut cases: Vec<Case> =
            [&[][..], &[1], &[0, 3], &[5, 13], &[2, 3, 33], &[3, 8001]].map(|shape| case(shape, 0.25)).into();
        cases.extend([0.0, 1e-3, 0.9].map(|rate| case(&[7, 11], rate)));
        cases.push(Case::with_inputs(
            "twice, by two streams",
            vec![CaseInput::uniform([9, 9], -2.0, 2.0), CaseInput::integers(DType::U32, [2], 100)],
            |x| vec![x[0].dropout(0.5, &x[1], 0).dropout(0.5, &x[1], 1)],
        ));
        cases
    }
}

impl Kernels for Dropout {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, key, y) = (linker.input(0), linker.input(1), linker.output(0));
        with_float!(x.dtype, T => {
            let (x, key, y) = (x.read::<T>(), key.read(), y.write());
            linker.job(kernel::Dropout::new(linker.isa(), x, key, y, self.rate, self.stream));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (x, key, y) = (linker.input(0), linker.input(1), linker.output(0));
        let source = Source::new("dropout", sources::DROPOUT).code(sources::PHILOX).operand("x", &x);
        let source = source.address(key.address).operand("y", &y).size("COUNT", x.elements());
        let source = source.constant("STREAM", format_args!("{}u", self.stream)).constant("THREADS", THREADS);
        let source = source.constant("THRESHOLD", format_args!("{}u", kernel::threshold(self.rate)));
        let counters = x.elements().div_ceil(random::GROUP) * (random::GROUP / 4);
        linker.launch(source.number("SCALE", kernel::scale(self.rate)).launch(counters.div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Tensor {
    /// Elements set to zero at random at a rate, the others divided by one minus the rate.
    ///
    /// `key` holds two u32 words, such as a seed and the step's number, and `stream` is a number of this call's own:
    /// two calls with the same stream, key and size have the same mask.
    #[track_caller]
    pub fn dropout(&self, rate: f32, key: &Tensor, stream: u32) -> Tensor {
        if rate == 0.0 {
            return self.clone();
        }
        self.trace().apply_one(Dropout { rate, stream }, &[self, key])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Trace};

    #[test]
    fn rates_outside_of_0_to_1_are_errors_and_rate_0_changes_nothing() {
        for rate in [-0.1, 1.0, 1.5, f32::NAN] {
            let trace = Trace::new();
            let (x, key) = (trace.input("x", DType::F32, [3]), trace.input("key", DType::U32, [2]));
            assert_eq!(x.dropout(0.0, &key, 1).handle(), x.handle());
            assert!(x.dropout(rate, &key, 1).is_poisoned());
            assert!(matches!(trace.check(), Err(Error::Parameter { .. })), "rate {rate}");
        }
    }
}
