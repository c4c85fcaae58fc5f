//! A gradient of one's own for any traced function: results that are differentiated by a rule instead of through what
//! they are made of.

use super::*;
use crate::error::Location;
use std::fmt;
use std::sync::Arc;

/// From operands, results and the gradients of the results to the gradients of the operands.
type Rule = dyn Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>> + Send + Sync;

/// The first operands, as they are: the results of a function. Its gradient goes to the operands behind them, those of
/// the function, by a rule.
#[derive(Clone)]
pub struct CustomGradient {
    results: usize,
    rule: Arc<Rule>,
}

impl fmt::Debug for CustomGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomGradient {{ results: {} }}", self.results)
    }
}

/// The results of `forward` on these operands, with `backward` as their gradient: from operands, results and the results'
/// gradients it gives a gradient for each operand, or `None` where there is none. It is made of tensors like any other
/// code, so that it can be differentiated in turn; where it uses the results, that goes by `backward` again. What
/// `forward` uses besides its operands has no gradient.
///
/// ```
/// use gradus_engine::{Array, GradientTape, custom_gradient};
///
/// // The number rounded towards zero, whose gradient passes as if it were not.
/// let tape = GradientTape::new()?;
/// let x = tape.watch(Array::new([2], &[1.75f32, -0.5])?);
/// let whole = |x: &[gradus_engine::Tensor]| {
///     vec![x[0].cast(gradus_engine::DType::I32).cast(gradus_engine::DType::F32)]
/// };
/// let y = &custom_gradient(&[&x], whole, |_, _, gradients| vec![Some(gradients[0].clone())])[0];
/// let slope = &tape.gradient(&(y * y), &[&x])?[0];
/// assert_eq!(tape.read_all(&[y, slope])?[1].to_f64(), [2.0, 0.0]);
/// # Ok::<(), gradus_engine::Error>(())
/// ```
#[track_caller]
pub fn custom_gradient(
    operands: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    backward: impl Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>> + Send + Sync + 'static,
) -> Vec<Tensor> {
    let at = Location::caller();
    let owned: Vec<Tensor> = operands.iter().map(|&operand| operand.clone()).collect();
    let results = forward(&owned);
    let Some(trace) = results.first().or(owned.first()).map(|result| result.trace().clone()) else { return vec![] };
    let op = CustomGradient { results: results.len(), rule: Arc::new(backward) };
    let all: Vec<&Tensor> = results.iter().chain(operands.iter().copied()).collect();
    trace.attributing(at, trace.part().layer, || trace.apply(op, &all))
}

impl Operation for CustomGradient {
    fn name(&self) -> &'static str {
        "custom_gradient"
    }

    // Planning follows differentiating: whatever the rule, the results are the operands.
    fn attributes(&self) -> String {
        self.results.to_string()
    }

    fn output_count(&self) -> usize {
        self.results
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        match inputs.get(..self.results) {
            Some(results) => Ok(results.to_vec()),
            None => Err(Mismatch::Parameter(format!("takes at least {} operands", self.results))),
        }
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let gradients: Vec<Tensor> = (0..self.results).map(|result| at.gradient(result)).collect();
        let operands = &at.inputs[self.results..];
        let given = at.checked((self.rule)(operands, at.outputs, &gradients), operands);
        std::iter::repeat_n(None, self.results).chain(given).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let operands = &at.inputs[self.results..];
        at.transposing(self.results..at.inputs.len(), |gradients| (self.rule)(operands, at.outputs, gradients))
    }

    fn cost(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        Cost { work: Work::Elements, operations: 0, bytes: 0 }
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

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        inputs[..self.results].iter().map(|&result| result.clone()).collect()
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Identity
    }

    fn cases() -> Vec<Case> {
        let one = |x: &[Tensor]| {
            custom_gradient(
                &[&x[0]],
                |x| vec![x[0].tanh() * &x[0]],
                |x, y, g| {
                    // tanh(x) is y / x, and is written anew so that x may be zero.
                    let t = x[0].tanh();
                    vec![Some(&g[0] * (&t + &x[0] - &y[0] * &t))]
                },
            )
        };
        let two = |x: &[Tensor]| {
            custom_gradient(
                &[&x[0], &x[1]],
                |x| vec![&x[0] * &x[1], x[0].matmul(&x[1].transpose(0, 1))],
                |x, _, g| {
                    let to_first = &g[0] * &x[1] + g[1].matmul(&x[1]);
                    vec![Some(to_first), Some(&g[0] * &x[0] + g[1].transpose(0, 1).matmul(&x[0]))]
                },
            )
        };
        let clipped = |x: &[Tensor]| {
            let y = custom_gradient(&[&x[0]], |x| vec![x[0].clone()], |_, _, g| vec![Some(g[0].clone())]);
            vec![y[0].exp()]
        };
        vec![
            Case::new("a rule that uses the result", &[&[3, 4]], one),
            Case::new("two operands and results", &[&[3, 5], &[3, 5]], two),
            Case::new("an operand as it is", &[&[7]], clipped),
        ]
    }
}
