//! `gradus train-images`.

use crate::args::TrainImagesArgs;
use crate::dashboard::{MEMORY_BYTES, Reserved};
use crate::in_options::InOptions;
use crate::numbers::shortest;
use crate::page::{Page, Watching};
use crate::print::{self, quoted};
use crate::train::{account_table, summary_line};
use crate::{defaults, folders, interrupt, terminal};
use gradus_train::config::{
    CONFIG_FILE, Clip, DeviceChoice, ExportDtype, HealthInterval, OptimizerKind, Precision, Recomputation, ScheduleKind,
};
use gradus_train::images::{self, Augmentation, ImagesConfig};
use gradus_train::models::vision::{Architecture, DEVIATION, MEAN};
use gradus_train::run::Summary;
use gradus_train::{Error, Result, export};
use std::path::Path;

/// What a run on the drawn set takes where nothing is said: a few minutes' worth on two cores at most.
const DRAWN_MODEL: &str = "resnet-tiny";
const DRAWN_STEPS: u64 = 700;
const DRAWN_BATCH: usize = 64;
/// What one on other images takes.
const MODEL: &str = "resnet18";
const STEPS: u64 = 2_000;
const BATCH: usize = 32;
/// Workers that decode, at most, if it is not said how many.
const WORKERS_MOST: usize = 4;

/// Trains as the options say.
pub fn run(args: &TrainImagesArgs) -> Result<()> {
    let resumed = match &args.resume {
        Some(folder) => Some(resumed(args, folder)?),
        None => None,
    };
    let mut config = match &resumed {
        Some(config) => config.clone(),
        None => new_config(args)?,
    };
    let mut page = match args.dashboard {
        None => Page::None,
        Some(stated) => {
            config.observer_bytes = MEMORY_BYTES;
            Page::Reserved(Reserved::at(stated)?)
        }
    };
    interrupt::listen(Some("stopping after this step and saving"));
    let mut observer = terminal::observer(args.quiet, args.json, "images");
    let mut in_options = InOptions(observer.as_mut());
    let mut watching = Watching { observer: &mut in_options, page: &mut page, folder: &config.out };
    let trained = images::train(&config, resumed.is_some(), &mut watching);
    drop(observer);
    page.end();
    let summary = trained?;
    let mut lines = String::new();
    if !args.json {
        lines += &(summary_line(&summary, "images") + "\n");
    }
    if !args.json && !args.quiet {
        lines += &(account_table(&summary.account) + &next_command(&summary) + "\n");
    }
    print::text(lines).or_else(|error| if interrupt::asked() { Ok(()) } else { Err(error) })
}

/// What the user will want to do next, to be copied.
fn next_command(summary: &Summary) -> String {
    let folder = quoted(&summary.run_folder.display().to_string());
    match summary.interrupted {
        true => format!("go on with:      gradus train-images --resume {folder}"),
        false => format!("ask it:          gradus classify {folder} IMAGE..."),
    }
}

fn new_config(args: &TrainImagesArgs) -> Result<ImagesConfig> {
    let is_drawn = args.images.is_none();
    if is_drawn && args.skip_broken {
        return refused("--skip-broken has no effect: drawn images are never broken; leave it out");
    }
    if is_drawn && args.validation.is_some() {
        return refused("--validation has no effect: of drawn images, others are held out; leave it out");
    }
    if args.init.is_some() && args.model.is_some() {
        return refused("--model has no effect: --init brings its own; leave one of them out");
    }
    let name = args.model.clone().unwrap_or_else(|| if is_drawn { DRAWN_MODEL } else { MODEL }.to_string());
    let (name, architecture) = match &args.init {
        Some(folder) => (folder.display().to_string(), export::read_image_config(folder)?.0.model.architecture),
        None => {
            let known =
                Architecture::named(&name).ok_or_else(|| Error::Config(format!("--model {name} is not known")))?;
            (name, known)
        }
    };
    let steps = args.steps.unwrap_or(if is_drawn { DRAWN_STEPS } else { STEPS });
    let optimizer = args.optimizer.map_or(OptimizerKind::Adamw, Into::into);
    let threads = args.threads.unwrap_or_else(defaults::threads);
    Ok(ImagesConfig {
        out: match &args.out {
            Some(folder) => folder.clone(),
            None => folders::next_free_named(
                &args.images.as_ref().map_or("drawn".into(), |path| folders::corpus_name(path)),
            )?,
        },
        model: name,
        init: args.init.clone(),
        size: args.size,
        skip_broken: args.skip_broken,
        validation: args.validation.unwrap_or(0.1),
        batch: args.batch.unwrap_or(if is_drawn { DRAWN_BATCH } else { BATCH }),
        micro_batch: args.micro_batch.unwrap_or(0),
        steps,
        memory: args.memory,
        recompute: args.recompute.unwrap_or(Recomputation::Auto),
        learning_rate: args.learning_rate.unwrap_or_else(|| learning_rate(optimizer, args.init.is_some())),
        warmup_steps: args.warmup_steps.unwrap_or(defaults::warmup_steps(Some(steps))),
        schedule: args.schedule.map_or(ScheduleKind::Cosine, Into::into),
        optimizer,
        weight_decay: args.weight_decay.unwrap_or(shortest(optimizer.usual().weight_decay)),
        clip: args.clip.unwrap_or(Clip::Norm(1.0)),
        label_smoothing: args.label_smoothing.unwrap_or(0.0),
        precision: args.precision.map_or(Precision::F32, Into::into),
        device: args.device.unwrap_or(DeviceChoice::Auto),
        threads,
        workers: args.workers.unwrap_or(threads.min(WORKERS_MOST)),
        seed: args.seed.unwrap_or(1),
        eval_every: args.eval_every.unwrap_or(defaults::eval_every(Some(steps))),
        save_every: args.save_every.unwrap_or(defaults::every(Some(steps), 5)),
        keep: args.keep.unwrap_or(2),
        health: args.health.unwrap_or(HealthInterval::Auto),
        layout: args.layout.map_or(Default::default(), Into::into),
        export_dtype: args.export_dtype.map_or(ExportDtype::F32, Into::into),
        tensorboard: args.tensorboard,
        fingerprint: String::new(),
        mean: MEAN,
        deviation: DEVIATION,
        classes: vec![],
        augmentation: Augmentation {
            crop: args.crop.unwrap_or(if is_drawn { 0.0 } else { 0.3 }),
            flip: args.flip.unwrap_or(!is_drawn),
            colour: args.colour.unwrap_or(if is_drawn { 0.0 } else { 0.2 }),
            mixup: args.mixup.unwrap_or(0.0),
        },
        architecture,
        images: args.images.clone(),
        observer_bytes: 0,
    })
}

/// As for other models of this size; weights that are trained already take smaller steps.
fn learning_rate(optimizer: OptimizerKind, is_trained: bool) -> f64 {
    let new = match optimizer {
        OptimizerKind::Adamw | OptimizerKind::Adafactor | OptimizerKind::Muon | OptimizerKind::Soap => 3e-3,
        OptimizerKind::Lion | OptimizerKind::Sophia => 5e-4,
        OptimizerKind::Sgd => 0.1,
    };
    if is_trained { new / 10.0 } else { new }
}

/// The run of a folder, with what may change when it goes on.
fn resumed(args: &TrainImagesArgs, folder: &Path) -> Result<ImagesConfig> {
    if !folder.join(CONFIG_FILE).is_file() {
        let problem =
            format!("not the folder of a run (it has no {CONFIG_FILE}); give one that has, or leave --resume out");
        return Err(Error::checkpoint(folder, problem));
    }
    let fixed = [
        ("model", args.model.is_some()),
        ("init", args.init.is_some()),
        ("size", args.size.is_some()),
        ("validation", args.validation.is_some()),
        ("batch", args.batch.is_some()),
        ("micro-batch", args.micro_batch.is_some()),
        ("optimizer", args.optimizer.is_some()),
        ("weight-decay", args.weight_decay.is_some()),
        ("label-smoothing", args.label_smoothing.is_some()),
        ("precision", args.precision.is_some()),
        ("seed", args.seed.is_some()),
        ("crop", args.crop.is_some()),
        ("flip", args.flip.is_some()),
        ("colour", args.colour.is_some()),
        ("mixup", args.mixup.is_some()),
        ("out", args.out.is_some()),
        ("skip-broken", args.skip_broken),
    ];
    if let Some((option, _)) = fixed.iter().find(|(_, is_given)| *is_given) {
        return refused(&format!("--{option} cannot change while a run goes on; leave it out, or start a new run"));
    }
    let before = ImagesConfig::read(folder)?;
    Ok(ImagesConfig {
        images: args.images.clone().or(before.images),
        steps: args.steps.unwrap_or(before.steps),
        memory: args.memory.or(before.memory),
        recompute: args.recompute.unwrap_or(before.recompute),
        learning_rate: args.learning_rate.unwrap_or(before.learning_rate),
        warmup_steps: args.warmup_steps.unwrap_or(before.warmup_steps),
        schedule: args.schedule.map_or(before.schedule, Into::into),
        clip: args.clip.unwrap_or(before.clip),
        device: args.device.unwrap_or(before.device),
        threads: args.threads.unwrap_or(before.threads),
        workers: args.workers.unwrap_or(before.workers),
        eval_every: args.eval_every.unwrap_or(before.eval_every),
        save_every: args.save_every.unwrap_or(before.save_every),
        keep: args.keep.unwrap_or(before.keep),
        health: args.health.unwrap_or(before.health),
        layout: args.layout.map_or(before.layout, Into::into),
        export_dtype: args.export_dtype.map_or(before.export_dtype, Into::into),
        tensorboard: args.tensorboard || before.tensorboard,
        ..before
    })
}

fn refused<T>(problem: &str) -> Result<T> {
    Err(Error::Config(problem.to_string()))
}
