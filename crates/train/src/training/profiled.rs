//! The steps of a run, taken to be looked at and then forgotten.

use super::folder::FolderBefore;
use super::setup;
use super::text::Text;
use crate::Result;
use crate::config::TrainConfig;
use crate::memory::ProcessMemory;
use crate::planning::Chosen;
use crate::profiler::{self, Point, Profile, Profiler};
use crate::run::{Event, Observer, Stop};
use crate::step::{Batch, StepScalars, TrainingStep};
use crate::trainer::{BatchSource, Run, Session};
use gradus_engine::backend::Backend;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Trainings in one process that are looked at for growth, and how long they may take in all.
const TRAININGS: usize = 9;
const TRAININGS_TIME: Duration = Duration::from_secs(12);
/// A learning rate at which nothing grows without bound.
const LEARNING_RATE: f32 = 1e-4;

/// What steps of a run took, and what the run was.
pub struct Profiled {
    /// What the steps took.
    pub profile: Profile,
    /// The run, resolved.
    pub config: TrainConfig,
    /// Its step, planned.
    pub chosen: Chosen,
    /// What it is computed on.
    pub backend: Arc<dyn Backend>,
    /// The memory of the process at named points.
    pub points: Vec<Point>,
    /// What was done before the first step, in order.
    pub stages: Vec<Stage>,
    /// Tokens of the text that is trained on.
    pub text_tokens: u64,
    /// Trainings that were looked at for growth.
    pub trainings: usize,
}

/// Work before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// What, as in "tokenizing".
    pub what: String,
    /// Bytes or parts done.
    pub done: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// Prepares a run as stated, in a folder that is not there yet and is gone afterwards, and takes steps of it: some to warm up,
/// then so many as they always are and as many that are timed.
pub fn profile(config: &TrainConfig, steps: usize, observer: &mut dyn Observer) -> Result<Profiled> {
    config.validate()?;
    let before = FolderBefore::of(&config.out);
    let profiled = profile_in_folder(config, steps, observer);
    before.restore();
    profiled
}

fn profile_in_folder(config: &TrainConfig, steps: usize, observer: &mut dyn Observer) -> Result<Profiled> {
    let mut watching = Watching { observer, profiler: Profiler::new(), stages: vec![], began: Instant::now() };
    watching.profiler.point("start");
    let (mut session, mut text) = setup::prepare(None, config, false, &mut watching)?;
    watching.profiler.point("ready");
    // The stages before have their points; what is told of steps is theirs.
    ProcessMemory::forget_peak();
    let mut run = Run::new(&session)?;
    let source = Box::new(text.windows(run.position));
    let mut profile = profiler::profile(&mut session, &mut run, &mut text, source, steps, &watching)?;
    watching.profiler.point("steps taken");
    let (config, text_tokens) = (text.config.clone(), text.train.len());
    let training = &session.training;
    let chosen = Chosen { config: training.config().clone(), plan: training.program().plan().clone() };
    let backend = session.backend.clone();
    let batch = first_batch(&session, &text)?;
    drop((run, session, text));
    watching.profiler.point("training dropped");
    let trainings = repeat(&chosen, &*backend, &batch, &mut watching)?;
    profile.leaks.extend(watching.profiler.leaks());
    let Watching { profiler, stages, .. } = watching;
    let points = profiler.points().to_vec();
    Ok(Profiled { profile, config, chosen, backend, points, stages, text_tokens, trainings })
}

/// The first batch of the run.
fn first_batch(session: &Session, text: &Text) -> Result<Batch> {
    let mut batch = session.training.batch();
    batch.begin();
    text.windows(0).fill(0, &mut batch)?;
    Ok(batch)
}

/// Begins the training again and again in this process, with a step each, and gives how often: what one leaves behind grows.
fn repeat(chosen: &Chosen, backend: &dyn Backend, batch: &Batch, watching: &mut Watching<'_>) -> Result<usize> {
    let begin = Instant::now();
    let mut count = 0;
    while count < TRAININGS && begin.elapsed() < TRAININGS_TIME && watching.should_stop() == Stop::No {
        let mut training = TrainingStep::link(chosen.clone(), backend)?;
        training.initialize(1)?;
        let scalars = StepScalars { step: 0, learning_rate: LEARNING_RATE, clip_norm: 1.0, seed: 1 };
        training.run(batch, &scalars)?;
        drop(training);
        watching.profiler.point("training");
        count += 1;
    }
    Ok(count)
}

/// Notes what is done before the first step, and tells someone else of it.
struct Watching<'a> {
    observer: &'a mut dyn Observer,
    profiler: Profiler,
    stages: Vec<Stage>,
    /// When the stage at hand began.
    began: Instant,
}

impl Watching<'_> {
    fn note(&mut self, what: &str, done: u64) {
        if self.stages.last().is_none_or(|stage| stage.what != what) {
            if let Some(stage) = self.stages.last() {
                self.profiler.point(&stage.what);
            }
            self.stages.push(Stage { what: what.to_string(), done: 0, seconds: 0.0 });
            self.began = Instant::now();
        }
        let stage = self.stages.last_mut().expect("just added");
        (stage.done, stage.seconds) = (done, self.began.elapsed().as_secs_f64());
    }
}

impl Observer for Watching<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Preparing { what, done, .. } = event {
            self.note(what, *done);
        }
        self.observer.event(event);
    }

    fn should_stop(&self) -> Stop {
        self.observer.should_stop()
    }
}
