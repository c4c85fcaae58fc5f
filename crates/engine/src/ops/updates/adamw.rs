//! Adam with decoupled weight decay.

use super::*;

/// Adam with decoupled weight decay, and its settings.
///
/// With `m = beta1 m + (1 - beta1) g` and `v = beta2 v + (1 - beta2) g^2`, the weight moves by
/// `-lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// How much of the first moment is kept at each step.
    pub beta1: f32,
    /// How much of the second moment is kept at each step.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// How much of the weight is taken away at each step, times the learning rate.
    pub weight_decay: f32,
}

/// What [`AdamW::update`] takes.
#[derive(Clone, Copy, Debug)]
pub struct AdamWInputs<'a> {
    /// The weight, in f32.
    pub weight: &'a Tensor,
    /// Its gradient, in any float type.
    pub gradient: &'a Tensor,
    /// The running mean of gradients, in f32; zeros at first.
    pub first_moment: &'a Tensor,
    /// The running mean of squared gradients, in f32; zeros at first.
    pub second_moment: &'a Tensor,
    /// The learning rate: one f32.
    pub learning_rate: &'a Tensor,
    /// The number of this step as one f32, 1 at the first.
    pub step: &'a Tensor,
    /// What the gradient is multiplied by as it is read: one f32.
    pub scale: &'a Tensor,
}

/// What [`AdamW::update`] gives.
#[derive(Clone, Debug)]
pub struct AdamWOutputs {
    /// The new weight.
    pub weight: Tensor,
    /// The new running mean of gradients.
    pub first_moment: Tensor,
    /// The new running mean of squared gradients.
    pub second_moment: Tensor,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    /// Moves a weight and its moments on by one step.
    #[track_caller]
    pub fn update(self, at: AdamWInputs<'_>) -> AdamWOutputs {
        let AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step, scale } = at;
        let inputs = [weight, gradient, first_moment, second_moment, learning_rate, step, scale];
        let [weight, first_moment, second_moment] = <[Tensor; 3]>::try_from(weight.trace().apply(self, &inputs))
            .expect("an operation has as many results as it says");
        AdamWOutputs { weight, first_moment, second_moment }
    }

    /// The same as plain operations.
    fn decomposed(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let [weight, gradient, first, second, learning_rate, step, scale] = inputs else {
            unreachable!("seven operands")
        };
        let gradient = &(gradient.cast(DType::F32) * scale);
        let first = first * self.beta1 + gradient * (1.0 - self.beta1);
        let second = second * self.beta2 + gradient * gradient * (1.0 - self.beta2);
        let bias = |beta: f32| 1.0 - step.full_like(beta).pow(step);
        let direction = &first / bias(self.beta1) / ((&second / bias(self.beta2)).sqrt() + self.epsilon);
        let weight = weight - learning_rate * (direction + weight * self.weight_decay);
        vec![weight, first, second]
    }
}

impl Operation for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn attributes(&self) -> String {
        let AdamW { beta1, beta2, epsilon, weight_decay } = self;
        format!("beta1 {beta1:?}, beta2 {beta2:?}, epsilon {epsilon:?}, weight decay {weight_decay:?}")
    }

    fn output_count(&self) -> usize {
        3
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_beta("beta1", self.beta1)?;
        check_beta("beta2", self.beta2)?;
        check_not_negative("epsilon", self.epsilon)?;
        check_not_negative("weight_decay", self.weight_decay)?;
        outputs_of_update(inputs, 2, 3)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|inputs| self.decomposed(inputs))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(21, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 2), (2, 3)]
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
        let [b1, b2, epsilon, decay] = [self.beta1, self.beta2, self.epsilon, self.weight_decay].map(f64::from);
        let (rate, t) = (inputs[4].data[0], inputs[5].data[0]);
        reference_of_update(inputs, |numbers| {
            let [w, g, m, v] = numbers else { unreachable!("four numbers") };
            let m = b1 * m + (1.0 - b1) * g;
            let v = b2 * v + (1.0 - b2) * g * g;
            let (mean, square) = (m / (1.0 - b1.powf(t)), v / (1.0 - b2.powf(t)));
            [w - rate * (mean / (square.sqrt() + epsilon) + decay * w), m, v]
        })
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, op: AdamW, inputs: Vec<CaseInput>| {
            Case::with_inputs(name, inputs, move |x| {
                let [weight, gradient, first_moment, second_moment, learning_rate, step, scale] = x else {
                    unreachable!("seven operands")
                };
                let at = AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step, scale };
                let new = op.update(at);
                vec![new.weight, new.first_moment, new.second_moment]
            })
        };
        let with_numbers = |mut inputs: Vec<CaseInput>, learning_rate: f64, step: f64| {
            inputs.extend([case_number(learning_rate), case_number(step), case_number(0.75)]);
            inputs
        };
        let settled = |shape| case_inputs(shape, &[Fill::Uniform(-1.0, 1.0), Fill::Uniform(0.25, 2.0)]);
        let op = AdamW { weight_decay: 0.1, ..AdamW::default() };
        let mut cases: Vec<Case> =
            CASE_SHAPES.iter().map(|shape| case("settled", op, with_numbers(settled(shape), 0.125, 9.0))).collect();
        cases.push(undifferentiated(case("large", op, with_numbers(settled(LARGE_SHAPE), 0.125, 9.0))));
        let quick = AdamW { beta1: 0.0, beta2: 0.5, epsilon: 0.25, weight_decay: 0.0 };
        cases.push(case("other settings", quick, with_numbers(settled(&[33]), 0.5, 1.0)));
        // At the first step the root of a second moment near zero is too steep for finite differences.
        let mut fresh = case_inputs(&[7, 3], &[Fill::Uniform(0.0, 0.0), Fill::Uniform(0.0, 0.0)]);
        fresh[3] = fresh[3].clone().without_gradient();
        let mut fresh = with_numbers(fresh, 0.125, 1.0);
        fresh[5] = fresh[5].clone().without_gradient();
        cases.push(case("first step", op, fresh));
        cases.extend(adafactor::cases());
        cases
    }
}

impl Kernels for AdamW {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let AdamW { beta1, beta2, epsilon, weight_decay } = *self;
        let (learning_rate, step) = (linker.input(4).read(), linker.input(5).read());
        link_update(linker, kernel::AdamW { beta1, beta2, epsilon, weight_decay, learning_rate, step }, 6)
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let AdamW { beta1, beta2, epsilon, weight_decay } = *self;
        let constants = [
            ("KEPT1", beta1),
            ("TAKEN1", 1.0 - beta1),
            ("KEPT2", beta2),
            ("TAKEN2", 1.0 - beta2),
            ("EPSILON", epsilon),
            ("WEIGHT_DECAY", weight_decay),
        ];
        link_cuda_update(linker, sources::ADAMW, &constants, [4, 5, 6]);
        Ok(())
    }
}
