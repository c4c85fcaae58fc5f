use super::*;
use crate::clipping::NormStatistics;
use crate::config::{Clip, ScheduleKind};
use crate::files::testing::{Folder, Given};
use crate::models::ModelConfig;
use crate::schedule::{Decay, Length};
use crate::watch::{Monitor, Observation};
use gradus_engine::backend::Cpu;
use gradus_engine::{Array, DType, Routine, Shape, TensorType, Trace};
use std::borrow::Cow;

fn entry(name: &str, shape: impl Into<Shape>) -> Entry {
    Entry { name: name.to_string(), ty: TensorType::new(DType::F32, shape) }
}

fn contents() -> Contents {
    Contents { weights: vec![entry("weight", [3, 5])], states: vec![entry("moment", [3, 5]), entry("count", [])] }
}

/// Statistics whose decimal forms have as many digits as there can be.
fn norms(step: u64) -> NormStatistics {
    let mut norms = NormStatistics::default();
    (0..step % 97).for_each(|index| norms.observe(1.0 / (index as f32 + 3.0), Clip::None));
    norms
}

/// What is known after so many steps.
fn monitor(steps: u64) -> Monitor {
    let mut monitor = Monitor::default();
    for step in 1..=steps {
        let (loss, learning_rate) = (1.0 / step as f32, 0.1 / 3.0);
        monitor.see(&Observation { step, loss, learning_rate, validation_loss: Some(loss), ..Observation::default() });
    }
    monitor
}

fn progress(step: u64) -> Progress {
    Progress {
        step,
        tokens: step * 768,
        data_position: step * 12,
        data_fingerprint: u64::MAX - 3,
        seed: 7,
        seconds: 0.1 + 0.2,
        skipped_in_a_row: 0,
        clipping: norms(step),
        monitor: monitor(step),
        decay: Some(Decay::new(ScheduleKind::Cosine, Length::Steps(100), 1.0 / 3.0, 10)),
        model: Some(ModelConfig::gpt2(97, 64, 2, 4, 40)),
        configuration: serde_json::json!({ "learning-rate": 0.001 }),
    }
}

/// Bytes that differ from step to step and from tensor to tensor.
fn tensors_at(step: u64) -> Given {
    let bytes = |entry: &Entry| {
        let byte = |index: usize| (index as u64 * 31 + step + entry.name.len() as u64) as u8;
        (0..entry.ty.bytes()).map(byte).collect()
    };
    let all = contents();
    all.weights.iter().chain(&all.states).map(|entry| (entry.name.clone(), bytes(entry))).collect()
}

/// Tensors that cannot be written.
struct Failing;

impl Tensors for Failing {
    fn bytes(&self, _name: &str) -> Result<Cow<'_, [u8]>> {
        Err(atomic::failed("write", Path::new("weights"))(std::io::Error::from(ErrorKind::StorageFull)))
    }
}

fn no_settings(_folder: &Path) -> Result<()> {
    Ok(())
}

fn save(store: &mut Store, step: u64, keep: usize) -> PathBuf {
    let folder = store.save(&contents(), &tensors_at(step), &progress(step), &no_settings).unwrap();
    store.prune(step, keep).unwrap();
    folder
}

fn steps(store: &Store) -> Vec<u64> {
    listed(&store.folder).unwrap().into_iter().map(|(step, _)| step).collect()
}

#[track_caller]
fn is_of_step(found: &Found, step: u64) {
    assert_eq!(found.progress, progress(step));
    let mut tensors = Given::new();
    found.restore(&contents(), &mut tensors).unwrap();
    assert_eq!(tensors, tensors_at(step));
    assert_eq!(tensors.len(), 3);
}

#[test]
fn the_newest_checkpoint_comes_back_bit_for_bit_and_old_ones_go() {
    let folder = Folder::new("checkpoint-newest");
    let mut store = Store::open(folder.path()).unwrap();
    assert!(store.newest_whole().unwrap().is_none());
    for step in [9, 10, 100] {
        let path = save(&mut store, step, 2);
        assert!(path.ends_with(format!("checkpoints/step-{step:08}")));
        is_of_step(&store.newest_whole().unwrap().unwrap(), step);
    }
    assert_eq!(steps(&store), [100, 10]);
    // Another time at the same step takes the former's place.
    save(&mut store, 100, 2);
    is_of_step(&newest_whole(folder.path()).unwrap().unwrap(), 100);
}

#[test]
fn a_torn_checkpoint_is_skipped_with_the_reason() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("weights.safetensors has 40 bytes instead of", |path| {
            File::options().write(true).open(path.join(WEIGHTS)).unwrap().set_len(40).unwrap()
        }),
        ("optimizer.safetensors is damaged", |path| flip(&path.join(STATES), -1)),
        ("weights.safetensors is damaged", |path| flip(&path.join(WEIGHTS), 12)),
        ("optimizer.safetensors: ", |path| fs::remove_file(path.join(STATES)).unwrap()),
        ("state.json: ", |path| fs::remove_file(path.join(RECORD)).unwrap()),
        ("state.json is damaged", |path| {
            let text = fs::read_to_string(path.join(RECORD)).unwrap();
            fs::write(path.join(RECORD), text.replace("\"tokens\": 23040", "\"tokens\": 23041")).unwrap()
        }),
        ("state.json is damaged", |path| fs::write(path.join(RECORD), "").unwrap()),
    ];
    for (index, (reason, damage)) in damages.into_iter().enumerate() {
        let folder = Folder::new(&format!("checkpoint-torn-{index}"));
        let mut store = Store::open(folder.path()).unwrap();
        save(&mut store, 20, 3);
        damage(&save(&mut store, 30, 3));
        let found = store.newest_whole().unwrap().unwrap();
        is_of_step(&found, 20);
        assert_eq!(found.skipped.len(), 1);
        assert!(found.skipped[0].reason.contains(reason), "{:?} should say {reason:?}", found.skipped[0].reason);
        // The run goes on from 20 and comes to 30 again.
        save(&mut store, 30, 3);
        is_of_step(&store.newest_whole().unwrap().unwrap(), 30);
    }
}

/// Flips a bit of a file, counted from its end if the place is negative.
fn flip(path: &Path, place: isize) {
    let mut bytes = fs::read(path).unwrap();
    let length = bytes.len() as isize;
    bytes[((place + length) % length) as usize] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn torn_ones_do_not_count_among_those_that_are_kept() {
    let folder = Folder::new("checkpoint-kept");
    let mut store = Store::open(folder.path()).unwrap();
    save(&mut store, 1, 2);
    fs::remove_file(save(&mut store, 2, 2).join(WEIGHTS)).unwrap();
    save(&mut store, 3, 2);
    assert_eq!(steps(&store), [3, 2, 1]);
    save(&mut store, 4, 2);
    assert_eq!(steps(&store), [4, 3]);
}

/// The case that lost everything: a damaged newest checkpoint of the right size, and only one to be kept.
#[test]
fn a_checkpoint_just_saved_stays_and_a_damaged_one_of_the_right_size_does_not_count() {
    let folder = Folder::new("checkpoint-damaged");
    let mut store = Store::open(folder.path()).unwrap();
    save(&mut store, 10, 2);
    flip(&save(&mut store, 40, 2).join(WEIGHTS), -1);
    drop(store);
    let mut store = Store::open(folder.path()).unwrap();
    is_of_step(&store.newest_whole().unwrap().unwrap(), 10);
    save(&mut store, 30, 1);
    assert_eq!(steps(&store), [40, 30], "a damaged one that is newer is left");
    is_of_step(&store.newest_whole().unwrap().unwrap(), 30);
    save(&mut store, 50, 2);
    assert_eq!(steps(&store), [50, 40, 30], "it does not count");
    save(&mut store, 60, 2);
    assert_eq!(steps(&store), [60, 50], "it goes with those that are older than what is kept");
}

#[test]
fn folders_that_only_look_like_checkpoints_are_left_alone() {
    let folder = Folder::new("checkpoint-alike");
    let mut store = Store::open(folder.path()).unwrap();
    save(&mut store, 5, 1);
    for name in ["step-5", "step-00000003-copy", "best"] {
        fs::create_dir(store.folder.join(name)).unwrap();
    }
    save(&mut store, 9, 1);
    let mut names: Vec<_> = fs::read_dir(&store.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["best", "step-00000003-copy", "step-00000009", "step-5"]);
}

#[test]
fn none_that_is_whole_is_an_error_and_not_a_new_start() {
    let folder = Folder::new("checkpoint-none");
    let mut store = Store::open(folder.path()).unwrap();
    flip(&save(&mut store, 5, 1).join(WEIGHTS), -1);
    let error = store.newest_whole().unwrap_err().to_string();
    for word in ["step-00000005", "weights.safetensors is damaged", "start a new run"] {
        assert!(error.contains(word), "{error:?} should say {word:?}");
    }
}

#[test]
fn a_checkpoint_of_a_newer_version_is_known_for_what_it_is() {
    let folder = Folder::new("checkpoint-version");
    let mut store = Store::open(folder.path()).unwrap();
    let path = save(&mut store, 5, 1).join(RECORD);
    let text = fs::read_to_string(&path).unwrap();
    let stated = serde_json::from_str::<serde_json::Value>(&text).unwrap()["checksum"].as_str().unwrap().to_string();
    let newer = text.replacen(&stated, "00000000", 1).replace("\"format\": 1", "\"format\": 2");
    let sum = format!("{:08x}", crc32fast::hash(newer.as_bytes()));
    fs::write(&path, newer.replacen("00000000", &sum, 1)).unwrap();
    let error = store.newest_whole().unwrap_err().to_string();
    assert!(error.contains("format 2") && error.contains("knows 1"), "{error}");
}

#[test]
fn what_a_killed_writer_left_is_cleared_on_start() {
    let folder = Folder::new("checkpoint-killed");
    let mut store = Store::open(folder.path()).unwrap();
    let whole = save(&mut store, 5, 2);
    drop(store);
    let aside = |parent: &str| {
        let aside = folder.path().join(parent).join(".gradus-unfinished-4242-0");
        fs::create_dir_all(aside.join("new/step-00000006")).unwrap();
        fs::copy(whole.join(WEIGHTS), aside.join("new/step-00000006").join(WEIGHTS)).unwrap();
        fs::write(aside.join("MARK"), "").unwrap();
        aside
    };
    let (unfinished, model) = (aside("checkpoints"), aside("."));
    // Killed between the two renames that replace a folder.
    fs::create_dir(unfinished.join("former")).unwrap();
    fs::rename(&whole, unfinished.join("former/step-00000005")).unwrap();
    // A copy that someone made is theirs.
    fs::create_dir(folder.path().join("model.old-1")).unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    assert!(!unfinished.exists() && !model.exists() && folder.path().join("model.old-1").exists());
    is_of_step(&store.newest_whole().unwrap().unwrap(), 5);
}

#[test]
fn one_process_writes_at_a_time_and_others_may_read() {
    let folder = Folder::new("checkpoint-lock");
    let mut store = Store::open(folder.path()).unwrap();
    save(&mut store, 5, 2);
    let error = Store::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("another run is training") && error.contains("choose another folder"), "{error}");
    is_of_step(&newest_whole(folder.path()).unwrap().unwrap(), 5);
    drop(store);
    Store::open(folder.path()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_and_the_former_checkpoint_stays() {
    let folder = Folder::new("checkpoint-refused");
    let file = folder.path().join("file");
    fs::write(&file, "text").unwrap();
    let error = Store::open(&file).err().unwrap().to_string();
    assert!(error.contains("cannot make") && error.contains("in the way") && !error.contains('\n'), "{error}");

    let run = folder.path().join("run");
    let mut store = Store::open(&run).unwrap();
    save(&mut store, 5, 1);
    let error = store.save(&contents(), &Failing, &progress(6), &no_settings).unwrap_err().to_string();
    assert!(error.contains("free some space"), "{error}");
    assert_eq!(fs::read_dir(run.join("checkpoints")).unwrap().count(), 1);
    is_of_step(&store.newest_whole().unwrap().unwrap(), 5);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_an_error_and_the_former_checkpoint_stays() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("checkpoint-read-only");
    let mut store = Store::open(folder.path()).unwrap();
    save(&mut store, 5, 1);
    let checkpoints = store.folder.clone();
    let allow = |mode: u32| fs::set_permissions(&checkpoints, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    // Some users may write anywhere.
    if File::create(store.folder.join("probe")).is_err() {
        let error = store.save(&contents(), &tensors_at(6), &progress(6), &no_settings).unwrap_err().to_string();
        assert!(error.contains("step-00000006") && error.contains("you may write to"), "{error}");
        let error = atomic::check_writable(&store.folder).unwrap_err().to_string();
        assert!(error.contains("cannot write to") && error.contains("you may write to"), "{error}");
    }
    allow(0o755);
    is_of_step(&store.newest_whole().unwrap().unwrap(), 5);
}

#[test]
fn a_program_goes_on_from_what_it_saved() {
    let program = || {
        let trace = Trace::new();
        let weight = trace.state("weight", Array::new([2], &[1.5f32, -2.0]).unwrap());
        let count = trace.zero_state_with_role("count", Role::Optimizer, DType::F32, []);
        let sum = trace.zero_state_with_role("sum", Role::Gradient, DType::F32, [2]);
        let step = Routine::new("step")
            .assign(&weight, &(&weight * 1.1))
            .assign(&count, &(&count + 1.0))
            .assign(&sum, &(&sum + &weight));
        trace.compile(&Cpu::new(1).unwrap(), &[step]).unwrap()
    };
    let folder = Folder::new("checkpoint-program");
    let mut store = Store::open(folder.path()).unwrap();
    let mut first = program();
    first.run("step").unwrap();
    let contents = Contents::of_program(&first);
    assert_eq!(contents, Contents { weights: vec![entry("weight", [2])], states: vec![entry("count", [])] });
    store.save(&contents, &first, &progress(1), &no_settings).unwrap();

    let mut second = program();
    store.newest_whole().unwrap().unwrap().restore(&contents, &mut second).unwrap();
    for name in ["weight", "count"] {
        assert_eq!(second.bytes(name).unwrap(), first.bytes(name).unwrap(), "{name}");
    }
    let other = Contents { weights: vec![entry("weight", [3])], ..contents };
    let error = store.newest_whole().unwrap().unwrap().restore(&other, &mut second).unwrap_err().to_string();
    assert!(error.contains("another model") && error.contains("f32[2] here and f32[3]"), "{error}");
}
