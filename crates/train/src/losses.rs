//! Losses, with the meaning that PyTorch's functions of the same names have. They are computed in f32.

use gradus_engine::{Array, DType, Tensor};

/// What becomes of the losses of single examples or elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Each by itself.
    None,
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    #[track_caller]
    fn of(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::None => losses.clone(),
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
        }
    }
}

/// What classes count for.
#[derive(Clone, Debug, Default)]
pub struct ClassOptions {
    /// The share of the target that is spread over all classes, from 0 to 1.
    pub label_smoothing: f32,
    /// A target that does not count.
    pub ignored: Option<i32>,
    /// What each class counts for: `[classes]`.
    pub class_weights: Option<Tensor>,
    /// What becomes of the losses of the rows. A mean is over what the rows' targets count for, and zero of none.
    pub reduction: Reduction,
}

/// The cross-entropy of logits [..., classes] with targets [...].
#[track_caller]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, options: ClassOptions) -> Tensor {
    let plain = logits.cross_entropy_rows(targets, options.ignored); // [...]
    let smoothing = options.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        return logits.parameter_error("cross_entropy", format!("a smoothing of {smoothing} is not between 0 and 1"));
    }
    let counts = match Counts::new(logits, targets, &options) {
        Ok(counts) => counts,
        Err(refused) => return refused,
    };
    let mut losses = counts.weigh(&plain);
    if smoothing > 0.0 {
        let log_probabilities = logits.cast(DType::F32).log_softmax(-1); // [..., classes]
        let weighted = match &options.class_weights {
            Some(weights) => &log_probabilities * weights,
            None => log_probabilities,
        };
        let spread = counts.mask(&-weighted.sum(&[-1])); // [...]
        losses = losses * (1.0 - smoothing) + spread * (smoothing / logits.size(-1).max(1) as f32);
    }
    counts.reduce(&losses, options.reduction)
}

/// Minus the logarithms of probabilities [..., classes] at targets [...]. Labels are not smoothed here.
#[track_caller]
pub fn negative_log_likelihood(log_probabilities: &Tensor, targets: &Tensor, options: ClassOptions) -> Tensor {
    if options.label_smoothing != 0.0 {
        let problem = "labels are smoothed by cross_entropy alone; leave the smoothing 0".to_string();
        return log_probabilities.parameter_error("negative_log_likelihood", problem);
    }
    let counts = match Counts::new(log_probabilities, targets, &options) {
        Ok(counts) => counts,
        Err(refused) => return refused,
    };
    let rank = log_probabilities.shape().rank();
    if rank == 0 || targets.shape().to_vec() != log_probabilities.shape()[..rank - 1] {
        let problem = format!("takes a target for each row, not targets of shape {}", targets.shape());
        return log_probabilities.parameter_error("negative_log_likelihood", problem);
    }
    let picked = log_probabilities.cast(DType::F32).gather(-1, &counts.classes.unsqueeze(-1)).squeeze(-1); // [...]
    counts.reduce(&counts.weigh(&counts.mask(&-picked)), options.reduction)
}

/// What each row of a loss over classes counts for.
struct Counts {
    /// The targets, with a class that there is in place of the one that is ignored.
    classes: Tensor,
    /// 1 for each row that counts, 0 for others; `None` if all do.
    counted: Option<Tensor>,
    /// The weights of the rows' classes, zero for rows that do not count; `None` if all classes count alike.
    weights: Option<Tensor>,
}

impl Counts {
    /// Of rows [..., classes] with targets [...], or what to give for weights that do not fit.
    #[track_caller]
    fn new(rows: &Tensor, targets: &Tensor, options: &ClassOptions) -> Result<Counts, Tensor> {
        let mut counts = Counts { classes: targets.clone(), counted: None, weights: None };
        if let Some(ignored) = options.ignored {
            let counted = targets.not_equal(&targets.trace().constant(Array::scalar(ignored))); // [...]
            counts.classes = counted.select(targets, &targets.zeros_like());
            counts.counted = Some(counted.cast(DType::F32));
        }
        if let Some(weights) = &options.class_weights {
            if weights.shape()[..] != [rows.size(-1)] {
                let problem = format!("the class weights are of shape {}, not one for each class", weights.shape());
                return Err(rows.parameter_error("a loss over classes", problem));
            }
            let picked =
                weights.cast(DType::F32).index_select(0, &counts.classes.reshape([targets.shape().elements()]));
            counts.weights = Some(counts.mask(&picked.reshape(targets.shape())));
        }
        Ok(counts)
    }

    /// Zero for rows that do not count.
    #[track_caller]
    fn mask(&self, rows: &Tensor) -> Tensor {
        match &self.counted {
            Some(counted) => counted.select(rows, &rows.zeros_like()),
            None => rows.clone(),
        }
    }

    #[track_caller]
    fn weigh(&self, rows: &Tensor) -> Tensor {
        match &self.weights {
            Some(weights) => rows * weights,
            None => rows.clone(),
        }
    }

    #[track_caller]
    fn reduce(&self, losses: &Tensor, reduction: Reduction) -> Tensor {
        let counted = self.weights.as_ref().or(self.counted.as_ref());
        match (reduction, counted) {
            (Reduction::Mean, Some(counted)) => {
                let total = counted.sum_all();
                let none = total.equal(&total.zeros_like());
                losses.sum_all() / none.select(&total.ones_like(), &total)
            }
            _ => reduction.of(losses),
        }
    }
}

/// The cross-entropy of targets between 0 and 1 with the sigmoid of logits of the same shape. `positive_weights`, if
/// given, broadcast, and say what the positive part of each target counts for.
#[track_caller]
pub fn binary_cross_entropy_with_logits(
    logits: &Tensor,
    targets: &Tensor,
    positive_weights: Option<&Tensor>,
    reduction: Reduction,
) -> Tensor {
    let [logits, targets] = match same_shape("binary_cross_entropy_with_logits", logits, targets) {
        Ok(both) => both,
        Err(refused) => return refused,
    };
    // The logarithms of the sigmoid of x and of -x: neither overflows, and slopes are right at 0.
    let both = Tensor::stack(&[&logits, &logits.zeros_like()], -1).log_softmax(-1); // [..., 2]
    let [positive, negative] = [0, 1].map(|side| both.slice(-1, side..side + 1).squeeze(-1)); // [...]
    let positive = match positive_weights {
        Some(weights) => positive * weights,
        None => positive,
    };
    reduction.of(&-(&targets * positive + (1.0 - &targets) * negative))
}

/// The squares of the differences.
#[track_caller]
pub fn mse(predictions: &Tensor, targets: &Tensor, reduction: Reduction) -> Tensor {
    of_differences("mse", predictions, targets, reduction, |difference| difference * difference)
}

/// The absolute differences.
#[track_caller]
pub fn l1(predictions: &Tensor, targets: &Tensor, reduction: Reduction) -> Tensor {
    of_differences("l1", predictions, targets, reduction, Tensor::abs)
}

/// Half the squares of differences up to `delta`; beyond, as steep as there.
#[track_caller]
pub fn huber(predictions: &Tensor, targets: &Tensor, delta: f32, reduction: Reduction) -> Tensor {
    if !(delta > 0.0 && delta.is_finite()) {
        return predictions.parameter_error("huber", format!("a delta of {delta} is not above 0 and finite"));
    }
    of_differences("huber", predictions, targets, reduction, |difference| {
        let size = difference.abs();
        let is_near = size.less_equal(&size.full_like(delta));
        is_near.select(&(difference * difference * 0.5), &((&size - 0.5 * delta) * delta))
    })
}

/// The Huber loss divided by its `beta`: beyond it as steep as [`l1`], which it is for a `beta` of 0.
#[track_caller]
pub fn smooth_l1(predictions: &Tensor, targets: &Tensor, beta: f32, reduction: Reduction) -> Tensor {
    if !(beta >= 0.0 && beta.is_finite()) {
        return predictions.parameter_error("smooth_l1", format!("a beta of {beta} is not finite and from 0 up"));
    }
    // Of which no f32 could tell the difference.
    if beta < f32::MIN_POSITIVE {
        return l1(predictions, targets, reduction);
    }
    of_differences("smooth_l1", predictions, targets, reduction, |difference| {
        // What is not near is not divided by a small beta either, so that no slope is zero times infinity.
        let (size, near) = (difference.abs(), difference.clamp(-beta, beta));
        let is_near = size.less_equal(&size.full_like(beta));
        is_near.select(&((&near / beta) * &near * 0.5), &(size - 0.5 * beta))
    })
}

/// The divergence of distributions, given by their logarithms, from targets that are probabilities, element by element: not
/// a number for a target below 0. A mean is over elements; for one over distributions divide the sum by their number.
#[track_caller]
pub fn kl_divergence(log_probabilities: &Tensor, targets: &Tensor, reduction: Reduction) -> Tensor {
    let [x, targets] = match same_shape("kl_divergence", log_probabilities, targets) {
        Ok(both) => both,
        Err(refused) => return refused,
    };
    // Nothing of what has no probability; what is below is none, and its logarithm no number.
    let zeros = targets.zeros_like();
    let is_zero = targets.equal(&zeros);
    let logarithms = is_zero.select(&targets.ones_like(), &targets).log();
    reduction.of(&is_zero.select(&zeros, &(&targets * (logarithms - x))))
}

/// The cosine of the angle between vectors along an axis. Lengths below 1e-8 count as that.
#[track_caller]
pub fn cosine_similarity(a: &Tensor, b: &Tensor, axis: isize) -> Tensor {
    let [a, b] = match same_shape("cosine_similarity", a, b) {
        Ok(both) => both,
        Err(refused) => return refused,
    };
    let length = |x: &Tensor| x.norm(2.0, &[axis]).clamp(1e-8, f32::INFINITY);
    (&a * &b).sum(&[axis]) / (length(&a) * length(&b))
}

#[track_caller]
fn of_differences(
    name: &str,
    predictions: &Tensor,
    targets: &Tensor,
    reduction: Reduction,
    loss: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    match same_shape(name, predictions, targets) {
        Ok([predictions, targets]) => reduction.of(&loss(&(predictions - targets))),
        Err(refused) => refused,
    }
}

/// Both in f32, if they are of one shape: a loss that broadcasts is nearly always a mistake.
#[track_caller]
fn same_shape(name: &str, a: &Tensor, b: &Tensor) -> Result<[Tensor; 2], Tensor> {
    if a.shape() == b.shape() {
        return Ok([a.cast(DType::F32), b.cast(DType::F32)]);
    }
    Err(a.parameter_error(name, format!("takes two tensors of one shape, not {} and {}", a.shape(), b.shape())))
}
