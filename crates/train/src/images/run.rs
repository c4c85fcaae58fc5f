//! A run of `gradus train-images`: an image model on a set of images, by the trainer.

use super::config::{ImagesConfig, Size};
use super::confusion::Confusion;
use super::framing::Framing;
use super::objective::{AHEAD, Classifier, LIKELIEST, LOSSES};
use super::set::ImageSet;
use super::source::{ImageSource, Loading};
use super::view::Augmentation;
use super::{IMAGE, LABEL};
use crate::config::Precision;
use crate::export::{self, Labelled};
use crate::files::tensors::Tensors;
use crate::memory::guard;
use crate::models::vision::{Architecture, ImageModel};
use crate::optimizers::{GroupedOptimizer, Hyperparameters};
use crate::run::{Accuracy, Event, Observer, Stop, Summary};
use crate::schedule::Length;
use crate::step::TrainingStep;
use crate::trainer::{GoesOn, Hooks, Settings, Trainer};
use crate::training::FolderBefore;
use crate::{Error, Result, device, training};
use std::path::Path;
use std::sync::Arc;

/// Bytes of batches that are filled ahead, if more than one of them fits.
const AHEAD_BYTES: usize = 64 << 20;
const AHEAD_MOST: usize = 4;
/// Classes among which the right one is to be for the second figure of accuracy.
const TOP: f32 = 5.0;

/// Trains a model as stated, or goes on with a run that was stopped.
pub fn train(config: &ImagesConfig, resume: bool, observer: &mut dyn Observer) -> Result<Summary> {
    config.validate()?;
    if resume {
        return in_folder(config, resume, observer);
    }
    training::check_free(&config.out)?;
    let (before, as_before) = (FolderBefore::of(&config.out), FolderBefore::of(&config.out));
    guard::on_refusal(move || as_before.restore());
    let mut begun = Begun { observer, is_so: false };
    // A run that cannot begin leaves nothing behind.
    let trained = in_folder(config, resume, &mut begun);
    if !begun.is_so {
        before.restore();
    }
    trained
}

/// Knows whether the first step was taken.
struct Begun<'a> {
    observer: &'a mut dyn Observer,
    is_so: bool,
}

impl Observer for Begun<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if matches!(event, Event::Step(_) | Event::Finished(_)) && !self.is_so {
            self.is_so = true;
            guard::on_refusal(|| ());
        }
        self.observer.event(event);
    }

    fn should_stop(&self) -> Stop {
        self.observer.should_stop()
    }
}

fn in_folder(config: &ImagesConfig, resume: bool, observer: &mut dyn Observer) -> Result<Summary> {
    let backend = device::backend(config.device, config.threads)?;
    let set = Arc::new(open(config, observer)?);
    let (mut config, labelled) = resolved(config, &set, resume)?;
    let objective = Classifier {
        model: labelled.model.clone(),
        label_smoothing: config.label_smoothing as f32,
        mixes: config.augmentation.mixup > 0.0,
    };
    let size = labelled.model.size;
    let loading = Loading {
        set: set.clone(),
        size,
        augmentation: config.augmentation,
        seed: config.seed,
        workers: config.workers.min(config.batch),
    };
    let settings = settings(&config, &labelled.model, &loading);
    let mut trainer = Trainer::new(objective, settings, backend)?;
    if trainer.steps_taken() == 0
        && let Some(folder) = &config.init
    {
        start_from(folder, &labelled.model, &mut trainer, observer)?;
    }
    config.micro_batch = trainer.micro_batch().rows();
    config.save()?;
    tell(&config, &set, &labelled.model, observer);
    let hooks = Validation {
        images: ImageSource::of_held_out(loading.clone()),
        set: set.clone(),
        labelled,
        accuracy: None,
        confusion: None,
        config: config.clone(),
    };
    let summary = trainer.with_hooks(hooks).train(ImageSource::of_training(loading), observer)?;
    if set.replaced() > 0 {
        let text = format!("{} images could not be decoded; the next ones stood in for them", set.replaced());
        observer.event(&Event::Warning(&text));
    }
    Ok(summary)
}

/// The images of a run.
fn open(config: &ImagesConfig, observer: &mut dyn Observer) -> Result<ImageSet> {
    let Some(path) = &config.images else { return Ok(ImageSet::drawn(config.seed)) };
    let set = ImageSet::open(path, config.validation, config.skip_broken, &mut |done, total| {
        observer.event(&Event::Preparing { what: "looking at images", done, total: Some(total) });
        match observer.should_stop() {
            Stop::No => Ok(()),
            Stop::AfterStep => Err(Error::Stopped("stopped before the first step; nothing was trained".into())),
        }
    })?;
    if let Some(first) = &set.first_skipped {
        observer.event(&Event::Warning(&format!("{} images are left out; the first: {first}", set.skipped)));
    }
    Ok(set)
}

/// The run with what the images say: the size that the model sees, and the classes. A run that goes on must have the same.
fn resolved(config: &ImagesConfig, set: &ImageSet, resume: bool) -> Result<(ImagesConfig, Labelled)> {
    let mut config = config.clone();
    let fingerprint = set.fingerprint();
    if resume && fingerprint != config.fingerprint {
        let problem = "was trained on other images than those that are there now; bring them back, or start a new run";
        return Err(Error::checkpoint(&config.out, problem));
    }
    let size = match config.size {
        Some(size) => size,
        None => Size(set.size()?),
    };
    (config.size, config.fingerprint, config.classes) = (Some(size), fingerprint, set.classes.clone());
    if let Some(folder) = config.init.as_ref().filter(|_| !resume) {
        let stated = export::read_image_config(folder)?.0.model;
        (config.architecture, config.mean, config.deviation) = (stated.architecture, stated.mean, stated.deviation);
    }
    let model = ImageModel {
        architecture: config.architecture.clone(),
        classes: set.classes.len(),
        size: size.0,
        mean: config.mean,
        deviation: config.deviation,
    };
    model.validate()?;
    export::check_layout(&model, config.layout)?;
    if config.micro_batch == 0 {
        // Batch norm takes its statistics over the images computed at once, and weights that are added to all images sum their
        // gradients over those first: so these are a choice, and not the memory's.
        config.micro_batch = config.batch;
    }
    Ok((config, Labelled { model, labels: set.classes.clone(), framing: Framing::default() }))
}

/// The settings of the trainer.
fn settings(config: &ImagesConfig, model: &ImageModel, loading: &Loading) -> Settings {
    let usual = config.optimizer.usual();
    let optimizer: GroupedOptimizer =
        config.optimizer.grouped(Hyperparameters { weight_decay: config.weight_decay as f32, ..usual });
    let of_image = model.size[0] * model.size[1] * size_of::<i32>();
    let ahead = (AHEAD_BYTES / (config.batch * of_image).max(1)).clamp(1, AHEAD_MOST);
    // Those who fill batches ahead, those who validate, and the order of held-out images.
    let of_worker = |augmentation: &Augmentation| loading.set.worker_bytes(model.size, augmentation);
    let workers = loading.workers as u64 * (of_worker(&config.augmentation) + of_worker(&Augmentation::NONE));
    let held_out = loading.set.count(true) * size_of::<usize>() + 4 * model.classes * model.classes;
    Settings {
        batch: config.batch,
        micro_batch: config.micro_batch,
        steps: Some(config.steps),
        learning_rate: config.learning_rate,
        final_learning_rate_share: 0.01,
        warmup_steps: config.warmup_steps,
        schedule: config.schedule,
        optimizer,
        clip: config.clip,
        precision: config.precision,
        memory: config.memory,
        recompute: config.recompute.policy(),
        seed: config.seed,
        folder: Some(config.out.clone()),
        tensorboard: config.tensorboard.then(|| config.out.join("tensorboard")),
        save_every: config.save_every,
        keep: config.keep,
        validate_every: config.eval_every,
        health: config.health,
        ahead,
        data_bytes: workers + loading.set.bytes() + held_out as u64 + config.observer_bytes,
        ..Settings::default()
    }
}

/// Weights of a model that is there, with a new layer for logits if it tells other classes.
fn start_from(folder: &Path, model: &ImageModel, trainer: &mut Trainer, observer: &mut dyn Observer) -> Result<()> {
    let (stated, layout) = export::read_image_config(folder)?;
    let with_head = stated.model.classes == model.classes;
    if !with_head {
        let classes = stated.model.classes;
        let text = format!("the model in {} tells {classes} classes: the layer for logits is new", folder.display());
        observer.event(&Event::Note(&text));
    }
    let read = stated.model;
    if matches!(read.architecture, Architecture::Vit(_)) && read.size != model.size {
        let [height, width] = read.size;
        let problem =
            format!("its places are those of images of {height}x{width}; give `settings.size` {height}x{width}");
        return Err(Error::checkpoint(folder, problem));
    }
    export::read_image_weights(folder, &read, layout, with_head, trainer.program_mut())
}

/// Says what was chosen.
fn tell(config: &ImagesConfig, set: &ImageSet, model: &ImageModel, observer: &mut dyn Observer) {
    let [height, width] = model.size;
    let images =
        config.images.as_ref().map_or("drawn shapes, glyphs and textures".into(), |path| path.display().to_string());
    let precision = if config.precision == Precision::F32 {
        String::new()
    } else {
        format!(", {:?}", config.precision).to_lowercase()
    };
    let at_once =
        if config.micro_batch < config.batch { format!(", {} at once", config.micro_batch) } else { String::new() };
    let (train, held_out) = (set.count(false), set.count(true));
    let text = format!(
        "{} of {width} x {height} pixels, {} classes; {images}: {train} images, {held_out} held out; {} steps of {}{at_once}{precision}",
        config.model, model.classes, config.steps, config.batch,
    );
    observer.event(&Event::Note(&text));
}

/// What a run on images does besides steps: how often it is right on held-out images, and a model folder at its end.
struct Validation {
    images: ImageSource,
    set: Arc<ImageSet>,
    labelled: Labelled,
    accuracy: Option<Accuracy>,
    confusion: Option<Confusion>,
    config: ImagesConfig,
}

impl Hooks for Validation {
    /// The fall is as long as the run that began it.
    fn decay_setting(&self, _: Length) -> Option<String> {
        None
    }

    fn data_tokens(&self) -> u64 {
        self.set.count(false) as u64
    }

    fn validation_batches(&self, _: &TrainingStep, at_most: usize) -> usize {
        at_most.min(self.set.count(true).div_ceil(self.config.batch))
    }

    /// The images are evenly spread over those that are held out.
    fn validation_loss(
        &mut self,
        training: &mut TrainingStep,
        at_most: usize,
        goes_on: GoesOn<'_>,
    ) -> Result<Option<f32>> {
        let all = self.set.count(true);
        let wanted = (self.validation_batches(training, at_most) * self.config.batch).min(all);
        if wanted == 0 {
            return Ok(None);
        }
        let numbers: Vec<usize> = (0..wanted).map(|index| index * all / wanted).collect();
        let mut batch = training.micro_batch();
        // Of a last part that is not full, the other rows hold pixels and classes that there are.
        batch.numbers_mut::<i32>(IMAGE)?.fill(0);
        let parts = wanted.div_ceil(batch.rows());
        let mut confusion = Confusion::new(self.labelled.model.classes);
        let (mut loss, mut right, mut near) = (0.0, 0, 0);
        for (part, numbers) in numbers.chunks(batch.rows()).enumerate() {
            if !goes_on(part as u64, parts as u64) {
                return Ok(None);
            }
            self.images.fill_numbers(numbers, &mut batch)?;
            training.evaluate(&batch)?;
            let program = training.program();
            let losses = program.read(LOSSES)?.to_vec::<f32>()?;
            let likeliest = program.read(LIKELIEST)?.to_vec::<i32>()?;
            let ahead = program.read(AHEAD)?.to_vec::<f32>()?;
            let labels = batch.numbers::<i32>(LABEL)?;
            for row in 0..numbers.len() {
                loss += f64::from(losses[row]);
                right += usize::from(likeliest[row] == labels[row]);
                near += usize::from(ahead[row] < TOP);
                confusion.count(labels[row] as usize, likeliest[row] as usize);
            }
        }
        let share = |count: usize| count as f32 / wanted as f32;
        self.accuracy = Some(Accuracy { top1: share(right), top5: share(near) });
        self.confusion = Some(confusion);
        Ok(Some((loss / wanted as f64) as f32))
    }

    fn accuracy(&self) -> Option<Accuracy> {
        self.accuracy
    }

    /// The model folder that other tools open, and who is taken for whom.
    fn export(&mut self, _: &TrainingStep, weights: &dyn Tensors) -> Result<()> {
        let ImagesConfig { out, layout, export_dtype, .. } = &self.config;
        export::write_image_model(&out.join("model"), &self.labelled, *layout, *export_dtype, weights)?;
        self.confusion.as_ref().map_or(Ok(()), |confusion| confusion.write(out, &self.labelled.labels))
    }
}
