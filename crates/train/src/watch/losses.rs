//! What losses tell from step to step: spikes, plateaus, overfitting. Memory is the same for any length.

use super::verdict::{Alert, Verdict};
use serde::{Deserialize, Serialize};

/// Losses that are remembered one by one, and how many of them are the last ones.
const RECENT: usize = 64;
const LAST: usize = 4;
/// Losses that must come before the last ones until a spike can be told.
const BEFORE_MIN: usize = 16;
/// A spike stands out by so many times what losses scatter, and by such a share of them.
const DEVIATIONS: f32 = 8.0;
const RISE_MIN: f32 = 0.15;
/// Steps after which losses that stay up are what is usual now.
const SPIKE_STEPS_MAX: u64 = 200;
/// A learning rate that grew so many times within the remembered steps may be what made the loss rise.
const RATE_JUMP: f32 = 1.2;

/// The losses of the last steps, without those of a spike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spikes {
    losses: Vec<f32>,
    rates: Vec<f32>,
    /// The loss above which the present spike is one, and the step that it was found at.
    spike: Option<(f32, u64)>,
}

impl Spikes {
    /// Sees a step; gives an alert where a spike begins.
    pub fn see(&mut self, step: u64, loss: f32, rate: f32) -> Option<Alert> {
        if let Some((limit, since)) = self.spike {
            if loss > limit && step < since + SPIKE_STEPS_MAX {
                return None;
            }
            self.spike = None;
            if loss > limit {
                self.losses.clear();
                self.rates.clear();
            }
        }
        push(&mut self.losses, loss);
        push(&mut self.rates, rate);
        let alert = self.found(step)?;
        self.losses.truncate(self.losses.len() - LAST);
        self.rates.truncate(self.rates.len() - LAST);
        Some(alert)
    }

    pub fn is_active(&self) -> bool {
        self.spike.is_some()
    }

    fn found(&mut self, step: u64) -> Option<Alert> {
        let before = self.losses.len().checked_sub(LAST).filter(|before| *before >= BEFORE_MIN)?;
        let (before, last) = self.losses.split_at(before);
        let mut sorted = [0.0; RECENT];
        let median = median(before, &mut sorted);
        let mut apart = [0.0; RECENT];
        apart.iter_mut().zip(before).for_each(|(apart, loss)| *apart = (loss - median).abs());
        // As wide as the deviation of a normal distribution.
        let deviation = 1.4826 * self::median(&apart[..before.len()], &mut sorted);
        let highest = before.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let limit = (median + (DEVIATIONS * deviation).max(RISE_MIN * median.abs())).max(highest);
        // All but one of the last: a single batch may be an odd one.
        if last.iter().filter(|loss| **loss > limit).count() < LAST - 1 || *last.last().expect("some are last") <= limit
        {
            return None;
        }
        self.spike = Some((limit, step));
        let mean = last.iter().sum::<f32>() / LAST as f32;
        let risen = format!("the loss of the last {LAST} steps is {mean:.4}, and was {median:.4} before");
        let (rates_before, rates) = self.rates.split_at(before.len());
        let usual = self::median(&rates_before[rates_before.len() / 2..], &mut sorted);
        let recently = &self.rates[before.len() - LAST..];
        let highest_rate = recently.iter().chain(rates).copied().fold(0.0, f32::max);
        let (reason, advice) = if highest_rate > RATE_JUMP * usual {
            let reason = format!("{risen}, after the learning rate rose from {usual:e} to {highest_rate:e}");
            (reason, "a lower learning rate or a longer warm-up, from the last checkpoint before")
        } else {
            let from = step.saturating_sub(LAST as u64 - 1);
            let reason = format!("{risen}, at the same learning rate: data from step {from} on may be unlike the rest");
            (reason, "a look at those data, clipping, or going on from the last checkpoint before")
        };
        Some(Alert { verdict: Verdict::LossSpike, place: None, reason, advice: advice.into() })
    }
}

/// Adds to the remembered numbers, of which the oldest goes. Allocates only until there is room for all.
fn push(numbers: &mut Vec<f32>, number: f32) {
    if numbers.len() == RECENT {
        numbers.remove(0);
    } else if numbers.capacity() < RECENT {
        numbers.reserve_exact(RECENT - numbers.len());
    }
    numbers.push(number);
}

fn median(numbers: &[f32], sorted: &mut [f32; RECENT]) -> f32 {
    let sorted = &mut sorted[..numbers.len()];
    sorted.copy_from_slice(numbers);
    sorted.sort_unstable_by(f32::total_cmp);
    sorted.get(numbers.len() / 2).copied().unwrap_or(f32::NAN)
}

/// Stretches that the run so far is seen as.
const STRETCHES: usize = 64;
/// Steps before which no plateau is told.
const PLATEAU_STEPS_MIN: u64 = 1000;
/// By how much the loss must have fallen from the third quarter of the run so far to the last one.
const FALL_MIN: f64 = 0.002;
/// A loss that is such a share of the first has converged.
const CONVERGED: f64 = 0.02;
/// Ends of stretches in a row at which the loss must not have fallen.
const STILL: u32 = 8;
/// Below this share of the highest learning rate, little is expected of a step.
const RATE_SHARE: f32 = 0.2;

/// Mean losses of equal stretches of the run so far: with twice the steps, each is twice as long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Plateaus {
    means: Vec<f64>,
    doublings: u32,
    sum: f64,
    count: u64,
    highest_rate: f32,
    still: u32,
}

impl Plateaus {
    /// Sees a step; gives an alert where the loss has stopped to fall.
    pub fn see(&mut self, loss: f32, rate: f32) -> Option<Alert> {
        self.highest_rate = self.highest_rate.max(rate);
        self.sum += loss as f64;
        self.count += 1;
        if self.count < 1 << self.doublings {
            return None;
        }
        if self.means.capacity() < STRETCHES {
            self.means.reserve_exact(STRETCHES - self.means.len());
        }
        self.means.push(self.sum / self.count as f64);
        (self.sum, self.count) = (0.0, 0);
        let alert = self.found(rate);
        if self.means.len() == STRETCHES {
            for index in 0..STRETCHES / 2 {
                self.means[index] = (self.means[2 * index] + self.means[2 * index + 1]) / 2.0;
            }
            self.means.truncate(STRETCHES / 2);
            self.doublings += 1;
        }
        alert
    }

    pub fn is_active(&self) -> bool {
        self.still >= STILL
    }

    /// The mean loss over the last eighth of the run.
    pub fn lately(&self) -> Option<f64> {
        let last = &self.means[self.means.len() - self.means.len().div_ceil(8)..];
        (!last.is_empty()).then(|| mean(last))
    }

    fn found(&mut self, rate: f32) -> Option<Alert> {
        let stretches = self.means.len();
        let steps = (stretches as u64) << self.doublings;
        let (half, quarter) = (stretches / 2, stretches / 4);
        if steps < PLATEAU_STEPS_MIN {
            return None;
        }
        let (third, last) = (mean(&self.means[half..stretches - quarter]), mean(&self.means[stretches - quarter..]));
        let converged = last.abs() < CONVERGED * self.means[0].abs();
        let is_still = last > third - FALL_MIN * third.abs() && !converged && rate > RATE_SHARE * self.highest_rate;
        self.still = if is_still { self.still.saturating_add(1) } else { 0 };
        if self.still != STILL {
            return None;
        }
        Some(Alert {
            verdict: Verdict::Plateau,
            place: None,
            reason: format!(
                "the loss is {last:.4} over the last {} steps, and was {third:.4} over as many before",
                (quarter as u64) << self.doublings
            ),
            advice: "another learning rate, a schedule that lowers it, a larger model, or an end".into(),
        })
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Validations in a row that are above the best one, by such a share, while the loss of training has fallen by such a share.
const WORSE_VALIDATIONS: u32 = 3;
const WORSE_BY: f32 = 0.02;
const FALLEN_BY: f64 = 0.02;

/// Losses on held-out data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Overfitting {
    /// The lowest: its step, and the loss of training then.
    best: Option<(u64, f32, f64)>,
    worse: u32,
}

impl Overfitting {
    /// Sees a validation, and the loss of training lately; gives an alert where they part.
    pub fn see(&mut self, step: u64, loss: f32, training: f64) -> Option<Alert> {
        let Some((best_step, best, before)) = self.best.filter(|(_, best, _)| loss > *best) else {
            (self.best, self.worse) = (Some((step, loss, training)), 0);
            return None;
        };
        let parts = loss > best + WORSE_BY * best.abs() && training < before - FALLEN_BY * before.abs();
        self.worse = if parts { self.worse.saturating_add(1) } else { 0 };
        if self.worse != WORSE_VALIDATIONS {
            return None;
        }
        Some(Alert {
            verdict: Verdict::Overfitting,
            place: None,
            reason: format!(
                "the validation loss is {loss:.4} and was {best:.4} after step {best_step}, while the training loss fell \
                 from {before:.4} to {training:.4}"
            ),
            advice: format!(
                "the checkpoint of about step {best_step}, more data, dropout, weight decay or a smaller model"
            ),
        })
    }

    pub fn is_active(&self) -> bool {
        self.worse >= WORSE_VALIDATIONS
    }
}
