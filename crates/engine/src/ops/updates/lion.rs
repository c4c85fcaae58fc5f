//! Lion: steps of one size, in the direction that a mean of gradients points.

use super::*;

/// Lion, and its settings.
///
/// The weight moves by `-lr (sign(beta1 m + (1 - beta1) g) + weight_decay w)`, and then
/// `m = beta2 m + (1 - beta2) g`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// How much the moment weighs against the gradient in the direction.
    pub beta1: f32,
    /// How much of the moment is kept at each step.
    pub beta2: f32,
    /// How much of the weight is taken away at each step, times the learning rate.
    pub weight_decay: f32,
}

/// What [`Lion::update`] takes.
#[derive(Clone, Copy, Debug)]
pub struct LionInputs<'a> {
    /// The weight, in f32.
    pub weight: &'a Tensor,
    /// Its gradient, in any float type.
    pub gradient: &'a Tensor,
    /// The running mean of gradients, in f32; zeros at first.
    pub moment: &'a Tensor,
    /// The learning rate: one f32.
    pub learning_rate: &'a Tensor,
    /// What the gradient is multiplied by as it is read: one f32.
    pub scale: &'a Tensor,
}

/// What [`Lion::update`] gives.
#[derive(Clone, Debug)]
pub struct LionOutputs {
    /// The new weight.
    pub weight: Tensor,
    /// The new running mean of gradients.
    pub moment: Tensor,
}

impl Default for Lion {
    fn default() -> Lion {
        Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

impl Lion {
    /// Moves a weight and its moment on by one step.
    #[track_caller]
    pub fn update(self, at: LionInputs<'_>) -> LionOutputs {
        let LionInputs { weight, gradient, moment, learning_rate, scale } = at;
        let inputs = [weight, gradient, moment, learning_rate, scale];
        let [weight, moment] = <[Tensor; 2]>::try_from(weight.trace().apply(self, &inputs))
            .expect("an operation has as many results as it says");
        LionOutputs { weight, moment }
    }

    /// The same as plain operations.
    fn decomposed(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let [weight, gradient, moment, learning_rate, scale] = inputs else { unreachable!("five operands") };
        let gradient = &(gradient.cast(DType::F32) * scale);
        let mixed = moment * self.beta1 + gradient * (1.0 - self.beta1);
        let zero = &mixed.zeros_like();
        let sign = mixed.greater(zero) - mixed.less(zero);
        let moment = moment * self.beta2 + gradient * (1.0 - self.beta2);
        vec![weight - learning_rate * (sign + weight * self.weight_decay), moment]
    }
}

impl Operation for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn attributes(&self) -> String {
        let Lion { beta1, beta2, weight_decay } = self;
        format!("beta1 {beta1:?}, beta2 {beta2:?}, weight decay {weight_decay:?}")
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_beta("beta1", self.beta1)?;
        check_beta("beta2", self.beta2)?;
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
        Cost::per_element(13, inputs, outputs)
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
        let [b1, b2, decay] = [self.beta1, self.beta2, self.weight_decay].map(f64::from);
        let rate = inputs[3].data[0];
        reference_of_update(inputs, |numbers| {
            let [w, g, m] = numbers else { unreachable!("three numbers") };
            let mixed = b1 * m + (1.0 - b1) * g;
            let sign = if mixed == 0.0 { 0.0 } else { mixed.signum() };
            [w - rate * (sign + decay * w), b2 * m + (1.0 - b2) * g]
        })
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        // The gradient, at most 2, weighs a tenth: the moment, at least 0.5, decides the sign.
        let case = |name: &str, op: Lion, shape: &[usize]| {
            let mut inputs = case_inputs(shape, &[Fill::AwayFromZero(-1.0, 1.0, 0.5)]);
            inputs.extend([case_number(0.125), case_number(0.75)]);
            Case::with_inputs(name, inputs, move |x| {
                let [weight, gradient, moment, learning_rate, scale] = x else { unreachable!("five operands") };
                let new = op.update(LionInputs { weight, gradient, moment, learning_rate, scale });
                vec![new.weight, new.moment]
            })
        };
        let op = Lion { weight_decay: 0.1, ..Lion::default() };
        let mut cases: Vec<Case> = CASE_SHAPES.iter().map(|shape| case("lion", op, shape)).collect();
        cases.push(undifferentiated(case("large", op, LARGE_SHAPE)));
        cases.push(case("other settings", Lion { beta1: 0.95, beta2: 0.5, weight_decay: 0.0 }, &[33]));
        cases
    }
}

impl Kernels for Lion {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let Lion { beta1, beta2, weight_decay } = *self;
        let learning_rate = linker.input(3).read();
        link_update(linker, kernel::Lion { beta1, beta2, weight_decay, learning_rate }, 4)
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let Lion { beta1, beta2, weight_decay } = *self;
        let constants = [
            ("KEPT1", beta1),
            ("TAKEN1", 1.0 - beta1),
            ("KEPT2", beta2),
            ("TAKEN2", 1.0 - beta2),
            ("WEIGHT_DECAY", weight_decay),
        ];
        // It does not ask for the step.
        link_cuda_update(linker, sources::LION, &constants, [3, 3, 4]);
        Ok(())
    }
}
