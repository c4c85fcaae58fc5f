//! The loss and its gradient in one: the logits are computed once, where what each row's loss counts does not depend on it.

use super::*;

/// The loss and the log-sum-exp of each row, and the gradients of `x` and the weight, from (x, weight, targets, gradient of
/// each row's loss).
#[derive(Debug)]
pub struct LinearCrossEntropyWithGradient {
    pub(super) options: LinearCrossEntropyOptions,
}

impl LinearCrossEntropyWithGradient {
    fn parts(&self) -> (LinearCrossEntropy, LinearCrossEntropyGradient) {
        (LinearCrossEntropy { options: self.options }, LinearCrossEntropyGradient { options: self.options })
    }

    /// The results one after the other.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let (loss, gradient) = self.parts();
        let trace = x[0].trace();
        let mut results = trace.apply(loss, &[&x[0], &x[1], &x[2]]);
        results.extend(trace.apply(gradient, &[&x[0], &x[1], &x[2], &results[1], &x[3]]));
        results
    }
}

impl Operation for LinearCrossEntropyWithGradient {
    fn name(&self) -> &'static str {
        "linear_cross_entropy_with_gradient"
    }

    fn attributes(&self) -> String {
        self.options.attributes()
    }

    fn output_count(&self) -> usize {
        4
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rows = check(inputs)?;
        check_rows(&inputs[3..4], &rows)?;
        let row = TensorType::new(DType::F32, &rows);
        Ok([row.clone(), row].into_iter().chain(inputs[..2].to_vec()).collect())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::BlockedProducts,
            operations: logits_of(inputs) * (6 * inputs[0].shape[1] as u64 + 36),
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::targets(2, inputs[1].shape[0], self.options.ignored))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![3]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (loss, gradient) = self.parts();
        let mut results = loss.reference(&inputs[..3], &outputs[..2]);
        let total = results[1].clone();
        results.extend(gradient.reference(&[inputs[0], inputs[1], inputs[2], &total, inputs[3]], &outputs[2..]));
        results
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let both = |ignored: Option<i32>| {
            move |x: &[Tensor]| {
                let options = LinearCrossEntropyOptions { ignored, ..LinearCrossEntropyOptions::default() };
                x[0].trace().apply(LinearCrossEntropyWithGradient { options }, &x.iter().collect::<Vec<_>>())
            }
        };
        let with_rows = |rows: usize, channels: usize, classes: usize| {
            let mut inputs = operands(rows, channels, classes);
            inputs.push(CaseInput::uniform([rows], -2.0, 2.0));
            inputs
        };
        let cases = vec![
            Case::with_inputs("small", with_rows(5, 4, 7), both(None)),
            Case::with_inputs("single numbers", with_rows(1, 1, 1), both(None)),
            Case::with_inputs("no rows", with_rows(0, 3, 4), both(None)),
            Case::with_inputs("an ignored class", with_rows(8, 3, 5), both(Some(2))),
            Case::with_inputs("several blocks of classes", with_rows(3, 2, 1600), both(None)).within(2e-5),
            Case::with_inputs("several blocks of rows", unchecked(with_rows(1100, 2, 1000)), both(None)).within(2e-5),
        ];
        cases.into_iter().map(Case::rounding_inside).collect()
    }
}

impl Kernels for LinearCrossEntropyWithGradient {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input < 2 || layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        with_types!(linker, X, W => { self.link::<X, W>(linker) });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        cuda::link_with_gradient(self.options, linker);
        Ok(())
    }
}

impl LinearCrossEntropyWithGradient {
    /// One after the other: where classes are cut into blocks too, the sums over all of them come before any gradient.
    fn link<X: Element + Native, W: Element + Native>(&self, linker: &mut Linker<'_>) {
        let (loss, gradient) = self.parts();
        loss.link::<X, W>(linker);
        let of_rows = (linker.output(1).write::<f32>().as_in(), linker.input(3).read());
        gradient.link::<X, W>(linker, of_rows, 2);
    }
}
