//! Newton's method for small smooth problems: the step is solved for by conjugate gradients, and shortened until the loss falls.

use super::{ConjugateGradients, FromFn, add_scaled, conjugate_gradients, dot};
use crate::Result;

/// A smooth function of many numbers, to be made small.
pub trait Smooth {
    /// The loss at `x`, and its gradient written to `slope`.
    fn loss_and_gradient(&mut self, x: &[f32], slope: &mut [f32]) -> Result<f64>;

    /// The Hessian at the last `x` times a vector.
    fn hessian_product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()>;
}

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewtonCg {
    /// Steps at most.
    pub steps: usize,
    /// The length of the gradient with which the minimum is good enough.
    pub tolerance: f64,
    /// Products for a step at most.
    pub products: usize,
}

impl Default for NewtonCg {
    fn default() -> NewtonCg {
        NewtonCg { steps: 100, tolerance: 1e-4, products: 100 }
    }
}

/// Where it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// The numbers.
    pub x: Vec<f32>,
    /// The loss there.
    pub loss: f64,
    /// The length of the gradient there.
    pub slope: f64,
    /// How many steps were taken,
    pub steps: usize,
    /// and how many gradients and products they took.
    pub evaluations: usize,
}

/// The loss must fall by this share of what its gradient promises.
const SUFFICIENT: f64 = 1e-4;
/// A step is not halved more often.
const HALVINGS: usize = 40;

/// Goes from `x` to a minimum. A step along which the loss does not fall, however short, ends it: rounding has been reached.
pub fn newton_cg(problem: &mut (impl Smooth + ?Sized), x: &[f32], options: NewtonCg) -> Result<Minimum> {
    let mut slope = vec![0.0; x.len()];
    let mut at = Minimum { x: x.to_vec(), loss: 0.0, slope: 0.0, steps: 0, evaluations: 1 };
    at.loss = problem.loss_and_gradient(&at.x, &mut slope)?;
    at.slope = dot(&slope, &slope).sqrt();
    while at.steps < options.steps && at.slope > options.tolerance {
        let downhill: Vec<f32> = slope.iter().map(|x| -x).collect();
        let step = {
            let mut hessian =
                FromFn::new(x.len(), |v: &[f32], product: &mut [f32]| problem.hessian_product(v, product));
            // Exact where it is near, so that it converges faster and faster, and cheap where it is far.
            let tolerance = at.slope.sqrt().clamp(1e-6, 0.5);
            let solver = ConjugateGradients { steps: options.products, tolerance, damping: 0.0 };
            conjugate_gradients(&mut hessian, &downhill, solver)?
        };
        at.evaluations += step.steps;
        if !descend(problem, &mut at, &mut slope, &step.x)? {
            break;
        }
        at.steps += 1;
    }
    Ok(at)
}

/// Goes along a step as far as the loss falls; whether it does.
fn descend(problem: &mut (impl Smooth + ?Sized), at: &mut Minimum, slope: &mut [f32], step: &[f32]) -> Result<bool> {
    let promised = dot(slope, step);
    let mut far = 1.0;
    let mut tried_slope = vec![0.0; slope.len()];
    for _ in 0..HALVINGS {
        let mut tried = at.x.clone();
        add_scaled(&mut tried, far, step);
        let loss = problem.loss_and_gradient(&tried, &mut tried_slope)?;
        at.evaluations += 1;
        if loss < at.loss && loss <= at.loss + SUFFICIENT * far * promised {
            (at.x, at.loss) = (tried, loss);
            slope.copy_from_slice(&tried_slope);
            at.slope = dot(slope, slope).sqrt();
            return Ok(true);
        }
        far *= 0.5;
    }
    // The Hessian is that of the last numbers that were asked for: those that stay.
    problem.loss_and_gradient(&at.x, slope)?;
    Ok(false)
}
