//! What the steps of a training took, and what follows from it.

use super::allocations::{Allocations, Offender, Phase};
use super::benchmark::Spread;
use super::growth::Leak;
use super::parts::{Pass, Share};
use crate::memory::Account;
use gradus_engine::DType;
use gradus_engine::ops::Cost;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Share of a step that may be spent waiting for its batch.
const WAITING_SHARE: f64 = 0.05;
/// Share of the rest of a step that filling a batch may take for a source that keeps up.
const KEEPING_UP: f64 = 0.5;
/// Share of a step that workers may be idle, all together.
const IDLE_SHARE: f64 = 0.25;

/// What steps of a training took.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Seconds of steps as they always are, taken in turn with those that were timed.
    pub plain: Vec<f64>,
    /// Steps that were timed.
    pub timed: Vec<ProfiledStep>,
    /// The operations of a step: every step of every routine that it replays.
    pub operations: Vec<ProfiledOperation>,
    /// Threads that compute, if the device tells them apart.
    pub workers: usize,
    /// Examples of a step.
    pub batch: usize,
    /// What a step is counted as: tokens, of a language model.
    pub tokens: u64,
    /// Seconds that each batch took to be filled.
    pub fills: Vec<f64>,
    /// What was allocated after the steps that warm up; nothing should be. None, if the program's allocator does not count.
    pub allocations: Option<Allocations>,
    /// Bytes on the heap after each of those steps, beyond those before; none as above.
    pub heap: Option<Vec<i64>>,
    /// Bytes of the process that come from no file, after each of those steps.
    pub anonymous: Vec<i64>,
    /// By routine: what the process held after each of its steps, in the first training step, which touches the memory.
    pub resident: Vec<(String, Vec<u64>)>,
    /// What the memory is for: predicted and measured, by kind.
    pub account: Account,
    /// What grows from step to step, or from training to training.
    pub leaks: Vec<Leak>,
    /// The last timed step and its replays, as they came.
    pub spans: Vec<Span>,
}

/// A step that was timed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledStep {
    /// All of it.
    pub seconds: f64,
    /// Waiting for its batch.
    pub waiting: f64,
    /// By operation.
    pub operations: Vec<f64>,
    /// By operation, and within it by worker: how long each computed.
    pub busy: Vec<f64>,
}

/// A step of a plan, with all its replays in a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledOperation {
    /// Its routine's place in the plan, and its own in the routine.
    pub at: (usize, usize),
    /// What is done.
    pub name: &'static str,
    /// The layer of the model, if it is in one.
    pub layer: Option<usize>,
    /// The pass.
    pub pass: Pass,
    /// The user's line.
    pub line: String,
    /// What one replay costs.
    pub cost: Cost,
    /// The type of what is computed with.
    pub dtype: DType,
    /// How often it is replayed in a training step.
    pub replays: usize,
    /// How long one replay takes as planned.
    pub predicted: f64,
}

/// Something that took time, for a trace: times are seconds from the beginning of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What.
    pub name: String,
    /// What kind of thing it is.
    pub category: &'static str,
    /// Where it ran: 0 is the training thread, then the other workers, and then the thread that fills batches.
    pub thread: usize,
    /// When it began.
    pub begin: f64,
    /// How long it took.
    pub seconds: f64,
    /// The operation, if it is one.
    pub operation: Option<usize>,
}

/// A thread that computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worker {
    /// Seconds of a step in which it computes.
    pub busy: f64,
    /// Seconds of a step in which it does not.
    pub idle: f64,
}

/// Something that a user will want to know of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// What it is and where, in one line.
    pub text: String,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// Steps wait for their batches.
    Data,
    /// Something allocates in a step.
    Allocations,
    /// Memory grows.
    Leak,
    /// Workers have nothing to do.
    Idle,
}

impl Profile {
    /// The median of a step as it always is.
    pub fn step_seconds(&self) -> f64 {
        Spread::of(self.plain.clone()).median
    }

    /// The median of a step that is timed.
    pub fn timed_step_seconds(&self) -> f64 {
        Spread::of(self.timed.iter().map(|step| step.seconds).collect()).median
    }

    /// The half of the timed steps that is nearest to the median, by rank: what hindered the others is no part of them.
    fn middle(&self) -> impl Iterator<Item = &ProfiledStep> {
        let mut steps: Vec<&ProfiledStep> = self.timed.iter().collect();
        steps.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let aside = steps.len() / 4;
        let count = steps.len() - 2 * aside;
        steps.into_iter().skip(aside).take(count)
    }

    /// The seconds that something takes of a step: its share of the timed steps, of the step as it always is. So all that is
    /// told of a step adds up to it.
    fn seconds(&self, part: impl Fn(&ProfiledStep) -> f64) -> f64 {
        let (parts, all) = self.middle().fold((0.0, 0.0), |sum, step| (sum.0 + part(step), sum.1 + step.seconds));
        parts / all * self.step_seconds()
    }

    /// The seconds of each operation in a step.
    pub fn operation_seconds(&self) -> Vec<f64> {
        (0..self.operations.len()).map(|index| self.seconds(|step| step.operations[index])).collect()
    }

    /// A step by what it consists of: the passes, waiting for data, and all else. They add up to it.
    pub fn parts(&self) -> Vec<Share> {
        let of_pass = |pass: Pass, step: &ProfiledStep| {
            let operations = step.operations.iter().zip(&self.operations);
            operations.filter(|(_, operation)| operation.pass == pass).map(|(seconds, _)| seconds).sum()
        };
        let share = |name: &str, seconds: f64| Share { name: name.to_string(), seconds };
        let mut parts: Vec<Share> =
            Pass::ALL.iter().map(|&pass| share(pass.name(), self.seconds(|step| of_pass(pass, step)))).collect();
        parts.push(share("data", self.seconds(|step| step.waiting)));
        let told: f64 = parts.iter().map(|part| part.seconds).sum();
        parts.push(share("other", self.step_seconds() - told));
        parts
    }

    /// The seconds of a step by some name of its operations, longest first.
    pub fn by(&self, name: impl Fn(&ProfiledOperation) -> String) -> Vec<Share> {
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for (operation, seconds) in self.operations.iter().zip(self.operation_seconds()) {
            *sums.entry(name(operation)).or_default() += seconds;
        }
        let mut shares: Vec<Share> = sums.into_iter().map(|(name, seconds)| Share { name, seconds }).collect();
        shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        shares
    }

    /// What each worker does in a step.
    pub fn workers(&self) -> Vec<Worker> {
        let worker = |index: usize| {
            let busy = self.seconds(|step| step.busy.iter().skip(index).step_by(self.workers).sum());
            Worker { busy, idle: self.step_seconds() - busy }
        };
        (0..self.workers).map(worker).collect()
    }

    /// How much of the time of some operations their workers compute, if they are told apart.
    pub fn busy_share(&self, is_meant: impl Fn(&ProfiledOperation) -> bool) -> Option<f64> {
        let meant: Vec<usize> = (0..self.operations.len()).filter(|&index| is_meant(&self.operations[index])).collect();
        let busy = |step: &ProfiledStep| -> f64 {
            meant.iter().map(|index| step.busy[index * self.workers..][..self.workers].iter().sum::<f64>()).sum()
        };
        let all = |step: &ProfiledStep| meant.iter().map(|&index| step.operations[index]).sum::<f64>();
        (self.workers > 0).then(|| self.seconds(busy) / self.seconds(all) / self.workers as f64)
    }

    /// How much faster the step would be, as a share, if something that takes so many seconds of it were twice as fast.
    pub fn gain_if_twice_as_fast(&self, seconds: f64) -> f64 {
        let whole = self.step_seconds();
        whole / (whole - seconds / 2.0) - 1.0
    }

    /// The median of the seconds that a batch takes to be filled.
    pub fn fill_seconds(&self) -> Option<f64> {
        (!self.fills.is_empty()).then(|| Spread::of(self.fills.clone()).median)
    }

    /// What is wrong, the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |kind, text| Finding { kind, text };
        let mut findings: Vec<Finding> = vec![];
        findings.extend(self.slow_data().map(|text| finding(FindingKind::Data, text)));
        findings.extend(self.allocating().into_iter().map(|text| finding(FindingKind::Allocations, text)));
        findings.extend(self.leaks.iter().map(|leak| finding(FindingKind::Leak, leak.to_string())));
        findings.extend(self.idle().map(|text| finding(FindingKind::Idle, text)));
        findings
    }

    fn slow_data(&self) -> Option<String> {
        let (waiting, step) = (self.seconds(|step| step.waiting), self.step_seconds());
        // A batch that is filled quickly and comes late was held up by something else.
        let keeps_up = |fill: &f64| *fill < KEEPING_UP * (step - waiting);
        let fill = self.fill_seconds().filter(|fill| waiting > WAITING_SHARE * step && !keeps_up(fill))?;
        Some(format!(
            "the data source is slow: a step waits {:.1} ms for its batch, {:.0} % of {:.1} ms; a batch takes {:.1} ms to be \
             filled, and all else in a step {:.1} ms",
            1e3 * waiting,
            100.0 * waiting / step,
            1e3 * step,
            1e3 * fill,
            1e3 * (step - waiting)
        ))
    }

    /// A line for each place that allocates, and for each phase whose places are not known.
    fn allocating(&self) -> Vec<String> {
        let Some(allocations) = &self.allocations else { return vec![] };
        let steps = (self.plain.len() + self.timed.len()).max(1) as f64;
        let told = |phase: &Phase| *phase != Phase::Elsewhere;
        let phases = allocations.by_phase.iter().filter(|(phase, _)| told(phase));
        let mut lines = vec![];
        for (phase, count) in phases {
            let places: Vec<&Offender> = allocations.offenders.iter().filter(|place| place.phase == *phase).collect();
            let calls = format!(
                "{:.1} allocations a step, {:.0} bytes",
                count.calls as f64 / steps,
                count.bytes as f64 / steps
            );
            let Some(first) = places.first() else {
                lines.push(format!("{} allocates: {calls}", phase.name()));
                continue;
            };
            // Only timed steps know the operation; others come by the same place.
            let same = |place: &&&Offender| place.stack.first() == first.stack.first() && place.step.is_some();
            let first = places.iter().find(same).unwrap_or(first);
            let operation = first.step.and_then(|at| self.operations.iter().find(|operation| operation.at == at));
            let who = match operation {
                Some(operation) => format!("the operation {} ({})", operation.name, operation.line),
                None => phase.name().to_string(),
            };
            let place = first.stack.first().map_or("an unknown place", |place| place);
            let others =
                if places.len() > 1 { format!(", and {} other places", places.len() - 1) } else { String::new() };
            lines.push(format!("{who} allocates in {place}{others}: {calls}"));
        }
        lines
    }

    fn idle(&self) -> Option<String> {
        let workers = self.workers();
        let idle: f64 = workers.iter().map(|worker| worker.idle).sum::<f64>() / workers.len().max(1) as f64;
        let share = idle / self.step_seconds();
        (workers.len() > 1 && share > IDLE_SHARE).then(|| {
            format!(
                "the {} workers are idle for {:.0} % of the step; if nothing else runs here, give fewer threads or larger batches",
                workers.len(),
                100.0 * share
            )
        })
    }
}

impl std::fmt::Display for Leak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Leak { name, bytes_per_turn, turns, on_heap } = self;
        let of = if *on_heap { "the heap" } else { "the process" };
        write!(f, "a leak: {of} grows by {bytes_per_turn:.0} bytes with each {name}, over {turns} of them")
    }
}

/// Seconds of a duration.
pub(super) fn seconds(time: &Duration) -> f64 {
    time.as_secs_f64()
}
