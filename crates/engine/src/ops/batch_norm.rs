//! Batch norm and group norm, made of other operations. Channels are axis 1; statistics are in f32.

use super::*;
use crate::{DType, Shape};

/// What batch norm gives while training.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The normalized tensor.
    pub output: Tensor,
    /// The mean of each channel, f32 `[c]`: for running statistics.
    pub mean: Tensor,
    /// The variance of each channel, divided by the count, f32 `[c]`: for running statistics.
    pub variance: Tensor,
}

impl Tensor {
    /// Each channel with mean 0 and variance 1 over the batch, times a gain, plus a bias: of `[n, c, ...]`, with gain
    /// and bias `[c]`. `epsilon` is added to the variance.
    #[track_caller]
    pub fn batch_norm(&self, gain: &Tensor, bias: &Tensor, epsilon: f32) -> BatchNorm {
        let poisoned = || self.trace().poisoned();
        let Some(channels) = self.channels("batch_norm", &[gain, bias], epsilon) else {
            return BatchNorm { output: poisoned(), mean: poisoned(), variance: poisoned() };
        };
        let axes: Vec<isize> = self.all_axes().into_iter().filter(|&axis| axis != 1).collect();
        if axes.iter().any(|&axis| self.size(axis) == 0) {
            let problem = "channels of no elements have no statistics; give at least one example".to_string();
            let output = self.parameter_error("batch_norm", problem);
            return BatchNorm { output, mean: poisoned(), variance: poisoned() };
        }
        let share = 1.0 / axes.iter().map(|&axis| self.size(axis)).product::<usize>() as f32;
        let x = self.cast(DType::F32);
        let mean = x.mean(&axes);
        let variance = (&x - mean.along_channels(&channels)).sum_of_squares(&axes) * share;
        let output = x.channel_norm(&channels, &mean, &variance, gain, bias, epsilon).cast(self.dtype());
        // Differentiating what it is made of would take more passes over the tensor, among them two for sums that are zero.
        let gradient = move |operands: &[Tensor], results: &[Tensor], gradients: &[Tensor]| {
            gradient(operands, results, gradients, Statistics { channels: &channels, axes: &axes, share, epsilon })
        };
        let [output, mean, variance] = custom_gradient(&[self, gain, bias], |_| vec![output, mean, variance], gradient)
            .try_into()
            .expect("three results");
        BatchNorm { output, mean, variance }
    }

    /// Batch norm by known statistics, as in evaluation: of `[n, c, ...]`, with all others `[c]`.
    #[track_caller]
    pub fn batch_norm_with(
        &self,
        mean: &Tensor,
        variance: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f32,
    ) -> Tensor {
        let Some(channels) = self.channels("batch_norm_with", &[mean, variance, gain, bias], epsilon) else {
            return self.trace().poisoned();
        };
        let x = self.cast(DType::F32);
        x.channel_norm(&channels, mean, variance, gain, bias, epsilon).cast(self.dtype())
    }

    /// Each group of channels of each example with mean 0 and variance 1, then each channel times a gain, plus a
    /// bias: of `[n, c, ...]`, with gain and bias `[c]`. `epsilon` is added to the variance.
    #[track_caller]
    pub fn group_norm(&self, groups: usize, gain: &Tensor, bias: &Tensor, epsilon: f32) -> Tensor {
        let Some(channels) = self.channels("group_norm", &[gain, bias], epsilon) else {
            return self.trace().poisoned();
        };
        let shape = self.shape();
        if groups == 0 || !shape[1].is_multiple_of(groups) {
            let problem = format!("{} channels cannot be cut into {groups} groups; take a divisor", shape[1]);
            return self.parameter_error("group_norm", problem);
        }
        let group_elements = shape[1] / groups * shape[2..].iter().product::<usize>();
        let x = self.cast(DType::F32).reshape([shape[0], groups, group_elements]);
        let scale = (x.variance(&[-1]) + epsilon).sqrt().reshape([shape[0], groups, 1]);
        let normalized = ((&x - x.mean_keep(&[-1])) / scale).reshape(&shape);
        (normalized * gain.along_channels(&channels) + bias.along_channels(&channels)).cast(self.dtype())
    }

    /// `(self - mean) / sqrt(variance + epsilon) * gain + bias`, with one of each for every channel.
    #[track_caller]
    fn channel_norm(
        &self,
        channels: &Shape,
        mean: &Tensor,
        variance: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f32,
    ) -> Tensor {
        let inverse = 1.0 / (variance.cast(DType::F32) + epsilon).sqrt();
        let scale = (inverse * gain.cast(DType::F32)).along_channels(channels);
        (self - mean.along_channels(channels)) * scale + bias.along_channels(channels)
    }

    /// A number for each channel, in f32, shaped to be repeated over the other axes.
    #[track_caller]
    fn along_channels(&self, channels: &Shape) -> Tensor {
        self.cast(DType::F32).reshape(channels)
    }

    /// The shape `[c, 1, ...]` that repeats over `[n, c, ...]`; `None`, and an error of the trace, if there is no
    /// channel axis or an operand does not have one number for each channel.
    #[track_caller]
    fn channels(&self, op: &str, operands: &[&Tensor], epsilon: f32) -> Option<Shape> {
        if self.is_poisoned() || operands.iter().any(|operand| operand.is_poisoned()) {
            return None;
        }
        let types: Vec<TensorType> = [self].into_iter().chain(operands.iter().copied()).map(Tensor::ty).collect();
        match channel_shape(&types, epsilon) {
            Ok(shape) => Some(shape),
            Err(mismatch) => {
                self.trace().fail(crate::Error::mismatch(op, types, mismatch, self.trace().location()));
                None
            }
        }
    }
}

/// Over what statistics are taken.
struct Statistics<'a> {
    /// The shape that repeats a number for each channel.
    channels: &'a Shape,
    axes: &'a [isize],
    /// One, divided by the numbers of a channel.
    share: f32,
    epsilon: f32,
}

/// The gradients of tensor, gain and bias, from those of the normalized tensor, the mean and the variance: two sums for each
/// channel, and what is the same for all numbers of a channel is worked out before the tensor is.
fn gradient(
    operands: &[Tensor],
    results: &[Tensor],
    gradients: &[Tensor],
    Statistics { channels, axes, share, epsilon }: Statistics<'_>,
) -> Vec<Option<Tensor>> {
    let [x, gain, bias] = operands else { unreachable!("three operands") };
    let [_, mean, variance] = results else { unreachable!("three results") };
    let [of_output, of_mean, of_variance] = gradients else { unreachable!("a gradient for each result") };
    let g = &of_output.cast(DType::F32);
    let centered = &(x.cast(DType::F32) - mean.along_channels(channels));
    let inverse = &(1.0 / (variance + epsilon).sqrt());
    let (sum, along) = (&g.sum(axes), &(g * centered).sum(axes));
    let scale = &(inverse * gain.cast(DType::F32));
    let slope = of_variance * (2.0 * share) - scale * inverse * inverse * along * share;
    let shift = of_mean * share - scale * sum * share;
    let of_x =
        g * scale.along_channels(channels) + centered * slope.along_channels(channels) + shift.along_channels(channels);
    vec![Some(of_x.cast(x.dtype())), Some((along * inverse).cast(gain.dtype())), Some(sum.cast(bias.dtype()))]
}

/// The shape `[c, 1, ...]` if the first type has channels and the others one number for each.
fn channel_shape(types: &[TensorType], epsilon: f32) -> Result<Shape, Mismatch> {
    types.iter().try_for_each(Mismatch::unless_float)?;
    Mismatch::unless_rank("the operand", &types[0], 2)?;
    let mut shape = vec![1; types[0].shape.rank() - 1];
    shape[0] = types[0].shape[1];
    for ty in &types[1..] {
        Mismatch::unless_shape("what each channel has one of", ty, &[shape[0]].into())?;
    }
    super::layer_norm::check_epsilon(epsilon)?;
    Ok(shape.into())
}

/// Cases of batch norm and group norm.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for shape in [&[4, 3, 2, 5][..], &[6, 2], &[2, 1, 3], &[3, 8, 16, 17]] {
        let channels = &shape[1..2];
        let name = format!("batch norm of {shape:?}");
        cases.push(Case::new(&name, &[shape, channels, channels], |x| {
            let BatchNorm { output, mean, variance } = x[0].batch_norm(&x[1], &x[2], 1e-3);
            vec![output, mean, variance]
        }));
    }
    let channel = |low: f64, high: f64| CaseInput::uniform([3], low, high);
    let known = vec![
        CaseInput::uniform([2, 3, 5], -2.0, 2.0),
        channel(-1.0, 1.0),
        channel(0.5, 2.0),
        channel(-2.0, 2.0),
        channel(-2.0, 2.0),
    ];
    cases.push(Case::with_inputs("batch norm by known statistics", known, |x| {
        vec![x[0].batch_norm_with(&x[1], &x[2], &x[3], &x[4], 1e-3)]
    }));
    for (shape, groups) in
        [(&[2, 6, 3, 2][..], 3), (&[2, 4, 3], 1), (&[3, 4, 5], 4), (&[0, 4, 2], 2), (&[2, 12, 9, 9], 4)]
    {
        let channels = &shape[1..2];
        let name = format!("group norm of {shape:?} in {groups} groups");
        cases.push(Case::new(&name, &[shape, channels, channels], move |x| {
            vec![x[0].group_norm(groups, &x[1], &x[2], 1e-3)]
        }));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;

    /// The error of norms of a tensor of this shape, with this many channels in gain and bias.
    fn error(shape: &[usize], channels: usize, norm: impl Fn(&Tensor, &Tensor) -> Tensor) -> String {
        let trace = Trace::new();
        let channel = trace.input("channel", DType::F32, [channels]);
        assert!(norm(&trace.input("x", DType::F32, shape), &channel).is_poisoned());
        trace.check().expect_err("an error").to_string()
    }

    #[test]
    fn misuse_is_an_error_at_the_callers_line() {
        let batch_norm = |x: &Tensor, channel: &Tensor| x.batch_norm(channel, channel, 1e-5).output;
        let group_norm =
            |groups: usize| move |x: &Tensor, channel: &Tensor| x.group_norm(groups, channel, channel, 1e-5);
        let errors = [
            (error(&[2, 6, 3], 5, batch_norm), "must be of shape [6], not [5]"),
            (error(&[6], 6, batch_norm), "at least 2 axes"),
            (error(&[0, 6], 6, batch_norm), "give at least one example"),
            (error(&[2, 6], 6, |x, channel| x.batch_norm_with(channel, channel, channel, channel, -1.0)), "epsilon"),
            (error(&[2, 6], 6, group_norm(4)), "6 channels cannot be cut into 4 groups"),
            (error(&[2, 6], 6, group_norm(0)), "6 channels cannot be cut into 0 groups"),
            (error(&[2, 6], 5, |x, channel| x.layer_norm(channel, channel, 1e-5)), "must be of shape [6], not [5]"),
            (error(&[2, 0], 0, |x, channel| x.layer_norm(channel, channel, 1e-5)), "rows of no elements"),
            (error(&[2, 6], 6, |x, channel| x.rms_norm(channel, f32::NAN)), "epsilon"),
        ];
        for (error, expected) in errors {
            assert!(error.contains(expected) && error.contains(file!()), "{error}");
        }
    }
}
