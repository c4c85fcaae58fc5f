//! Adafactor: the second moment of a matrix is kept as the means of its rows and columns. Made of other operations.

use super::*;

/// Adafactor without a first moment, and its settings.
///
/// A running mean `v` of `g^2 + epsilon`, of which `1 - t^-decay_exponent` is kept at step `t`, scales the gradient
/// to `u = g / sqrt(v)`; if the root mean square of `u` exceeds `clip`, `u` is scaled down to it; and the weight
/// moves by `-lr (u + weight_decay w)`. Of a matrix, only the means of `v` over rows and columns are kept, `r` and `c`,
/// and `v = r c / mean(r)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// How fast the running mean comes to rest.
    pub decay_exponent: f32,
    /// Added to the square of the gradient.
    pub epsilon: f32,
    /// The largest root mean square of a step, before the learning rate.
    pub clip: f32,
    /// How much of the weight is taken away at each step, times the learning rate.
    pub weight_decay: f32,
}

/// The second moment of a weight; also what is known of it, such as the shapes of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum SecondMoment<T> {
    /// Of a matrix, or of matrices in the last two axes.
    Factored {
        /// The mean of each row: the weight's shape without the last axis.
        rows: T,
        /// The mean of each column: the weight's shape without the last axis but one.
        columns: T,
    },
    /// Of anything: the weight's shape.
    Whole(T),
}

/// What [`Adafactor::update`] takes.
#[derive(Clone, Copy, Debug)]
pub struct AdafactorInputs<'a> {
    /// The weight, in f32.
    pub weight: &'a Tensor,
    /// Its gradient, in any float type.
    pub gradient: &'a Tensor,
    /// The running mean of squared gradients, in f32; zeros at first, of the shapes that
    /// [`Adafactor::moment_shapes`] gives.
    pub second_moment: &'a SecondMoment<Tensor>,
    /// The learning rate: one f32.
    pub learning_rate: &'a Tensor,
    /// The number of this step as one f32, 1 at the first.
    pub step: &'a Tensor,
    /// What the gradient is multiplied by: one f32.
    pub scale: &'a Tensor,
}

/// What [`Adafactor::update`] gives.
#[derive(Clone, Debug)]
pub struct AdafactorOutputs {
    /// The new weight.
    pub weight: Tensor,
    /// The new second moment.
    pub second_moment: SecondMoment<Tensor>,
}

impl Default for Adafactor {
    fn default() -> Adafactor {
        Adafactor { decay_exponent: 0.8, epsilon: 1e-30, clip: 1.0, weight_decay: 0.0 }
    }
}

impl Adafactor {
    /// The shapes of a weight's second moment: factored from two axes on.
    pub fn moment_shapes(weight: &Shape) -> SecondMoment<Shape> {
        let rank = weight.rank();
        if rank < 2 {
            return SecondMoment::Whole(weight.clone());
        }
        let columns = weight[..rank - 2].iter().chain(&weight[rank - 1..]).copied().collect();
        SecondMoment::Factored { rows: weight.without_last(1), columns }
    }

    /// Moves a weight and its second moment on by one step.
    #[track_caller]
    pub fn update(self, at: AdafactorInputs<'_>) -> AdafactorOutputs {
        let AdafactorInputs { weight, second_moment, learning_rate, step, .. } = at;
        if self.clip.is_nan() || self.clip <= 0.0 {
            weight.parameter_error("adafactor", format!("clip is {}; it must be above 0", self.clip));
        }
        if !(0.0..f32::INFINITY).contains(&self.weight_decay) {
            let problem = format!("weight_decay is {}; it must be finite and not negative", self.weight_decay);
            weight.parameter_error("adafactor", problem);
        }
        let gradient = &(at.gradient.cast(DType::F32) * at.scale);
        let squares = &(gradient * gradient + self.epsilon);
        let taken = &step.powf(-self.decay_exponent);
        let (scaled, second_moment) = match second_moment {
            SecondMoment::Factored { rows, columns } => {
                let rows = running_mean(rows, &squares.mean(&[-1]), taken);
                let columns = running_mean(columns, &squares.mean(&[-2]), taken);
                // Each factor by itself: a product of two small means would be rounded to zero.
                let by_rows = with_axis(&(&rows / rows.mean_keep(&[-1])).sqrt(), -1);
                let by_columns = with_axis(&columns.sqrt(), -2);
                (gradient / by_rows / by_columns, SecondMoment::Factored { rows, columns })
            }
            SecondMoment::Whole(moment) => {
                let moment = running_mean(moment, squares, taken);
                (gradient / moment.sqrt(), SecondMoment::Whole(moment))
            }
        };
        let count = scaled.shape().elements().max(1) as f32;
        let root_mean_square = (scaled.sum_of_squares(&scaled.all_axes()) * (1.0 / count)).sqrt();
        let excess = root_mean_square * (1.0 / self.clip);
        let excess = excess.maximum(&excess.ones_like());
        let direction = match self.weight_decay {
            // No pass over the weights for nothing.
            0.0 => scaled / excess,
            decay => scaled / excess + weight * decay,
        };
        AdafactorOutputs { weight: weight - learning_rate * direction, second_moment }
    }
}

/// The running mean with so much taken of the new numbers.
#[track_caller]
fn running_mean(mean: &Tensor, new: &Tensor, taken: &Tensor) -> Tensor {
    if mean.shape() != new.shape() && !mean.is_poisoned() && !new.is_poisoned() {
        let problem = format!("a second moment must be of shape {}, not {}", new.shape(), mean.shape());
        return mean.parameter_error("adafactor", problem);
    }
    mean * (1.0 - taken) + new * taken
}

/// The same numbers with a new axis of size 1, counted from the last of the result's axes.
#[track_caller]
fn with_axis(x: &Tensor, axis: isize) -> Tensor {
    let mut shape = x.shape().to_vec();
    let at = (shape.len() as isize + 1 + axis).max(0) as usize;
    shape.insert(at, 1);
    x.reshape(shape)
}

/// Cases of matrices and others, of steps that are clipped and steps that are not.
pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, shape: &[usize], clip: f32, weight_decay: f32, step: f64| {
        let shape = Shape::from(shape);
        let moment = |shape: Shape| CaseInput::uniform(shape, 0.5, 2.0);
        let moments = match Adafactor::moment_shapes(&shape) {
            SecondMoment::Factored { rows, columns } => vec![moment(rows), moment(columns)],
            SecondMoment::Whole(whole) => vec![moment(whole)],
        };
        let mut inputs = case_inputs(&shape, &[]);
        inputs.extend(moments);
        inputs.extend([case_number(0.125), case_number(step), case_number(0.75)]);
        Case::with_inputs(name, inputs, move |x| {
            let [weight, gradient, moments @ .., learning_rate, step, scale] = x else {
                unreachable!("six operands or seven")
            };
            let second_moment = &match moments {
                [rows, columns] => SecondMoment::Factored { rows: rows.clone(), columns: columns.clone() },
                _ => SecondMoment::Whole(moments[0].clone()),
            };
            let op = Adafactor { clip, weight_decay, ..Adafactor::default() };
            let new = op.update(AdafactorInputs { weight, gradient, second_moment, learning_rate, step, scale });
            match new.second_moment {
                SecondMoment::Factored { rows, columns } => vec![new.weight, rows, columns],
                SecondMoment::Whole(whole) => vec![new.weight, whole],
            }
        })
    };
    vec![
        case("adafactor, a matrix, clipped", &[5, 7], 0.25, 0.0, 3.0),
        case("adafactor, a matrix, not clipped", &[5, 7], 100.0, 0.0, 9.0),
        case("adafactor, matrices, decayed", &[2, 3, 4], 0.25, 0.5, 2.0),
        case("adafactor, a vector, decayed", &[9], 0.25, 0.5, 3.0),
        case("adafactor, one number", &[], 100.0, 0.0, 3.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, Trace, backend};

    /// One step of a 2 x 3 matrix, with numbers worked out in f64 by the formula as it is written.
    #[test]
    fn a_matrix_moves_by_the_formula() {
        let (w, g) = ([0.5, -1.0, 2.0, 0.25, 1.5, -0.75], [1.0, -2.0, 0.5, 4.0, 1.0, -1.0]);
        let (r, c, rate, t, clip, decay) = ([1.0, 2.0], [0.5, 1.0, 3.0], 0.125, 5.0f64, 0.5, 0.25);
        let kept = 1.0 - t.powf(-0.8);
        let square = |row: usize, column: usize| g[row * 3 + column] * g[row * 3 + column] + 1e-30;
        let r_new: Vec<f64> = (0..2)
            .map(|row| kept * r[row] + (1.0 - kept) * (0..3).map(|column| square(row, column)).sum::<f64>() / 3.0)
            .collect();
        let c_new: Vec<f64> = (0..3)
            .map(|column| kept * c[column] + (1.0 - kept) * (square(0, column) + square(1, column)) / 2.0)
            .collect();
        let mean = (r_new[0] + r_new[1]) / 2.0;
        let u: Vec<f64> = (0..6).map(|i| g[i] / (r_new[i / 3] * c_new[i % 3] / mean).sqrt()).collect();
        let root_mean_square = (u.iter().map(|x| x * x).sum::<f64>() / 6.0).sqrt();
        let excess = (root_mean_square / clip).max(1.0);
        let w_new: Vec<f64> = (0..6).map(|i| w[i] * (1.0 - rate * decay) - rate * u[i] / excess).collect();

        let trace = Trace::new();
        let tensor = |shape: &[usize], numbers: &[f64]| {
            trace.constant(Array::from_f64(TensorType::new(DType::F32, shape), numbers).unwrap())
        };
        let second_moment = &SecondMoment::Factored { rows: tensor(&[2], &r), columns: tensor(&[3], &c) };
        let rule = Adafactor { clip: clip as f32, weight_decay: decay as f32, ..Adafactor::default() };
        let new = rule.update(AdafactorInputs {
            weight: &tensor(&[2, 3], &w),
            gradient: &tensor(&[2, 3], &g.map(|g| 2.0 * g)),
            second_moment,
            learning_rate: &tensor(&[], &[rate]),
            step: &tensor(&[], &[t]),
            scale: &tensor(&[], &[0.5]),
        });
        let SecondMoment::Factored { rows, columns } = new.second_moment else { panic!("a matrix is factored") };
        for (result, expected) in [(new.weight, w_new), (rows, r_new), (columns, c_new)] {
            let found = backend::evaluate(&trace.to_graph(), &[result.handle().unwrap()], |_| None).remove(0).data;
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close && found.len() == expected.len(), "{found:?} not {expected:?}");
        }
    }

    #[test]
    fn a_second_moment_of_another_shape_is_an_error() {
        let trace = Trace::new();
        let input = |name: &str, shape: &[usize]| trace.input(name, DType::F32, shape);
        let (weight, number) = (input("weight", &[2, 3]), input("number", &[]));
        let second_moment = &SecondMoment::Factored { rows: input("rows", &[3]), columns: input("columns", &[1]) };
        let at = AdafactorInputs {
            weight: &weight,
            gradient: &weight,
            second_moment,
            learning_rate: &number,
            step: &number,
            scale: &number,
        };
        Adafactor::default().update(at);
        let error = trace.check().unwrap_err().to_string();
        assert!(error.contains("must be of shape [2], not [3]"), "{error}");
    }
}
