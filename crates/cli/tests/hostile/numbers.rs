//! Every option that takes a number, with numbers that nobody means: each is taken or refused in one line, at once.

use crate::support::Place;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Long enough on any machine for a refusal or a tiny model; reached only by what never answers.
const PATIENCE: Duration = Duration::from_secs(60);
const SMALL: &str = "--width 16 --layers 1 --heads 2 --sequence 16 --batch 4 --tokenizer byte --threads 1";

/// Numbers at the edges of their types, what is no number, and what only looks like one.
const NUMBERS: [&str; 15] = [
    "0",
    "1",
    "-1",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "NaN",
    "inf",
    "1e308",
    "1e-320",
    "",
    "٣",
    "１２",
];

/// Options of a training run that take a number, and those whose values hold one.
const TRAINING: &str = "--vocab-size --width --layers --heads --kv-heads --feed-forward --sequence --context --norm-epsilon \
    --rope-theta --batch --batch=adaptive: --micro-batch --steps --epochs --time --learning-rate \
    --min-learning-rate-share --warmup-steps --decay-steps --decay-time --weight-decay --beta1 --beta2 --clip --clip=value: --dropout --seed \
    --threads --recompute=every: --recompute=selective: --validation --eval-every --sample-every --save-every --keep \
    --memory";

/// An option with its number, as one argument.
fn argument(option: &str, number: &str) -> String {
    let joint = if option.contains('=') { "" } else { "=" };
    format!("{option}{joint}{number}")
}

/// Runs a command and gives its status and what it said on standard error, if it answers in time.
fn answer(place: &Place, line: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
    command.args(line.split_whitespace()).args(arguments).current_dir(&place.0);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{line} {arguments:?} does not answer");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    (child.wait().unwrap().code(), told)
}

/// Asserts of every command line that it works, or is refused in one line.
fn each_answers(place: &Place, lines: &[(String, Vec<String>)]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((line, arguments)) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let arguments: Vec<&str> = arguments.iter().map(|argument| &argument[..]).collect();
                    let (status, told) = answer(place, line, &arguments);
                    match status {
                        Some(0) => {}
                        Some(1 | 2) => {
                            assert!(told.starts_with("error: "), "{line} {arguments:?}: {told}");
                            assert_eq!(told.lines().count(), 1, "{line} {arguments:?}: {told}");
                        }
                        _ => panic!("{line} {arguments:?} ends with {status:?}: {told}"),
                    }
                }
            });
        }
    });
}

fn options<'a>(names: &'a str, numbers: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    names.split_whitespace().flat_map(|option| numbers.iter().map(|number| argument(option, number)))
}

/// What is accepted is refused for its memory, before anything is trained: so every case ends at once.
#[test]
fn training_and_planning_answer_whatever_the_number() {
    let place = Place::new("numbers");
    let mut lines = vec![];
    for command in ["train", "plan"] {
        for option in options(TRAINING, &NUMBERS) {
            let tight = if option.starts_with("--memory") { vec![] } else { vec!["--memory=1MB".to_string()] };
            // A later option replaces an earlier one, and a run has one length.
            lines.push((format!("{command} {SMALL}"), [vec![option], tight].concat()));
        }
    }
    // A budget that is enough would train to the end of a usual run.
    lines.retain(|(line, arguments)| {
        line.starts_with("plan") || !arguments[0].starts_with("--memory=") || arguments[0].len() < 19
    });
    each_answers(&place, &lines);
    assert!(!place.0.join("runs").exists(), "nothing was trained");
}

#[test]
fn files_of_options_answer_whatever_the_number() {
    let place = Place::new("number-files");
    let mut lines = vec![];
    let numbers = ["9223372036854775807", "18446744073709551615", "-1", "nan", "inf", "1e308"];
    for (index, option) in options(&TRAINING.replace("=adaptive:", "").replace("=value:", ""), &numbers).enumerate() {
        let Some((key, number)) = option.strip_prefix("--").unwrap().split_once('=') else { unreachable!() };
        if key == "recompute" {
            continue;
        }
        let file = format!("{index}.toml");
        std::fs::write(place.0.join(&file), format!("{key} = {number}\n")).unwrap();
        let tight = if key == "memory" { vec![] } else { vec!["--memory=1MB".to_string()] };
        lines.push((format!("plan --config {file}"), tight));
    }
    each_answers(&place, &lines);
}

#[test]
fn a_resumed_run_answers_whatever_its_file_says() {
    let place = Place::new("number-resume");
    let most = "--keep 1000000 --save-every 1000000000000 --eval-every 1000000000000 --sample-every 1000000000000";
    let (status, told) = answer(&place, &format!("train {SMALL} --steps 1 {most} --quiet --out run"), &[]);
    assert_eq!(status, Some(0), "the largest numbers that are taken work: {told}");
    let path = place.0.join("run/config.toml");
    let whole = std::fs::read_to_string(&path).unwrap();
    for line in whole.lines() {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        if value.starts_with(['"', '[']) || ["true", "false"].contains(&value) {
            continue;
        }
        for number in ["9223372036854775807", "-1", "nan", "1e308"] {
            std::fs::write(&path, whole.replace(line, &format!("{key} = {number}"))).unwrap();
            each_answers(&place, &[("train --resume run --memory 1MB --steps 2".to_string(), vec![])]);
        }
    }
}

#[test]
fn other_commands_answer_whatever_the_number() {
    let place = Place::new("number-commands");
    let (status, told) = answer(&place, &format!("train {SMALL} --steps 1 --quiet --out run"), &[]);
    assert_eq!(status, Some(0), "{told}");
    std::fs::write(place.0.join("text.txt"), "Some words to measure, and then some more.\n".repeat(9)).unwrap();
    let mut lines = vec![];
    for (command, names) in [
        ("generate run --prompt a", "--max-tokens --temperature --top-k --top-p --seed --count --threads --memory"),
        ("eval run text.txt", "--sequence --batch --threads --memory"),
        ("tokenize text.txt", "--vocab-size"),
    ] {
        lines.extend(options(names, &NUMBERS).map(|option| (command.to_string(), vec![option])));
    }
    let refused: Vec<&str> = NUMBERS.into_iter().filter(|number| *number != "1").collect();
    lines.extend(options("--threads", &refused).map(|option| ("bench limits".to_string(), vec![option])));
    each_answers(&place, &lines);
}

#[test]
fn numbers_out_of_range_are_named_with_their_range() {
    let place = Place::new("number-ranges");
    for (line, part) in [
        ("train --batch 1152921504606846976 --micro-batch 1", "--batch 1152921504606846976 is out of range"),
        ("plan --batch 1152921504606846976 --micro-batch 1", "from 1 to 1048576"),
        ("train --steps 18446744073709551615", "--steps 18446744073709551615 is out of range"),
        ("train --keep 18446744073709551615", "--keep 18446744073709551615"),
        ("train --save-every 18446744073709551615", "--save-every 18446744073709551615"),
        ("train --time 1h --warmup-steps 18446744073709551615", "--warmup-steps 18446744073709551615"),
        (
            "train --threads 9223372036854775807",
            "--threads 9223372036854775807 is out of range; give a number from 1 to 1024",
        ),
        ("train --width 9223372036854775807", "width is 9223372036854775807, which no model can have"),
        ("train --batch 4 --micro-batch 5", "--batch 4 is not divisible by --micro-batch 5"),
        ("train --epochs 1e308", "--epochs"),
        ("plan --width 16777216 --layers 4096 --heads 1 --feed-forward 16777216", "beyond any machine"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let told = place.refused(&arguments);
        assert!(told.contains(part), "{line}: {told}");
    }
}
