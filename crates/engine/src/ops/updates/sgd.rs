//! Stochastic gradient descent with momentum and decoupled weight decay.

use super::*;

/// Stochastic gradient descent with momentum, and its settings.
///
/// With `b = momentum b + g`, the weight moves by `-lr (b + weight_decay w)`, or with Nesterov's momentum by
/// `-lr (g + momentum b + weight_decay w)`. The decay does not go through the momentum; a decay that does is a term of
/// the loss, to be added to the gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// How much of the buffer is kept at each step; 0 is plain descent.
    pub momentum: f32,
    /// How much of the weight is taken away at each step, times the learning rate.
    pub weight_decay: f32,
    /// Whether the momentum is Nesterov's: a step further ahead.
    pub nesterov: bool,
}

/// What [`Sgd::update`] takes.
#[derive(Clone, Copy, Debug)]
pub struct SgdInputs<'a> {
    /// The weight, in f32.
    pub weight: &'a Tensor,
    /// Its gradient, in any float type.
    pub gradient: &'a Tensor,
    /// The running sum of gradients, in f32; zeros at first.
    pub buffer: &'a Tensor,
    /// The learning rate: one f32.
    pub learning_rate: &'a Tensor,
    /// What the gradient is multiplied by as it is read: one f32.
    pub scale: &'a Tensor,
}

/// What [`Sgd::update`] gives.
#[derive(Clone, Debug)]
pub struct SgdOutputs {
    /// The new weight.
    pub weight: Tensor,
    /// The new running sum of gradients.
    pub buffer: Tensor,
}

impl Sgd {
    /// Moves a weight and its buffer on by one step.
    #[track_caller]
    pub fn update(self, at: SgdInputs<'_>) -> SgdOutputs {
        let SgdInputs { weight, gradient, buffer, learning_rate, scale } = at;
        let inputs = [weight, gradient, buffer, learning_rate, scale];
        let [weight, buffer] = <[Tensor; 2]>::try_from(weight.trace().apply(self, &inputs))
            .expect("an operation has as many results as it says");
        SgdOutputs { weight, buffer }
    }

    /// The same as plain operations.
    fn decomposed(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let [weight, gradient, buffer, learning_rate, scale] = inputs else { unreachable!("five operands") };
        let gradient = gradient.cast(DType::F32) * scale;
        let buffer = buffer * self.momentum + &gradient;
        let direction = if self.nesterov { gradient + &buffer * self.momentum } else { buffer.clone() };
        vec![weight - learning_rate * (direction + weight * self.weight_decay), buffer]
    }
}

impl Operation for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn attributes(&self) -> String {
        let Sgd { momentum, weight_decay, nesterov } = self;
        let kind = if *nesterov { "nesterov momentum" } else { "momentum" };
        format!("{kind} {momentum:?}, weight decay {weight_decay:?}")
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_beta("momentum", self.momentum)?;
        check_not_negative("weight_decay", self.weight_decay)?;
        outputs_of_update(inputs, 1, 2)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(9, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 2)]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Update { gradient: 1 }
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        let (momentum, decay, rate) = (self.momentum as f64, self.weight_decay as f64, inputs[3].data[0]);
        reference_of_update(inputs, |numbers| {
            let [w, g, b] = numbers else { unreachable!("three numbers") };
            let b = momentum * b + g;
            let direction = if self.nesterov { g + momentum * b } else { b };
            [w - rate * (direction + decay * w), b]
        })
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, op: Sgd, shape: &[usize]| {
            let mut inputs = case_inputs(shape, &[Fill::Uniform(-1.0, 1.0)]);
            inputs.extend([case_number(0.125), case_number(0.75)]);
            Case::with_inputs(name, inputs, move |x| {
                let [weight, gradient, buffer, learning_rate, scale] = x else { unreachable!("five operands") };
                let new = op.update(SgdInputs { weight, gradient, buffer, learning_rate, scale });
                vec![new.weight, new.buffer]
            })
        };
        let op = Sgd { momentum: 0.9, weight_decay: 0.1, nesterov: false };
        let mut cases: Vec<Case> = CASE_SHAPES.iter().map(|shape| case("momentum", op, shape)).collect();
        cases.push(undifferentiated(case("large", op, LARGE_SHAPE)));
        cases.push(case("nesterov", Sgd { nesterov: true, ..op }, &[33]));
        cases.push(case("plain", Sgd::default(), &[7, 3]));
        cases.extend(clip::cases());
        cases
    }
}

impl Kernels for Sgd {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let Sgd { momentum, weight_decay, nesterov } = *self;
        let learning_rate = linker.input(3).read();
        link_update(linker, kernel::Sgd { momentum, weight_decay, nesterov, learning_rate }, 4)
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let Sgd { momentum, weight_decay, nesterov } = *self;
        let nesterov = if nesterov { 1.0 } else { 0.0 };
        let constants = [("MOMENTUM", momentum), ("WEIGHT_DECAY", weight_decay), ("NESTEROV", nesterov)];
        // It does not ask for the step.
        link_cuda_update(linker, sources::SGD, &constants, [3, 3, 4]);
        Ok(())
    }
}
