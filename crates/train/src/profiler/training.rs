//! Steps of a training, taken in order to be looked at.

use super::allocations::{Phase, Watch};
use super::growth::leak;
use super::parts::Pass;
use super::record::{Profile, ProfiledOperation, ProfiledStep, Span, seconds};
use crate::memory::ProcessMemory;
use crate::run::{Observer, Stop, Unwatched};
use crate::step::{Batch, Replay, StepTimes};
use crate::trainer::{BatchSource, Batches, Hooks, Run, Session};
use crate::{Error, Result};
use gradus_engine::plan::Plan;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps before those that count: the first touches memory, the next find it in the caches.
const WARM_UP: usize = 3;

/// Takes steps to warm up, then so many as they always are and as many that are timed, in turn.
pub(crate) fn profile(
    session: &mut Session,
    run: &mut Run,
    hooks: &mut dyn Hooks,
    source: Box<dyn BatchSource>,
    steps: usize,
    observer: &dyn Observer,
) -> Result<Profile> {
    if session.training.config().gives_gradients() {
        return Err(Error::Config(
            "gradients that are given away while others are computed are not timed; profile with `settings.shard` optimizer".to_string(),
        ));
    }
    // Nothing but steps: no validation, sample or checkpoint, and no other plan.
    let (limits, every) = (std::mem::take(&mut session.limits), std::mem::take(&mut session.every));
    let adaptive = session.adaptive.take();
    let taken = take_steps(session, run, hooks, source, steps.max(1), observer);
    (session.limits, session.every, session.adaptive) = (limits, every, adaptive);
    session.training.time(None);
    Phase::Elsewhere.begin();
    taken
}

fn take_steps(
    session: &mut Session,
    run: &mut Run,
    hooks: &mut dyn Hooks,
    source: Box<dyn BatchSource>,
    steps: usize,
    observer: &dyn Observer,
) -> Result<Profile> {
    let fills = Arc::new(Fills::with_room(2 * steps + WARM_UP + 16));
    let source = Filling { source, fills: fills.clone() };
    let mut batches = session.batches(Box::new(source), run.step)?;
    let mut taker = Taker { session, run, hooks, batches: &mut batches, observer };
    let mut touched = Some(Box::new(StepTimes::new(taker.session.training.program(), true)));
    taker.step(&mut touched)?;
    let mut times = Some(Box::new(StepTimes::new(taker.session.training.program(), false)));
    for _ in 1..WARM_UP {
        taker.step(&mut times)?;
    }
    let operations = operations(taker.session.training.program().plan(), times.as_ref().expect("given back"));
    let workers =
        times.as_ref().and_then(|times| times.routines.iter().map(|timing| timing.workers()).max()).unwrap_or(0);
    let mut timed = vec![ProfiledStep::with_room(operations.len(), workers); steps];
    let mut plain = Vec::with_capacity(steps);
    let (mut heap, mut anonymous) = (Vec::with_capacity(2 * steps), Vec::with_capacity(2 * steps));
    let mut last = None;
    let first_fill = fills.count();
    let watch = Watch::begin();
    for step in &mut timed {
        plain.push(seconds(&taker.step(&mut None)?.took));
        heap.extend(watch.live());
        anonymous.push(ProcessMemory::read().anonymous as i64);
        let taken = taker.step(&mut times)?;
        step.fill(&taken, times.as_ref().expect("given back"), &operations);
        heap.extend(watch.live());
        anonymous.push(ProcessMemory::read().anonymous as i64);
        last = Some(taken);
    }
    let counts = watch.live().is_some();
    Phase::Elsewhere.begin();
    let allocations = watch.end();
    let (times, last) = (times.expect("given back"), last.expect("at least one step"));
    let fills_seen = fills.all();
    let heap = counts.then_some(heap);
    let found = leak("step", heap.as_deref(), &anonymous);
    let program = taker.session.training.program();
    let name = |routine: usize| program.plan().routines[routine].name.clone();
    Ok(Profile {
        spans: spans(&last, &times, &operations, &fills_seen, program.plan(), workers),
        resident: resident(touched.expect("given back").replays(), name),
        workers,
        batch: taker.session.batch,
        tokens: taker.hooks.tokens(taker.session.batch as u64),
        account: taker.session.account(),
        plain,
        timed,
        operations,
        fills: fills_seen[first_fill.min(fills_seen.len().saturating_sub(1))..]
            .iter()
            .map(|(_, took)| seconds(took))
            .collect(),
        allocations: counts.then_some(allocations),
        heap,
        anonymous,
        leaks: found.into_iter().collect(),
    })
}

/// Takes steps as a run does.
struct Taker<'a> {
    session: &'a mut Session,
    run: &'a mut Run,
    hooks: &'a mut dyn Hooks,
    batches: &'a mut Batches,
    observer: &'a dyn Observer,
}

/// When a step began, how long it waited for its batch, and how long it took.
#[derive(Clone, Copy)]
struct Taken {
    begin: Instant,
    waited: Duration,
    took: Duration,
}

impl Taker<'_> {
    /// One step, whose times go there, if anywhere.
    fn step(&mut self, times: &mut Option<Box<StepTimes>>) -> Result<Taken> {
        if self.observer.should_stop() == Stop::AfterStep {
            return Err(Error::Stopped("stopped before the profile was whole; nothing was written".into()));
        }
        self.session.training.time(times.take());
        let begin = Instant::now();
        let Some(batch) = self.batches.next()? else {
            let problem =
                "the data source ended before the profile was whole; give it more batches, or profile fewer steps";
            return Err(Error::Config(problem.into()));
        };
        let waited = begin.elapsed();
        Phase::Loop.begin();
        self.run.take_step(self.session, (batch, begin), self.hooks, &mut Unwatched)?;
        let took = begin.elapsed();
        *times = self.session.training.time(None);
        Ok(Taken { begin, waited, took })
    }
}

impl ProfiledStep {
    fn with_room(operations: usize, workers: usize) -> ProfiledStep {
        ProfiledStep {
            seconds: 0.0,
            waiting: 0.0,
            operations: vec![0.0; operations],
            busy: vec![0.0; operations * workers],
        }
    }

    fn fill(&mut self, taken: &Taken, times: &StepTimes, operations: &[ProfiledOperation]) {
        (self.seconds, self.waiting) = (seconds(&taken.took), seconds(&taken.waited));
        let workers = self.busy.len() / operations.len().max(1);
        for (index, operation) in operations.iter().enumerate() {
            let (routine, step) = operation.at;
            let timing = &times.routines[routine];
            self.operations[index] = seconds(&timing.steps[step]);
            let busy = timing.busy.get(step * workers..(step + 1) * workers).unwrap_or_default();
            self.busy[index * workers..].iter_mut().zip(busy).for_each(|(sum, busy)| *sum = seconds(busy));
        }
    }
}

/// Every step of every routine that a training step has replayed.
fn operations(plan: &Plan, times: &StepTimes) -> Vec<ProfiledOperation> {
    let mut operations = vec![];
    for (index, routine) in plan.routines.iter().enumerate().filter(|(index, _)| times.counts[*index] > 0) {
        for (at, (step, pass)) in routine.steps.iter().zip(Pass::of(routine)).enumerate() {
            operations.push(ProfiledOperation {
                at: (index, at),
                name: step.op.name(),
                layer: step.part.layer,
                pass,
                line: step.location.to_string(),
                cost: step.cost(),
                dtype: step
                    .inputs
                    .first()
                    .or(step.outputs.first())
                    .map_or(gradus_engine::DType::F32, |operand| operand.dtype),
                replays: times.counts[index],
                predicted: step.seconds,
            });
        }
    }
    operations
}

/// What the process held after each step of the first replay of each routine.
fn resident(replays: &[Replay], name: impl Fn(usize) -> String) -> Vec<(String, Vec<u64>)> {
    let mut found: Vec<(String, Vec<u64>)> = vec![];
    for replay in replays {
        let (name, resident) = (name(replay.routine), replay.timing.resident.clone().unwrap_or_default());
        let is_known = resident.iter().any(|&bytes| bytes > 0);
        if is_known && !found.iter().any(|(known, _)| *known == name) {
            found.push((name, resident));
        }
    }
    found
}

/// The last step as it came: itself, its replays, their operations, what each worker computed of them, and batches filled
/// meanwhile.
fn spans(
    taken: &Taken,
    times: &StepTimes,
    operations: &[ProfiledOperation],
    fills: &[(Instant, Duration)],
    plan: &Plan,
    workers: usize,
) -> Vec<Span> {
    let since = |at: Instant| at.saturating_duration_since(taken.begin).as_secs_f64();
    let span = |name: &str, category, thread, begin, seconds| Span {
        name: name.to_string(),
        category,
        thread,
        begin,
        seconds,
        operation: None,
    };
    let mut spans = vec![span("step", "step", 0, 0.0, seconds(&taken.took))];
    if !taken.waited.is_zero() {
        spans.push(span("waiting for the batch", "data", 0, 0.0, seconds(&taken.waited)));
    }
    let place: HashMap<(usize, usize), usize> =
        operations.iter().enumerate().map(|(index, operation)| (operation.at, index)).collect();
    for replay in times.replays() {
        let begin = since(replay.begin);
        let routine = &plan.routines[replay.routine];
        spans.push(span(&routine.name, "routine", 0, begin, seconds(&(replay.end - replay.begin))));
        let mut at = begin;
        for (step, took) in replay.timing.steps.iter().enumerate() {
            let index = place[&(replay.routine, step)];
            let operation = Some(index);
            let named = span(operations[index].name, operations[index].pass.name(), 0, at, seconds(took));
            spans.push(Span { operation, ..named.clone() });
            for (worker, busy) in replay.timing.busy.iter().skip(step * workers).take(workers).enumerate().skip(1) {
                // When within the operation it computed is not known; that it did not compute longer is.
                let seconds = seconds(busy).min(named.seconds);
                if seconds > 0.0 {
                    spans.push(Span { thread: worker, seconds, operation, ..named.clone() });
                }
            }
            at += seconds(took);
        }
    }
    let end = taken.begin + taken.took;
    let data = workers.max(1);
    for (begin, took) in fills.iter().filter(|(begin, _)| (taken.begin..end).contains(begin)) {
        spans.push(span("filling a batch", "data", data, since(*begin), seconds(took)));
    }
    spans
}

/// A source of batches that says how long they took.
struct Filling {
    source: Box<dyn BatchSource>,
    fills: Arc<Fills>,
}

/// When batches were begun, and how long each took; as many as there is room for.
struct Fills(Mutex<Vec<(Instant, Duration)>>);

impl Fills {
    fn with_room(count: usize) -> Fills {
        Fills(Mutex::new(Vec::with_capacity(count)))
    }

    fn push(&self, begin: Instant) {
        let mut fills = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fills.len() < fills.capacity() {
            fills.push((begin, begin.elapsed()));
        }
    }

    fn all(&self) -> Vec<(Instant, Duration)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl BatchSource for Filling {
    fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<bool> {
        let begin = Instant::now();
        let filled = Phase::Data.of_thread(|| self.source.fill(step, batch));
        self.fills.push(begin);
        filled
    }
}
