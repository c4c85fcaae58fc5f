//! Training of any model: a traced loss, batches from anywhere, and all that a run needs besides.
//!
//! ```no_run
//! use gradus_engine::DType;
//! use gradus_engine::backend::Cpu;
//! use gradus_train::parameters::{Initializer, Parameters};
//! use gradus_train::run::Unwatched;
//! use gradus_train::step::{Batch, Inputs};
//! use gradus_train::trainer::{Settings, Trainer};
//! use std::sync::Arc;
//!
//! // The losses of a line through points: one for each of them.
//! let losses = |parameters: &Parameters, inputs: &Inputs| {
//!     let (x, y) = (inputs.get("x", DType::F32, [1]), inputs.get("y", DType::F32, [1])); // [b, 1]
//!     let slope = parameters.get("slope", [1, 1], Initializer::Zeros);
//!     let error = x.matmul(&slope) - y;
//!     &error * &error // [b, 1]
//! };
//! let settings = Settings { steps: Some(200), learning_rate: 0.1, folder: Some("runs/line".into()), ..Settings::default() };
//! let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
//! let points = |step: u64, batch: &mut Batch| {
//!     let x: Vec<f32> = (0..batch.rows()).map(|row| (row as f32 + step as f32).sin()).collect();
//!     batch.write("y", &x.iter().map(|x| 3.0 * x).collect::<Vec<_>>())?;
//!     batch.write("x", &x)
//! };
//! trainer.train(points, &mut Unwatched)?;
//! # Ok::<(), gradus_train::Error>(())
//! ```

mod account;
mod adaptive;
mod batches;
mod hooks;
mod pace;
mod run;
mod saving;
mod session;
mod settings;
mod watching;

pub(crate) use account::predicted;
pub(crate) use adaptive::Adaptive;
pub use batches::{Arrays, BatchSource, Batches};
pub use hooks::{GoesOn, Hooks};
pub(crate) use run::Run;
pub(crate) use session::{Every, Identity, Limits, RunFolder, Session};
pub use settings::Settings;

use crate::checkpoint::Store;
use crate::memory::guard::{self, Doing};
use crate::memory::{Held, heap};
use crate::parameters::Parameters;
use crate::pipeline;
use crate::planning::{Chosen, ModelMemory};
use crate::profiler::{self, Profile};
use crate::ranks::Ranks;
use crate::run::{Observer, StepReport, Summary, Unwatched};
use crate::step::{Batch, Inputs, Objective, StepConfig, TrainingStep};
use crate::watch::HealthInterval;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::{Array, Program, Routine, Tensor, Trace};
use hooks::NoHooks;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A step within the memory there is.
fn planned(
    config: &StepConfig,
    settings: &Settings,
    held: Held,
    backend: &dyn Backend,
) -> Result<(ModelMemory, Chosen)> {
    let memory = ModelMemory::of(config, settings, held, backend)?;
    let chosen = memory.choose(config, settings.batch, settings.recompute, backend)?;
    Ok((memory, chosen))
}

/// Trains a model. What it does is stated by [`Settings`]; a folder that holds a checkpoint is gone on with, to the bit.
pub struct Trainer {
    session: Session,
    run: Run,
    hooks: Box<dyn Hooks>,
}

impl Trainer {
    /// Plans and links the step within the memory there is, and gives the weights their first numbers or those of the
    /// newest checkpoint. A budget that cannot be kept is refused with the smallest that works.
    pub fn new(objective: impl Objective + 'static, settings: Settings, backend: Arc<dyn Backend>) -> Result<Trainer> {
        Trainer::build(Rc::new(objective), settings, backend, None)
    }

    /// As [`Trainer::new`], of one of several ranks, all of which are told the same settings. The lanes of the settings are
    /// shared out among them, and what the training comes to does not depend on how many there are. The first writes the
    /// files.
    pub fn on_ranks(
        objective: impl Objective + 'static,
        settings: Settings,
        backend: Arc<dyn Backend>,
        ranks: Ranks,
    ) -> Result<Trainer> {
        Trainer::build(Rc::new(objective), settings, backend, Some(ranks))
    }

    fn build(
        objective: Rc<dyn Objective>,
        settings: Settings,
        backend: Arc<dyn Backend>,
        mut ranks: Option<Ranks>,
    ) -> Result<Trainer> {
        settings.validate()?;
        let place = ranks.as_ref().map_or_else(Default::default, Ranks::place);
        ranks.as_mut().map_or(Ok(()), |ranks| ranks.connect(&*backend))?;
        pipeline::check_ranks(place.ranks, settings.stages)?;
        let config = settings.step(objective, place);
        let held = Held::now_resident();
        let (memory, chosen) = match planned(&config, &settings, held, &*backend) {
            // Measuring is left out where it would not fit.
            Err(Error::Config(_)) if settings.health == HealthInterval::Auto => {
                planned(&StepConfig { health: false, ..config }, &settings, held, &*backend)?
            }
            planned => planned?,
        };
        let chosen = match ranks.as_mut().map(|ranks| ranks.least(chosen.config.micro_batch)).transpose()? {
            Some(micro_batch) if micro_batch != chosen.config.micro_batch => {
                let config = StepConfig { micro_batch, ..chosen.config };
                memory.choose(&config, settings.batch, settings.recompute, &*backend)?
            }
            _ => chosen,
        };
        // What planning held is gone before the arena is mapped.
        heap::give_back();
        let (mut folder, mut found) = (None, None);
        if let Some(path) = &settings.folder {
            let open = || {
                let mut store = Store::open(path)?;
                Ok((store.newest_whole()?, store))
            };
            let (opened, stored) = match &mut ranks {
                None => open().map(|(found, store)| (found, Some(store)))?,
                Some(ranks) => ranks.opened(path, open)?,
            };
            found = opened;
            folder = stored.map(|store| (path, store));
        }
        found.as_ref().map_or(Ok(()), |found| settings.check_resumable(found))?;
        let predicted = predicted(&chosen, memory.outside);
        let training = TrainingStep::link(chosen, &*backend)?;
        let mut training = match ranks {
            Some(ranks) => training.with_ranks(ranks)?,
            None => training,
        };
        let is_first = training.is_first_rank();
        let contents = training.contents();
        let with_contents =
            |(path, store): (&PathBuf, Store)| RunFolder { path: path.clone(), store, contents, keep: settings.keep };
        let mut session = Session {
            batch: settings.batch,
            ahead: settings.ahead,
            limits: settings.limits(),
            schedule: settings.schedule(found.as_ref().map(|found| &found.progress)),
            clip: settings.clip,
            seed: settings.seed,
            every: Every {
                validation: settings.validate_every,
                sample: settings.sample_every,
                save: settings.save_every,
                health: training.agreed_health_steps(settings.health)?,
                curvature: settings.watch_curvature,
            },
            folder: folder.map(with_contents),
            events: settings.tensorboard.clone().filter(|_| is_first),
            identity: settings.identity(),
            predicted,
            adaptive: None,
            resumed: None,
            saved: None,
            guard: memory.guard,
            backend,
            training,
        };
        match found {
            Some(found) => session.restore(found)?,
            None => session.training.initialize(settings.seed)?,
        }
        guard::doing(Doing::Training);
        Ok(Trainer { run: Run::new(&session)?, session, hooks: Box::new(NoHooks) })
    }

    /// With validation, samples or files of one's own.
    pub fn with_hooks(mut self, hooks: impl Hooks + 'static) -> Trainer {
        self.hooks = Box::new(hooks);
        self
    }

    /// Trains to the end, from wherever it stands, on batches that are filled ahead by a thread of their own. A run that
    /// is asked to stop is saved and can be gone on with.
    pub fn train(&mut self, source: impl BatchSource + 'static, observer: &mut dyn Observer) -> Result<Summary> {
        let Trainer { session, run, hooks } = self;
        run.tell_start(session, &**hooks, observer);
        let mut batches = session.batches(Box::new(source), run.step)?;
        run.until_the_end(session, &mut batches, &mut **hooks, observer)?;
        run.finish(session, &mut **hooks, observer)
    }

    /// Takes one step over a batch made by [`Trainer::batch`], with all that belongs to it: the schedule, clipping,
    /// metrics, a checkpoint where one is due. Allocates nothing but for those. A step whose numbers are not finite
    /// changes nothing, and its loss is not a number; several in a row are an error.
    pub fn step(&mut self, batch: &Batch) -> Result<StepReport> {
        batch.check_whole()?;
        self.run.take_step(&mut self.session, (batch, Instant::now()), &mut *self.hooks, &mut Unwatched)
    }

    /// Takes steps as [`Trainer::train`] does, and tells what they take: a few to warm up, then so many as they always are and as
    /// many that are timed, in turn. They are steps of the training like others; no checkpoint, validation or sample is due
    /// meanwhile.
    ///
    /// ```
    /// # use gradus_engine::DType;
    /// # use gradus_engine::backend::Cpu;
    /// # use gradus_train::parameters::{Initializer, Parameters};
    /// # use gradus_train::step::{Batch, Inputs};
    /// # use gradus_train::trainer::{Settings, Trainer};
    /// # use std::sync::Arc;
    /// # let losses = |parameters: &Parameters, inputs: &Inputs| {
    /// #     let x = inputs.get("x", DType::F32, [8]);
    /// #     let error = x.matmul(&parameters.get("w", [8, 8], Initializer::Zeros)) - x;
    /// #     &error * &error
    /// # };
    /// # let mut trainer = Trainer::new(losses, Settings::default(), Arc::new(Cpu::new(2)?))?;
    /// let source = |_: u64, batch: &mut Batch| Ok(batch.numbers_mut::<f32>("x")?.fill(1.0));
    /// let profile = trainer.profile(source, 10)?;
    /// for part in profile.parts() {
    ///     println!("{:10} {:.1} µs", part.name, 1e6 * part.seconds); // forward, backward, update, data, other
    /// }
    /// for finding in profile.findings() {
    ///     println!("{}", finding.text); // a slow source, whoever allocates, a leak
    /// }
    /// # let sum: f64 = profile.parts().iter().map(|part| part.seconds).sum();
    /// # assert!((sum / profile.step_seconds() - 1.0).abs() < 1e-9);
    /// # Ok::<(), gradus_train::Error>(())
    /// ```
    pub fn profile(&mut self, source: impl BatchSource + 'static, steps: usize) -> Result<Profile> {
        let Trainer { session, run, hooks } = self;
        profiler::profile(session, run, &mut **hooks, Box::new(source), steps, &Unwatched)
    }

    /// Steps taken, those before a resume included.
    pub fn steps_taken(&self) -> u64 {
        self.run.step
    }

    /// Whether all steps, or all the time, that the settings state are taken.
    pub fn is_done(&self) -> bool {
        self.run.done
    }

    /// Saves a checkpoint, if the settings state a folder.
    pub fn save(&mut self) -> Result<()> {
        self.run.save(&mut self.session, &*self.hooks, &mut Unwatched)
    }

    /// Room for the examples of a step, or for those of them that are this rank's.
    pub fn batch(&self) -> Batch {
        self.session.training.batch()
    }

    /// Room for the examples of an evaluation: as many as are computed at once.
    pub fn micro_batch(&self) -> Batch {
        self.session.training.micro_batch()
    }

    /// The mean loss over the examples of [`Trainer::micro_batch`], without dropout.
    pub fn evaluate(&mut self, micro_batch: &Batch) -> Result<f32> {
        self.session.training.evaluate(micro_batch)
    }

    /// A program of its own with the weights as they are: its routine `forward` gives the `output` of this function for so
    /// many examples at once, in the precision of the settings.
    pub fn compile(&self, examples: usize, forward: impl FnOnce(&Parameters, &Inputs) -> Tensor) -> Result<Program> {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace).with_precision(self.session.training.config().precision);
        let output = forward(&parameters, &Inputs::new(&trace, examples));
        let mut program =
            trace.compile(&*self.session.backend, &[Routine::new("forward").output("output", &output)])?;
        let names: Vec<String> = program.states().map(|(name, _, _)| name.to_string()).collect();
        for name in names {
            program.write_array(&name[..], &self.read(&name)?)?;
        }
        Ok(program)
    }

    /// A weight, or another state, by its name.
    pub fn read(&self, name: &str) -> Result<Array> {
        let bytes = self.program().bytes(name)?.into_owned();
        // A routine's output of the same name is not meant.
        let ty = self.program().states().find(|(known, _, _)| *known == name).map(|(_, _, ty)| ty.clone());
        match ty {
            Some(ty) => Ok(Array::from_bytes(ty, bytes)?),
            None => Ok(self.program().read(name)?),
        }
    }

    /// The program, with its states and routines.
    pub fn program(&self) -> &Program {
        self.session.training.program()
    }

    /// The program, to write states or run routines of one's own.
    pub fn program_mut(&mut self) -> &mut Program {
        self.session.training.program_mut()
    }
}
