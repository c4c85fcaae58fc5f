//! Runs on images: drawn, in folders and in tables; stopped and gone on with; what cannot be used; and the folders of models.

use gradus_engine::backend::Cpu;
use gradus_train::config::{
    Clip, DeviceChoice, ExportDtype, HealthInterval, OptimizerKind, Precision, Recomputation, ScheduleKind,
};
use gradus_train::export::{self, Layout};
use gradus_train::images::{self, Augmentation, ImagesConfig, Size};
use gradus_train::memory::Budget;
use gradus_train::models::vision::{Architecture, DEVIATION, MEAN};
use gradus_train::run::{Event, Observer, Stop, Summary};
use image::{Rgb, RgbImage};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gradus-images-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Hears what is told, and stops after a step.
#[derive(Default)]
struct Listener {
    stop_after: Option<u64>,
    step: u64,
    told: Vec<String>,
}

impl Observer for Listener {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(report) => self.step = report.step,
            Event::Warning(text) | Event::Note(text) => self.told.push(text.to_string()),
            _ => {}
        }
    }

    fn should_stop(&self) -> Stop {
        if self.stop_after.is_some_and(|stop| self.step >= stop) { Stop::AfterStep } else { Stop::No }
    }
}

fn config(out: &Path, model: &str) -> ImagesConfig {
    ImagesConfig {
        images: None,
        out: out.to_path_buf(),
        model: model.to_string(),
        init: None,
        size: Some(Size([32, 32])),
        skip_broken: false,
        validation: 0.25,
        batch: 8,
        micro_batch: 0,
        steps: 6,
        memory: None,
        recompute: Recomputation::Auto,
        learning_rate: 1e-3,
        warmup_steps: 0,
        schedule: ScheduleKind::Cosine,
        optimizer: OptimizerKind::Adamw,
        weight_decay: 0.1,
        clip: Clip::Norm(1.0),
        label_smoothing: 0.1,
        precision: Precision::F32,
        device: DeviceChoice::Cpu,
        threads: 2,
        workers: 2,
        seed: 3,
        eval_every: 0,
        save_every: 0,
        keep: 1,
        health: HealthInterval::Off,
        layout: Layout::Timm,
        export_dtype: ExportDtype::F32,
        tensorboard: false,
        fingerprint: String::new(),
        mean: MEAN,
        deviation: DEVIATION,
        classes: vec![],
        augmentation: Augmentation { crop: 0.3, flip: true, colour: 0.3, mixup: 0.5 },
        architecture: Architecture::named(model).expect("a name"),
        observer_bytes: 0,
    }
}

fn trained(config: &ImagesConfig) -> Summary {
    images::train(config, false, &mut Listener::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(config: &ImagesConfig) -> String {
    let error = images::train(config, false, &mut Listener::default()).unwrap_err().to_string();
    assert!(!config.out.exists(), "a run that cannot begin leaves nothing: {error}");
    error
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("model/model.safetensors")).unwrap()
}

/// Images of one colour, each class another.
fn classes(folder: &Path, names: &[&str], count: u32, size: (u32, u32)) {
    for (class, name) in names.iter().enumerate() {
        fs::create_dir_all(folder.join(name)).unwrap();
        for number in 0..count {
            let colour = [40 + 150 * class as u8, (10 * number) as u8, 90];
            let ending = ["png", "jpg", "webp"][number as usize % 3];
            let path = folder.join(name).join(format!("{number}.{ending}"));
            RgbImage::from_pixel(size.0, size.1, Rgb(colour)).save(path).unwrap();
        }
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bits_on_any_number_of_threads() {
    let folder = Folder::new("resumed");
    for model in ["resnet-tiny", "vit-tiny"] {
        let at = |name: &str| folder.path(&format!("{model}-{name}"));
        let whole = trained(&config(&at("whole"), model));
        assert!(
            whole
                .accuracy
                .is_some_and(|accuracy| (0.0..=1.0).contains(&accuracy.top1) && accuracy.top5 >= accuracy.top1)
        );
        let parted = ImagesConfig { threads: 1, workers: 3, ..config(&at("parted"), model) };
        let mut listener = Listener { stop_after: Some(3), ..Listener::default() };
        assert!(images::train(&parted, false, &mut listener).unwrap().interrupted);
        let going_on = ImagesConfig::read(&at("parted")).unwrap();
        assert_eq!(going_on.classes.len(), 15);
        let ended = images::train(&going_on, true, &mut Listener::default()).unwrap();
        assert_eq!((ended.steps, ended.interrupted), (6, false));
        assert!(weights(&at("whole")) == weights(&at("parted")), "{model}: the same bits");
        assert!(at("whole").join("confusion.png").is_file() && at("whole").join("confusion.csv").is_file());
        let metrics = fs::read_to_string(at("whole").join("metrics.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
        assert!(last["validation_accuracy"].is_number() && last["validation_accuracy_top5"].is_number(), "{last}");
    }
}

#[test]
fn images_computed_at_once_are_part_of_a_run_and_a_budget_changes_no_bit() {
    let folder = Folder::new("micro");
    let of = |model: &str, micro_batch: usize, memory: Option<Budget>| {
        let out = folder.path(&format!("{model}-{micro_batch}-{}", memory.is_some()));
        let config = ImagesConfig { micro_batch, steps: 2, memory, ..config(&out, model) };
        trained(&config);
        assert_eq!(
            ImagesConfig::read(&config.out).unwrap().micro_batch,
            if micro_batch == 0 { 8 } else { micro_batch }
        );
        weights(&config.out)
    };
    for model in ["vit-tiny", "resnet-tiny"] {
        assert!(of(model, 0, None) == of(model, 0, Some(Budget::megabytes(150))), "{model}");
    }
    assert!(of("resnet-tiny", 8, None) != of("resnet-tiny", 2, None));
}

#[test]
fn folders_and_tables_are_trained_on_and_what_is_broken_is_refused_or_counted() {
    let folder = Folder::new("folders");
    let data = folder.path("data");
    classes(&data, &["dark", "light"], 6, (32, 32));
    let of = |data: &Path, name: &str| ImagesConfig {
        images: Some(data.to_path_buf()),
        size: None,
        ..config(&folder.path(name), "resnet-tiny")
    };
    let right = trained(&ImagesConfig { steps: 2, ..of(&data, "run") });
    assert_eq!(right.tokens, 16);
    assert_eq!(ImagesConfig::read(&folder.path("run")).unwrap().size, Some(Size([32, 32])));

    // A broken image, found by its beginning or only by its end.
    fs::write(data.join("dark/broken.png"), b"no image").unwrap();
    let said = refused(&of(&data, "broken"));
    assert!(said.contains("broken.png") && said.contains("skip_broken"), "{said}");
    let mut torn = fs::read(data.join("light/0.png")).unwrap();
    torn.truncate(torn.len() / 2);
    fs::write(data.join("light/torn.png"), torn).unwrap();
    let skipping = ImagesConfig { skip_broken: true, batch: 16, steps: 1, ..of(&data, "skipping") };
    let mut listener = Listener::default();
    images::train(&skipping, false, &mut listener).unwrap();
    let told = listener.told.join("\n");
    assert!(told.contains("1 images are left out") && told.contains("1 images could not be decoded"), "{told}");
    fs::remove_file(data.join("dark/broken.png")).unwrap();
    let error =
        images::train(&ImagesConfig { batch: 16, steps: 1, ..of(&data, "torn") }, false, &mut Listener::default());
    assert!(error.unwrap_err().to_string().contains("torn.png"));
    fs::remove_file(data.join("light/torn.png")).unwrap();

    // A link to an image that is gone.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("gone.png", data.join("dark/linked.png")).unwrap();
        let said = refused(&of(&data, "linked"));
        assert!(said.contains("linked.png") && said.contains("skip_broken"), "{said}");
        let mut listener = Listener::default();
        let without = ImagesConfig { skip_broken: true, steps: 1, ..of(&data, "unlinked") };
        images::train(&without, false, &mut listener).unwrap();
        assert!(listener.told.iter().any(|text| text.contains("1 images are left out")), "{:?}", listener.told);
        fs::remove_file(data.join("dark/linked.png")).unwrap();
    }

    // What is no file is never waited for.
    #[cfg(unix)]
    {
        assert!(std::process::Command::new("mkfifo").arg(data.join("pipe.png")).status().unwrap().success());
        fs::write(folder.path("pipe.csv"), "data/pipe.png,dark\ndata/light/0.png,light\n").unwrap();
        let said = refused(&of(&folder.path("pipe.csv"), "pipe"));
        assert!(said.contains("pipe.png") && said.contains("it is no file"), "{said}");
    }

    // A table, one with a file that is missing, and images that have changed.
    let table = data.join("all.csv");
    let line =
        |class: &str, number: usize| format!("{class}/{number}.{},{class}\n", ["png", "jpg", "webp"][number % 3]);
    let lines: String = (0..6).flat_map(|number| ["dark", "light"].map(|class| line(class, number))).collect();
    fs::write(&table, format!("path,label\n{lines}")).unwrap();
    trained(&ImagesConfig { steps: 1, ..of(&table, "table") });
    // As spreadsheets write it; and nothing that names a file is taken for a title.
    fs::write(&table, format!("\u{feff}{lines}")).unwrap();
    trained(&ImagesConfig { steps: 1, ..of(&table, "marked") });
    fs::write(&table, format!("dark/none.gif,dark\n{lines}")).unwrap();
    assert!(refused(&of(&table, "titled")).contains("none.gif"));
    fs::write(&table, format!("{lines}dark/none.png,dark\n")).unwrap();
    let said = refused(&of(&table, "missing"));
    assert!(said.contains("all.csv") && said.contains("none.png") && said.contains("skip_broken"), "{said}");
    let mut listener = Listener::default();
    images::train(&ImagesConfig { skip_broken: true, steps: 1, ..of(&table, "found") }, false, &mut listener).unwrap();
    assert!(listener.told.iter().any(|text| text.contains("1 images are left out")), "{:?}", listener.told);
    fs::remove_file(data.join("dark/0.png")).unwrap();
    let going_on = ImagesConfig { steps: 4, ..ImagesConfig::read(&folder.path("run")).unwrap() };
    let said = images::train(&going_on, true, &mut Listener::default()).unwrap_err().to_string();
    assert!(said.contains("other images"), "{said}");
}

#[test]
fn sets_that_cannot_be_trained_on_are_refused_in_one_line() {
    let folder = Folder::new("refused");
    let of = |name: &str| ImagesConfig {
        images: Some(folder.path(name)),
        size: None,
        ..config(&folder.path("run"), "resnet-tiny")
    };
    fs::create_dir_all(folder.path("empty")).unwrap();
    classes(&folder.path("one"), &["only"], 3, (16, 16));
    classes(&folder.path("sizes"), &["a"], 2, (16, 16));
    classes(&folder.path("sizes"), &["b"], 2, (24, 16));
    fs::write(folder.path("unlabelled.csv"), "a.png\n").unwrap();
    for (name, part) in [
        ("empty", "no images"),
        ("none", "cannot read"),
        ("one", "one class, \"only\""),
        ("sizes", "differ in size"),
        ("unlabelled.csv", "line 1: has no label"),
    ] {
        let said = refused(&of(name));
        assert!(said.contains(part) && !said.contains('\n'), "{name}: {said}");
    }
    // Names that no file of the run can hold.
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"\xff");
        classes(&folder.path("names"), &["a", "b"], 2, (16, 16));
        fs::rename(folder.path("names/b"), folder.path("names").join(name)).unwrap();
        fs::rename(folder.path("one"), folder.0.join(name)).unwrap();
        let said = refused(&of("names"));
        assert!(said.contains("not UTF-8, so no file can state the class"), "{said}");
        let said = refused(&ImagesConfig { images: Some(folder.0.join(name)), ..of("one") });
        assert!(said.contains("the images") && said.contains("is not UTF-8"), "{said}");
    }
    let said = refused(&ImagesConfig { size: Some(Size([30, 30])), ..config(&folder.path("run"), "vit-tiny") });
    assert!(said.contains("multiples of 8"), "{said}");
    trained(&ImagesConfig { size: Some(Size([20, 20])), steps: 1, ..of("sizes") });
}

/// The weights of a model folder by name, without the statistics of batch norm.
fn learned(folder: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |data: &[u8]| data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let weights =
        tensors.iter().filter(|(name, _)| !name.contains("running_") && !name.ends_with("num_batches_tracked"));
    weights.map(|(name, tensor)| (name.to_string(), numbers(tensor.data()))).collect()
}

#[test]
fn both_layouts_are_read_back_and_say_the_same_of_an_image() {
    let folder = Folder::new("layouts");
    let data = folder.path("data");
    classes(&data, &["dark", "light"], 4, (32, 32));
    let image = data.join("light/0.png");
    for model in ["resnet-tiny", "vit-tiny"] {
        let said = |layout: Layout, init: Option<PathBuf>, steps: u64, learning_rate: f64| {
            let out = folder.path(&format!("{model}-{layout:?}-{}", init.is_some()));
            let images = Some(data.clone());
            trained(&ImagesConfig { images, layout, init, steps, learning_rate, ..config(&out, model) });
            let mut answers = vec![];
            let cpu = Cpu::new(1).unwrap();
            let hear = &mut |answer: gradus_train::Result<images::Answer>| answer.map(|answer| answers.push(answer));
            images::classify(&out.join("model"), std::slice::from_ref(&image), 2, &cpu, hear).unwrap();
            assert!((answers[0].classes.iter().map(|(_, share)| share).sum::<f32>() - 1.0).abs() < 1e-5);
            (answers.swap_remove(0), out.join("model"))
        };
        let (timm, folder_of_timm) = said(Layout::Timm, None, 2, 1e-3);
        let (transformers, folder_of_transformers) = said(Layout::Transformers, None, 2, 1e-3);
        assert_eq!(timm, transformers, "{model}");
        // At no rate to speak of nothing is learned but statistics: what is read is what was written.
        let (_, again) = said(Layout::Transformers, Some(folder_of_timm.clone()), 1, 1e-30);
        let [before, after] = [&folder_of_transformers, &again].map(|folder| learned(folder));
        assert!(before.len() > 4 && before.keys().eq(after.keys()), "{model}");
        for (name, before) in &before {
            let furthest =
                before.iter().zip(&after[name]).map(|(before, after)| (before - after).abs()).fold(0.0, f32::max);
            assert!(furthest < 1e-29, "{model}: {name} is {furthest} off");
        }
        let path = folder_of_timm.join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen('{', "{\"antialias\": true,", 1)).unwrap();
        let refused = |folder: &Path| export::read_image_config(folder).unwrap_err().to_string();
        let error = refused(&folder_of_timm);
        assert!(error.contains("antialias is not understood"), "{error}");
        // Classes without names, or others than there are.
        fs::write(&path, text.replacen("\"dark\"", "1", 1)).unwrap();
        assert!(refused(&folder_of_timm).contains("label_names holds what is no text"));
        let path = folder_of_transformers.join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"1\": \"light\"", "\"7\": \"light\"")).unwrap();
        assert!(refused(&folder_of_transformers).contains("id2label has 7 where 1 should be"));
    }
}

#[test]
fn a_run_is_held_to_the_limits_of_other_runs() {
    let folder = Folder::new("limits");
    let of = || config(&folder.path("run"), "resnet-tiny");
    for (config, part) in [
        (ImagesConfig { batch: 1 << 63, steps: 1, ..of() }, "`settings.batch` 9223372036854775808 is out of range"),
        (ImagesConfig { batch: 0, ..of() }, "`settings.batch` 0 is out of range"),
        (ImagesConfig { micro_batch: 3, ..of() }, "`settings.batch` 8 is not divisible"),
        (ImagesConfig { steps: 0, ..of() }, "`settings.steps` 0 is out of range"),
        (ImagesConfig { steps: (1 << 53) + 1, ..of() }, "`settings.steps` 9007199254740993 is out of range"),
        (ImagesConfig { warmup_steps: 7, ..of() }, "`settings.warmup_steps` 7 is longer"),
        (ImagesConfig { eval_every: u64::MAX, ..of() }, "`settings.eval_every`"),
        (ImagesConfig { save_every: u64::MAX, ..of() }, "`settings.save_every`"),
        (ImagesConfig { keep: 0, ..of() }, "`settings.keep` 0"),
        (ImagesConfig { threads: 1 << 20, ..of() }, "`settings.threads`"),
        (ImagesConfig { learning_rate: f64::NAN, ..of() }, "`settings.learning_rate`"),
        (ImagesConfig { weight_decay: -1.0, ..of() }, "`settings.weight_decay`"),
    ] {
        let said = refused(&config);
        assert!(said.contains(part) && !said.contains('\n'), "{part}: {said}");
    }
}

#[test]
fn a_shorter_end_is_remarked_on_without_a_setting_that_there_is_not() {
    let folder = Folder::new("shorter");
    trained(&ImagesConfig { steps: 2, ..config(&folder.path("run"), "resnet-tiny") });
    let shorter = ImagesConfig { steps: 1, ..ImagesConfig::read(&folder.path("run")).unwrap() };
    let mut listener = Listener::default();
    images::train(&shorter, true, &mut listener).unwrap();
    let remark = listener.told.iter().find(|text| text.contains("the run ends at step 1")).expect("a remark");
    assert!(!remark.contains("decay") && !remark.contains("Steps(") && !remark.contains(';'), "{remark}");
}

#[test]
fn a_transformer_that_timm_cannot_state_is_refused_before_it_is_trained() {
    let folder = Folder::new("epsilon");
    let data = folder.path("data");
    classes(&data, &["dark", "light"], 4, (32, 32));
    let of = |name: &str, layout: Layout, init: Option<PathBuf>| {
        let config = config(&folder.path(name), "vit-tiny");
        ImagesConfig { images: Some(data.clone()), steps: 1, layout, init, ..config }
    };
    trained(&of("first", Layout::Transformers, None));
    let init = folder.path("first/model");
    let path = init.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"layer_norm_eps\": 1e-6"), "{text}");
    fs::write(&path, text.replace("\"layer_norm_eps\": 1e-6", "\"layer_norm_eps\": 1e-12")).unwrap();
    let said = refused(&of("second", Layout::Timm, Some(init.clone())));
    assert!(said.contains("layer_norm_eps of 1e-12") && said.contains("`settings.layout` transformers"), "{said}");
    trained(&of("third", Layout::Transformers, Some(init)));
}

/// A variance below zero has no root.
#[test]
fn what_is_no_number_is_no_answer() {
    let folder = Folder::new("nan");
    let data = folder.path("data");
    classes(&data, &["dark", "light"], 2, (16, 16));
    let run = folder.path("run");
    trained(&ImagesConfig { images: Some(data.clone()), size: None, steps: 1, ..config(&run, "resnet-tiny") });
    let path = run.join("model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let (first, length) = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let variance = tensors.tensor("bn1.running_var").unwrap();
        (variance.data().as_ptr() as usize - bytes.as_ptr() as usize, variance.data().len())
    };
    bytes[first..first + length].chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&(-5f32).to_le_bytes()));
    fs::write(&path, bytes).unwrap();
    let cpu = Cpu::new(1).unwrap();
    let images = [data.join("dark/0.png")];
    let said =
        images::classify(&run.join("model"), &images, 2, &cpu, &mut |answer| answer.map(|answer| panic!("{answer:?}")));
    assert!(said.unwrap_err().to_string().contains("0.png is no number"));
}
