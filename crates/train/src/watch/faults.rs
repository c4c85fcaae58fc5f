//! What gradients, weights and updates tell: layers that are far too large or too small, units that are dead, updates that
//! are too large.
//!
//! Only matrices are compared with each other: gradients of biases and gains may be as small as they like (that of the keys'
//! bias in attention is zero but for rounding). Tables are left out, since rows that a batch does not look up have none.

use super::health::{Health, Watched, WeightHealth};
use super::verdict::{Alert, Verdict};
use serde::{Deserialize, Serialize};

/// Weights so many times as large as those of half of the other layers make the signal explode.
const TOO_LARGE: f32 = 100.0;
/// Gradients such a share of the largest do not train their weights; beside a layer whose weights are too small, a larger
/// share is enough to tell.
const VANISHED: f32 = 1e-5;
const VANISHED_BEHIND: f32 = 1e-3;
const TOO_SMALL: f32 = 1e-3;
/// A layer with weights such a share of others', whose gradient is so many times as large as theirs, lets little through.
const NARROW: f32 = 0.05;
const NARROW_GRADIENT: f32 = 100.0;
/// The share of zeros in the gradients of two weights side by side that only dead units give, and for how long: where the
/// last layer begins with zeros, so do the gradients before it.
const DEAD: f32 = 0.6;
const DEAD_FOR: Lasting = Lasting { measurements: 2, steps: 5 };
/// Updates such a share of the weights, in half of the matrices, and for how long: weights that begin with zeros have large
/// ones at first.
const LARGE_UPDATE: f32 = 0.5;
const LARGE_UPDATE_FOR: Lasting = Lasting { measurements: 3, steps: 10 };
/// Measurements after which something that is not seen any more is over.
const OVER_AFTER: u32 = 3;

/// What was found, and what it was found by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Faults {
    dead: Option<Seen>,
    large_updates: Option<Seen>,
    /// What is going on, and for how many measurements it was not seen.
    going_on: Vec<(Verdict, u32)>,
    /// Room to sort in.
    #[serde(skip)]
    sorted: Vec<f32>,
}

/// How long something must last.
struct Lasting {
    measurements: u32,
    steps: u64,
}

/// For how many measurements in a row something was seen, and since which step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    measurements: u32,
    since: u64,
}

impl Seen {
    /// The same after a further step; whether it has lasted.
    fn after(before: Option<Seen>, step: u64, is_seen: bool, lasting: Lasting) -> (Option<Seen>, bool) {
        let seen = before.unwrap_or(Seen { measurements: 0, since: step });
        let seen = Some(Seen { measurements: seen.measurements + 1, ..seen }).filter(|_| is_seen);
        let lasts = |seen: Seen| seen.measurements >= lasting.measurements && step >= seen.since + lasting.steps;
        (seen, seen.is_some_and(lasts))
    }
}

/// A matrix, and how much it makes of a signal about, whatever its sizes.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    name: &'a str,
    gradient: f32,
    scale: f32,
    ratio: f32,
}

impl<'a> Matrix<'a> {
    fn of((watched, figures): (&'a Watched, &WeightHealth)) -> Option<Matrix<'a>> {
        let is_matrix = watched.shape.rank() >= 2 && !watched.is_table;
        // The norm over the root of rows and columns, each by half.
        let scale = figures.weight_norm / (figures.count.max(1) as f32).powf(0.25);
        let ratio = figures.update_ratio().unwrap_or(0.0);
        is_matrix.then_some(Matrix { name: &watched.name, gradient: figures.gradient_rms(), scale, ratio })
    }
}

fn matrices(health: &Health) -> impl Iterator<Item = Matrix<'_>> + Clone {
    health.weights().filter_map(Matrix::of)
}

impl Faults {
    /// Sees the figures of a step; gives alerts of what was not going on before. Allocates for those alone, once there is
    /// room to sort in.
    pub fn see(&mut self, step: u64, health: &Health) -> Vec<Alert> {
        let mut found = [
            self.too_large(health),
            self.large_updates(step, health),
            self.vanished(health),
            self.narrow(health),
            self.dead(step, health),
        ];
        self.sorted.clear();
        self.going_on.iter_mut().for_each(|(_, unseen)| *unseen += 1);
        let mut alerts = vec![];
        for found in found.iter_mut().filter_map(Option::take) {
            match self.going_on.iter_mut().find(|(verdict, _)| *verdict == found.verdict) {
                Some((_, unseen)) => *unseen = 0,
                None => {
                    self.going_on.push((found.verdict, 0));
                    alerts.push(found.alert());
                }
            }
        }
        self.going_on.retain(|(_, unseen)| *unseen < OVER_AFTER);
        alerts
    }

    /// The worst of what is going on.
    pub fn verdict(&self) -> Verdict {
        self.going_on.iter().map(|(verdict, _)| *verdict).max().unwrap_or_default()
    }

    /// The numbers above zero in order.
    fn sorted(&mut self, numbers: impl Iterator<Item = f32>) -> &[f32] {
        self.sorted.clear();
        self.sorted.extend(numbers.filter(|number| *number > 0.0));
        self.sorted.sort_unstable_by(f32::total_cmp);
        &self.sorted
    }

    /// The scale that half of the matrices have at most, and that half have at least.
    fn usual_scales(&mut self, health: &Health) -> Option<(f32, f32)> {
        let sorted = self.sorted(matrices(health).map(|matrix| matrix.scale));
        let middle = |index: usize| sorted.get(index).copied();
        Some((middle(sorted.len().checked_sub(1)? / 2)?, middle(sorted.len() / 2)?))
    }

    fn too_large<'h>(&mut self, health: &'h Health) -> Option<Found<'h>> {
        let (usual, _) = self.usual_scales(health)?;
        let largest = matrices(health).max_by(|a, b| a.scale.total_cmp(&b.scale))?;
        (largest.scale > TOO_LARGE * usual).then_some(Found {
            verdict: Verdict::Exploding,
            place: largest.name,
            how: How::TooLarge { times: largest.scale / usual },
        })
    }

    fn large_updates<'h>(&mut self, step: u64, health: &'h Health) -> Option<Found<'h>> {
        let sorted = self.sorted(matrices(health).map(|matrix| matrix.ratio));
        let usual = sorted.len().checked_sub(1).map_or(0.0, |last| sorted[last / 2]);
        let lasts;
        (self.large_updates, lasts) = Seen::after(self.large_updates, step, usual > LARGE_UPDATE, LARGE_UPDATE_FOR);
        let largest = matrices(health).max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
        lasts.then_some(Found { verdict: Verdict::Exploding, place: largest.name, how: How::LargeUpdates { usual } })
    }

    fn vanished<'h>(&mut self, health: &'h Health) -> Option<Found<'h>> {
        let (_, usual) = self.usual_scales(health)?;
        // Exact zeros come with weights that begin as zeros, or with dead units.
        let passed = matrices(health).filter(|matrix| matrix.gradient > 0.0);
        let smallest = passed.clone().min_by(|a, b| a.gradient.total_cmp(&b.gradient))?;
        let largest = passed.max_by(|a, b| a.gradient.total_cmp(&b.gradient))?;
        let lowest = matrices(health).filter(|matrix| matrix.scale > 0.0).min_by(|a, b| a.scale.total_cmp(&b.scale))?;
        let cause = Some(lowest).filter(|lowest| lowest.scale < TOO_SMALL * usual);
        let share = smallest.gradient / largest.gradient;
        let found = share < if cause.is_some() { VANISHED_BEHIND } else { VANISHED };
        found.then_some(Found {
            verdict: Verdict::Vanishing,
            place: cause.map_or(smallest.name, |cause| cause.name),
            how: How::Vanished {
                smallest: smallest.name,
                share,
                largest: largest.name,
                cause: cause.map(|cause| cause.scale / usual),
            },
        })
    }

    fn narrow<'h>(&mut self, health: &'h Health) -> Option<Found<'h>> {
        let (_, usual) = self.usual_scales(health)?;
        let sorted = self.sorted(matrices(health).map(|matrix| matrix.gradient));
        let usual_gradient = sorted[sorted.len().checked_sub(1)? / 2];
        let largest = matrices(health).max_by(|a, b| a.gradient.total_cmp(&b.gradient))?;
        let is_narrow = largest.scale < NARROW * usual && largest.scale >= TOO_SMALL * usual;
        (is_narrow && largest.gradient > NARROW_GRADIENT * usual_gradient).then_some(Found {
            verdict: Verdict::BottleneckLayer,
            place: largest.name,
            how: How::Narrow { weights: largest.scale / usual, gradient: largest.gradient / usual_gradient },
        })
    }

    fn dead<'h>(&mut self, step: u64, health: &'h Health) -> Option<Found<'h>> {
        let neighbours = health.weights().zip(health.weights().skip(1));
        let is_dead = |(watched, figures): (&Watched, &WeightHealth)| !watched.is_table && figures.zeros >= DEAD;
        let has_matrix = |a: &Watched, b: &Watched| a.shape.rank().max(b.shape.rank()) >= 2;
        let mut dead = neighbours.filter(|(a, b)| is_dead(*a) && is_dead(*b) && has_matrix(a.0, b.0));
        let first = dead.next();
        let lasts;
        (self.dead, lasts) = Seen::after(self.dead, step, first.is_some(), DEAD_FOR);
        let ((watched, figures), _) = first.filter(|_| lasts)?;
        let how = How::Dead { share: figures.zeros };
        Some(Found { verdict: Verdict::DeadUnits, place: &watched.name, how })
    }
}

/// A fault that was found; only one that is new is put in words.
struct Found<'h> {
    verdict: Verdict,
    place: &'h str,
    how: How<'h>,
}

enum How<'h> {
    TooLarge { times: f32 },
    LargeUpdates { usual: f32 },
    Vanished { smallest: &'h str, share: f32, largest: &'h str, cause: Option<f32> },
    Narrow { weights: f32, gradient: f32 },
    Dead { share: f32 },
}

impl Found<'_> {
    fn alert(&self) -> Alert {
        let (reason, advice) = match &self.how {
            How::TooLarge { times } => (
                format!("its weights are {times:.0} times as large as those of other layers"),
                "a smaller start of this layer, or a norm before it",
            ),
            How::LargeUpdates { usual } => (
                format!("half of the matrices change by more than {usual:.2} times themselves in a step"),
                "a lower learning rate, a longer warm-up, or clipping",
            ),
            How::Vanished { smallest, share, largest, cause: Some(cause) } => (
                format!(
                    "its weights are {cause:.1e} times as large as those of other layers, and the gradient of {smallest} is \
                     {share:.1e} times that of {largest}"
                ),
                "a larger start of this layer",
            ),
            How::Vanished { smallest, share, largest, cause: None } => (
                format!("the gradient of {smallest} is {share:.1e} times that of {largest}"),
                "residual connections, norms, another activation or start of the layers between",
            ),
            How::Narrow { weights, gradient } => (
                format!(
                    "its weights are {weights:.1e} times as large as those of other layers, and its gradient is \
                     {gradient:.0} times as large as theirs: little passes through it"
                ),
                "a larger start of this layer, or a way around it",
            ),
            How::Dead { share } => (
                format!("{:.0} % of its gradient and of its neighbour's are zero, step after step", 100.0 * share),
                "a lower learning rate, another start of the biases, or an activation that has a slope everywhere",
            ),
        };
        Alert { verdict: self.verdict, place: Some(self.place.to_string()), reason, advice: advice.into() }
    }
}
