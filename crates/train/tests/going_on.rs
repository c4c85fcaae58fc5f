//! Runs that go on: after a stop at any stage, with another length, in another place, and where something cannot be
//! written.

mod support;

use gradus_train::config::{ScheduleKind, TrainConfig};
use gradus_train::files::atomic;
use gradus_train::run::{Event, Observer, Stop};
use gradus_train::training::train;
use gradus_train::{Error, Result};
use std::fs;
use std::path::Path;
use support::{Folder, Watcher, tiny};

/// Someone who acts on events.
struct Acting<F: FnMut(&Event<'_>) -> bool> {
    watcher: Watcher,
    /// Called with each event; says whether to ask for a stop from then on.
    act: F,
    stops: bool,
}

impl<F: FnMut(&Event<'_>) -> bool> Observer for Acting<F> {
    fn event(&mut self, event: &Event<'_>) {
        self.watcher.event(event);
        self.stops |= (self.act)(event);
    }

    fn should_stop(&self) -> Stop {
        if self.stops { Stop::AfterStep } else { Stop::No }
    }
}

fn acting<F: FnMut(&Event<'_>) -> bool>(act: F) -> Acting<F> {
    Acting { watcher: Watcher::default(), act, stops: false }
}

/// Trains, up to a step if one is given: who has seen the step before it asks to stop after it.
fn run(config: &TrainConfig, resume: bool, up_to: Option<u64>) -> Watcher {
    let mut watcher = Watcher { stop_at: up_to.map(|step| step - 1), ..Watcher::default() };
    train(config, resume, &mut watcher).unwrap();
    watcher
}

fn rates(watcher: &Watcher) -> Vec<f32> {
    watcher.reports.iter().map(|report| report.learning_rate).collect()
}

fn weights(config: &TrainConfig) -> Vec<u8> {
    fs::read(config.out.join("model/model.safetensors")).unwrap()
}

#[test]
fn another_length_leaves_the_schedule_and_says_so() {
    let folder = Folder::new("length");
    for kind in [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd, ScheduleKind::Constant] {
        let of = |name: &str| TrainConfig { steps: Some(20), schedule: kind, ..tiny(folder.path(), name) };
        let told = |watcher: &Watcher, words: &str| {
            let expected = usize::from(kind != ScheduleKind::Constant);
            assert_eq!(watcher.notes.iter().filter(|note| note.contains(words)).count(), expected, "{kind:?}");
            assert_eq!(watcher.notes.len(), expected, "{:?}", watcher.notes);
        };
        let finished = of(&format!("{kind:?}-finished"));
        let whole = rates(&run(&finished, false, None));
        let lowest = finished.learning_rate * if kind == ScheduleKind::Constant { 1.0 } else { 0.1 };

        let longer = run(&TrainConfig { steps: Some(30), ..finished }, true, None);
        assert_eq!(rates(&longer), [lowest as f32; 10], "{kind:?}: a finished run stays at its last rate");
        told(&longer, "ended at step 20");

        let killed = of(&format!("{kind:?}-killed"));
        run(&killed, false, Some(12));
        let longer = run(&TrainConfig { steps: Some(30), ..killed }, true, None);
        assert_eq!(rates(&longer)[..8], whole[12..], "{kind:?}: a killed run falls as it would have");
        assert_eq!(rates(&longer)[8..], [lowest as f32; 10], "{kind:?}: and stays");
        told(&longer, "ends at step 20");

        let shorter = of(&format!("{kind:?}-shorter"));
        run(&shorter, false, Some(12));
        let ended = run(&TrainConfig { steps: Some(15), ..shorter }, true, None);
        assert_eq!(rates(&ended), whole[12..15], "{kind:?}: a shorter run ends on the way");
        told(&ended, "run ends at step 15");

        let stretched = of(&format!("{kind:?}-stretched"));
        run(&stretched, false, Some(12));
        let to_30 = TrainConfig { steps: Some(30), decay_steps: Some(30), ..stretched };
        let stretched = [rates(&run(&to_30, true, Some(21))), rates(&run(&to_30, true, None))].concat();
        assert_eq!(stretched[0], whole[12], "{kind:?}: a stretched one goes on from where it stands");
        assert!(stretched.windows(2).all(|pair| pair[1] <= pair[0]), "{kind:?}: and never rises: {stretched:?}");
        let falls = stretched[17] < 0.5 * stretched[0];
        assert_eq!(falls, kind != ScheduleKind::Constant, "{kind:?}: and goes on falling: {stretched:?}");
    }
}

/// Folders of older versions say nothing of the schedule's length, which was that of the run.
#[test]
fn a_run_of_an_older_version_keeps_its_schedule() {
    let folder = Folder::new("older");
    let config = TrainConfig { steps: Some(8), ..tiny(folder.path(), "run") };
    run(&config, false, None);
    let path = config.out.join("checkpoints/step-00000008/state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["progress"].as_object_mut().unwrap().remove("fall").unwrap();
    state["progress"]["configuration"].as_object_mut().unwrap().remove("decay-steps").unwrap();
    state["checksum"] = "00000000".into();
    let text = serde_json::to_string_pretty(&state).unwrap();
    let checksum = format!("{:08x}", crc32fast::hash(text.as_bytes()));
    fs::write(&path, text.replacen("00000000", &checksum, 1)).unwrap();
    let text = fs::read_to_string(config.out.join("config.toml")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("decay-steps")).collect::<Vec<_>>().join("\n");
    fs::write(config.out.join("config.toml"), lines).unwrap();
    let longer = run(&TrainConfig { steps: Some(11), ..config }, true, None);
    assert_eq!(rates(&longer), [1e-3; 3]);
    assert!(longer.notes[0].contains("ended at step 8"), "{:?}", longer.notes);
}

#[test]
fn a_run_is_all_there_is_in_its_folder() {
    let folder = Folder::new("moved");
    let base = tiny(folder.path(), "base");
    run(&base, false, Some(5));
    let text = folder.path().join("text");
    fs::create_dir(&text).unwrap();
    let of = |name: &str| TrainConfig {
        init: Some(base.out.join("model")),
        out: folder.path().join(name),
        steps: Some(12),
        ..tiny(&text, name)
    };
    let whole = of("whole");
    let started = run(&whole, false, None);
    assert!(started.saved[0].ends_with("checkpoints/step-00000000"), "the weights are there from the start");
    run(&of("part"), false, Some(5));

    let moved = folder.path().join("elsewhere/moved");
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    fs::rename(folder.path().join("part"), &moved).unwrap();
    // Another epsilon, and then nothing at all, where the model came from.
    let settings = base.out.join("model/config.json");
    let changed =
        fs::read_to_string(&settings).unwrap().replace("\"layer_norm_epsilon\": ", "\"layer_norm_epsilon\": 1");
    fs::write(&settings, changed).unwrap();
    let again = TrainConfig::read(&moved).unwrap();
    assert_eq!(again.out, moved);
    run(&again, true, Some(8));
    fs::remove_dir_all(&base.out).unwrap();
    fs::remove_dir_all(&text).unwrap();
    assert_eq!(run(&again, true, None).resumed_at, Some(8));
    assert!(weights(&whole) == weights(&again), "the weights have other bits");

    let text = fs::read_to_string(moved.join("config.toml")).unwrap();
    fs::write(moved.join("config.toml"), text.replace("norm-epsilon = 0.00001", "norm-epsilon = 0.1")).unwrap();
    let again = TrainConfig::read(&moved).unwrap();
    let error = train(&again, true, &mut Watcher::default()).unwrap_err().to_string();
    assert!(error.contains("another model") && error.contains("norm-epsilon"), "{error}");
}

#[test]
fn a_stop_within_a_validation_is_quick_and_loses_nothing() {
    let folder = Folder::new("validation");
    let whole = TrainConfig { steps: Some(20), eval_every: 10, ..tiny(folder.path(), "whole") };
    let mut seen = vec![];
    let mut observer = acting(|event| {
        if let Event::Validating { step: 10, done, total } = event {
            seen.push((*done, *total));
        }
        false
    });
    train(&whole, false, &mut observer).unwrap();
    let total = seen[0].1;
    assert!(total > 2);
    assert_eq!(seen, (0..total).map(|done| (done, total)).collect::<Vec<_>>());
    for at in [10, 20] {
        let config = TrainConfig { out: folder.path().join(format!("stopped-{at}")), ..whole.clone() };
        let mut observer = acting(|event| matches!(event, Event::Validating { step, done: 1, .. } if *step == at));
        let summary = train(&config, false, &mut observer).unwrap();
        assert!(summary.interrupted && summary.steps == at);
        assert!(observer.watcher.validations.iter().all(|(step, _)| *step < at));
        let rest = run(&config, true, None);
        assert_eq!((rest.resumed_at, rest.validations.len()), (Some(at), 1));
        assert!(weights(&config) == weights(&whole), "the weights have other bits");
    }
}

#[test]
fn a_stop_before_training_leaves_nothing_of_a_new_run() {
    let folder = Folder::new("early");
    let config = tiny(folder.path(), "run");
    let mut observer = Acting { stops: true, ..acting(|_| false) };
    let error = train(&config, false, &mut observer).unwrap_err();
    assert!(matches!(error, Error::Stopped(_)), "{error}");
    assert!(!config.out.exists());
    // While the text is read, and while it becomes tokens.
    for counted in [false, true] {
        let mut told = 0;
        let mut observer = acting(|event| {
            let stops = matches!(event, Event::Preparing { total, .. } if total.is_some() == counted);
            told += u32::from(stops);
            stops
        });
        assert!(matches!(train(&config, false, &mut observer), Err(Error::Stopped(_))));
        assert!(told == 1 && !config.out.exists());
    }
    run(&config, false, Some(3));
    let before = fs::read(config.out.join("config.toml")).unwrap();
    let mut observer = Acting { stops: true, ..acting(|_| false) };
    let longer = TrainConfig { steps: Some(50), ..config.clone() };
    assert!(matches!(train(&longer, true, &mut observer), Err(Error::Stopped(_))));
    assert_eq!(fs::read(config.out.join("config.toml")).unwrap(), before, "one that goes on is as it was");
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_told_and_tried_again() {
    let folder = Folder::new("blocked");
    let config = TrainConfig { steps: Some(12), save_every: 4, sample_every: 3, ..tiny(folder.path(), "run") };
    let (checkpoints, samples) = (config.out.join("checkpoints"), config.out.join("samples"));
    // A file where a folder should be stands for a disk that takes nothing.
    let mut observer = acting(|event| {
        match event {
            Event::Started { .. } => {
                fs::write(&checkpoints, "in the way").unwrap();
                fs::remove_dir(&samples).unwrap();
                fs::write(&samples, "in the way").unwrap();
            }
            Event::Step(report) if report.step == 6 => fs::remove_file(&checkpoints).unwrap(),
            _ => {}
        }
        false
    });
    train(&config, false, &mut observer).unwrap();
    let Watcher { warnings, saved, samples: texts, .. } = &observer.watcher;
    let saved: Vec<_> = saved.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(saved, ["step-00000006", "step-00000008", "step-00000012"]);
    let of = |words: &str| warnings.iter().filter(|warning| warning.contains(words)).count();
    assert_eq!((of("step 4: not saved"), of("step 5: not saved"), of("tried again after step 5")), (1, 1, 1));
    assert_eq!((of("samples"), warnings.len()), (1, 3), "{warnings:?}");
    assert_eq!(texts.len(), 4, "samples are told all the same");

    let failing = TrainConfig { out: folder.path().join("last"), ..config.clone() };
    let checkpoints = failing.out.join("checkpoints");
    let mut observer = acting(|event| {
        if let Event::Started { .. } = event {
            fs::write(&checkpoints, "in the way").unwrap();
        }
        false
    });
    let error = train(&failing, false, &mut observer).unwrap_err().to_string();
    assert!(error.contains("checkpoints") && error.contains("in the way"), "the last one must be saved: {error}");
}

#[test]
fn an_older_checkpoint_is_used_only_with_a_word_about_it() {
    let folder = Folder::new("fallback");
    let config = TrainConfig { steps: Some(12), save_every: 4, ..tiny(folder.path(), "run") };
    let whole = TrainConfig { out: folder.path().join("whole"), ..config.clone() };
    run(&whole, false, None);
    run(&config, false, None);
    let path = config.out.join("checkpoints/step-00000012/weights.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    // What a kill leaves while a sample is written goes too.
    let unfinished = config.out.join("samples/.gradus-unfinished-1-0");
    fs::create_dir(&unfinished).unwrap();
    let again = run(&TrainConfig { keep: 1, ..config.clone() }, true, None);
    assert_eq!(again.resumed_at, Some(8));
    assert!(!unfinished.exists());
    let words = ["step-00000012", "weights.safetensors is damaged", "going on from step 8"];
    assert!(words.iter().all(|word| again.warnings[0].contains(word)), "{:?}", again.warnings);
    assert_eq!(fs::read_dir(config.out.join("checkpoints")).unwrap().count(), 1);
    assert!(weights(&config) == weights(&whole), "the weights have other bits");
}

#[test]
fn divergence_advises_only_what_can_be_done() {
    let folder = Folder::new("divergence");
    let hopeless = |name: &str, save_every| TrainConfig {
        // Every step makes the weights a hundred million times as large.
        learning_rate: 1e4,
        weight_decay: 1e4,
        warmup_steps: 0,
        save_every,
        ..tiny(folder.path(), name)
    };
    let diverges = |config: &TrainConfig| match train(config, false, &mut Watcher::default()) {
        Err(Error::Diverged(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = diverges(&hopeless("unsaved", 0));
    assert!(
        text.contains("start again with a lower `settings.learning_rate`") && !text.contains("checkpoint"),
        "{text}"
    );
    let text = diverges(&hopeless("saved", 1));
    assert!(text.contains("resume from the checkpoint of step "), "{text}");
}

#[test]
fn figures_of_a_step_are_its_own() {
    let folder = Folder::new("figures");
    let config = TrainConfig { steps: Some(12), eval_every: 4, ..tiny(folder.path(), "run") };
    let watcher = run(&config, false, None);
    for report in &watcher.reports {
        let tokens = report.tokens_per_second * report.step_ms / 1e3;
        assert!((tokens - 64.0).abs() < 1e-6, "{report:?}");
        assert!(report.seconds_left.is_some_and(|left| left >= 0.0));
    }
}

#[test]
fn a_run_that_never_took_a_step_is_begun_anew_and_others_are_not_touched() -> Result<()> {
    let folder = Folder::new("anew");
    let config = TrainConfig { steps: Some(3), warmup_steps: 1, ..tiny(folder.path(), "run") };
    // As it is after a kill while the text is tokenized.
    atomic::make_folder(&config.out.join("data"))?;
    fs::write(config.out.join("config.toml"), config.to_toml()).unwrap();
    fs::write(config.out.join("tokenizer.json"), "of other options").unwrap();
    fs::write(config.out.join("data/train.tokens.partial"), "cut").unwrap();
    run(&config, false, None);
    assert!(config.out.join("model").exists() && !config.out.join("data/train.tokens.partial").exists());
    let error = |folder: &Path| {
        let config = TrainConfig { out: folder.to_path_buf(), ..config.clone() };
        train(&config, false, &mut Watcher::default()).unwrap_err().to_string()
    };
    assert!(error(&config.out).contains("holds a run already"));
    let theirs = folder.path().join("theirs");
    fs::create_dir_all(theirs.join("checkpoints")).unwrap();
    fs::write(theirs.join("config.toml"), "name = 'of another tool'\n").unwrap();
    assert!(error(&theirs).contains("holds other files"));
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 2);
    Ok(())
}
