//! What a step takes on ranks, from its plan and the link between them: the same steps, marks and buckets, on paper.

use super::exchange::is_gathered_early;
use super::given::ROOMS;
use super::rounds::rounds_of;
use super::shards::Shards;
use crate::Result;
use crate::lanes::{Fold, Place};
use crate::step::StepConfig;
use gradus_comm::Link;
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Mark, Moment, Plan, PlannedRoutine, Step};
use serde::Serialize;

/// Small collectives of a step: what is decided together, the squares, and two for what is of no weight.
const SMALL: f64 = 7.0;

/// What the communication thread computes for a byte that a rank sends, in seconds: it packs, hands over to MPI, takes from it, adds up
/// and puts in place. Where the rank's threads have all of its cores, they compute so much less meanwhile.
const WORK: f64 = 1.0e-9;

/// What a step on ranks takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Computing.
    pub computing: f64,
    /// Exchanging, if nothing else was done meanwhile.
    pub exchanging: f64,
    /// The whole step, in which some of one is done during the other.
    pub step: f64,
}

/// The times of what is exchanged, by bucket of weights, and the routines around it.
struct Paper<'a> {
    plan: &'a Plan,
    config: &'a StepConfig,
    overlap: bool,
    scatter: Vec<f64>,
    gather: Vec<f64>,
    small: f64,
    /// Where gradients are given away: what is exchanged of them before a room is free again. Whoever computes waits for that.
    rooms: Option<f64>,
    /// By which computing takes longer while something is exchanged beside it.
    slowed: f64,
}

impl StepConfig {
    /// What a step takes by a plan of this, over a link; none on one rank.
    pub fn on_link(&self, plan: &Plan, link: &Link, backend: &dyn Backend) -> Result<Option<StepTime>> {
        let Place { ranks, .. } = self.lanes.place();
        let traced = self.traced(backend)?;
        let Some(parts) = traced.parts else { return Ok(None) };
        let shards = parts.shards();
        let counts: Vec<usize> = traced.summed.iter().map(|summed| summed.sums.len()).collect();
        let sums = |tensor: usize| counts[tensor];
        let blocks = self.lanes.blocks().len() as f64;
        let own_share = (ranks - 1) as f64 / ranks as f64;
        let bytes = |bucket: usize, copies: f64, of: &dyn Fn(usize) -> usize| {
            let bytes: usize = shards.bucket(bucket).map(|tensor| 4 * of(tensor) * traced.summed[tensor].numbers).sum();
            copies * own_share * bytes as f64
        };
        let buckets = 0..shards.of_weights();
        let scattered: Vec<f64> = buckets.clone().map(|bucket| bytes(bucket, blocks, &sums)).collect();
        let gathered: Vec<f64> = buckets
            .map(
                |bucket| {
                    if self.shard.is_of_updates() { bytes(bucket, 1.0, &|_| 1) } else { bytes(bucket, 1.0, &sums) }
                },
            )
            .collect();
        let sent: f64 = scattered.iter().chain(&gathered).sum();
        let seconds = |(bucket, bytes): (usize, f64)| {
            let rounds = rounds_of(shards, &counts, bucket) as f64;
            rounds * link.latency.as_secs_f64() + bytes / link.bytes_per_second
        };
        let rounds: usize = (0..shards.of_weights()).map(|bucket| rounds_of(shards, &counts, bucket)).sum();
        let rooms = scattered.iter().sum::<f64>() / link.bytes_per_second * ROOMS.min(rounds) as f64 / rounds as f64;
        let overlap = self.overlap && backend.memory()?.is_none();
        let paper = Paper {
            overlap,
            scatter: scattered.into_iter().enumerate().map(seconds).collect(),
            gather: gathered.into_iter().enumerate().map(seconds).collect(),
            small: SMALL * link.latency.as_secs_f64(),
            rooms: parts.gives.then_some(rooms),
            slowed: 1.0 + WORK * sent / plan.seconds(),
            plan,
            config: self,
        };
        Ok(Some(paper.time(shards)))
    }
}

impl Paper<'_> {
    fn time(&self, shards: &Shards) -> StepTime {
        let computing = self.plan.seconds();
        let exchanging = self.scatter.iter().chain(&self.gather).sum::<f64>() + self.small;
        let step = match self.overlap {
            false => computing + exchanging,
            // The first rank finds out how many buckets are best gathered early.
            true => (0..shards.of_weights()).map(|early| self.overlapped(early)).fold(f64::INFINITY, f64::min),
        };
        StepTime { computing, exchanging, step }
    }

    fn routine(&self, name: &str) -> Option<&PlannedRoutine> {
        self.plan.routines.iter().find(|routine| routine.name == name)
    }

    /// A step among its like, of which so many buckets are gathered during the backward pass.
    fn overlapped(&self, early: usize) -> f64 {
        let (config, weights) = (self.config, self.scatter.len());
        let early = if config.shard.is_of_updates() { 0 } else { early };
        let (Some(first), Some(update)) = (self.routine("first"), self.routine("update")) else { return f64::INFINITY };
        let lags = !config.shard.is_of_updates() && update.apart;
        let slowed = self.slowed;
        let whole = |routine: &PlannedRoutine| slowed * routine.seconds();
        let seconds = |name: &str| self.routine(name).map_or(0.0, whole);
        // What is left of the step before is gathered in the order of the weights.
        let mut link = self.small / SMALL;
        let is_early = |bucket: usize| is_gathered_early(weights - bucket, weights, early);
        let gathered: Vec<f64> = (0..weights)
            .map(|bucket| {
                link += if is_early(bucket) { 0.0 } else { self.gather[bucket] };
                link
            })
            .collect();
        let mut ready = vec![0.0; weights];
        let mut now = self.small / SMALL;
        let mut awaited = |group: usize, now: &mut f64| {
            *now = now.max(gathered.get(group).copied().unwrap_or(0.0));
            *now += if lags { slowed * piece_seconds(update, group, Moment::Await) } else { 0.0 };
        };
        let folds: Vec<String> = config.lanes.folds().iter().filter_map(Fold::routine).collect();
        let joins = config.lanes.folds().last().and_then(Fold::routine).and_then(|name| self.routine(&name));
        let mut given = link;
        let mut started = |group: usize, now: &mut f64| {
            *now += joins.map_or(0.0, |joins| slowed * piece_seconds(joins, group, Moment::Start));
            ready.get_mut(group).into_iter().for_each(|ready| *ready = *now);
            if let (Some(rooms), Some(scatter)) = (self.rooms, self.scatter.get(group)) {
                given = given.max(*now) + scatter;
                *now = now.max(given - rooms);
            }
        };
        let (passes, hosted) = (config.passes(), config.lanes.hosted().len());
        if passes == 1 {
            pass(first, slowed, &mut now, &mut awaited, &mut started);
        } else {
            let further = (passes - hosted) as f64 * seconds("accumulate");
            let folded = folds.iter().map(|fold| seconds(fold)).sum::<f64>() - joins.map_or(0.0, whole);
            let last = if config.micro_batches == 1 { Some(first) } else { self.routine("accumulate") };
            pass(first, slowed, &mut now, &mut awaited, &mut |_, _| ());
            now += (hosted - 1) as f64 * whole(first) + further + folded - last.map_or(0.0, whole);
            last.into_iter().for_each(|last| pass(last, slowed, &mut now, &mut |_, _| (), &mut started));
        }
        for bucket in (0..weights).rev() {
            link = link.max(ready[bucket]) + self.scatter[bucket];
            link += if is_early(bucket) { self.gather[bucket] } else { 0.0 };
        }
        let ending = slowed * if lags { prologue_seconds(update) } else { update.seconds() };
        now.max(link) + self.small * (SMALL - 1.0) / SMALL + seconds("squares") + ending
    }
}

/// What an update does before it needs a bucket.
fn prologue_seconds(update: &PlannedRoutine) -> f64 {
    let first = update.marks.first().map_or(0, |mark| mark.at);
    update.steps[..first].iter().map(|step| step.seconds).sum()
}

/// Goes through the steps of a routine, and does something where it awaits and where it starts a bucket.
fn pass(
    routine: &PlannedRoutine,
    slowed: f64,
    now: &mut f64,
    awaited: &mut dyn FnMut(usize, &mut f64),
    started: &mut dyn FnMut(usize, &mut f64),
) {
    let taken = |steps: &[Step]| slowed * steps.iter().map(|step| step.seconds).sum::<f64>();
    let mut done = 0;
    for mark in &routine.marks {
        *now += taken(&routine.steps[done..mark.at]);
        done = mark.at;
        match mark.moment {
            Moment::Await => awaited(mark.group, now),
            Moment::Start => started(mark.group, now),
        }
    }
    *now += taken(&routine.steps[done..]);
}

/// What a routine does for a bucket: from where it needs that up to where it needs the next, or from one start up to its own.
fn piece_seconds(routine: &PlannedRoutine, bucket: usize, moment: Moment) -> f64 {
    let marks: Vec<&Mark> = routine.marks.iter().filter(|mark| mark.moment == moment).collect();
    let Some(place) = marks.iter().position(|mark| mark.group == bucket) else { return 0.0 };
    let steps = match moment {
        Moment::Await => marks[place].at..marks.get(place + 1).map_or(routine.steps.len(), |mark| mark.at),
        Moment::Start => place.checked_sub(1).map_or(0, |before| marks[before].at)..marks[place].at,
    };
    routine.steps[steps].iter().map(|step| step.seconds).sum()
}
