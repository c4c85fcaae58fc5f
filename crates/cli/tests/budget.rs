//! Any budget is kept or refused, whatever the text, the tokenizer and the command; and what a refusal says is enough
//! is enough.
#![cfg(target_os = "linux")]

#[path = "support/measured.rs"]
mod measured;

use measured::Ended;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a process has resident before it can refuse anything; smaller budgets are refused in no more than this. Up to 16.1 MB
/// were seen: most of it is the program's own code, of which the system maps more or less around each page that is used.
const LEAST: u64 = 17_000_000;
/// How much of a figure must have been used: otherwise a smaller one would have done.
const USED: f64 = 0.85;

/// Runs the command in a folder within a budget.
fn run(folder: &Path, arguments: &str, budget: u64) -> Ended {
    measured::run(folder, &format!("{arguments} --memory {budget}"), Stdio::null())
}

/// Gives a command more and more memory, from too little on, until it is done: it keeps each budget, and leaves nothing
/// behind where it is refused; a figure that it names is enough and is used. Gives the budget that was enough.
fn is_kept(folder: &Path, arguments: &str) -> u64 {
    let written = arguments.split_whitespace().skip_while(|word| *word != "--out").nth(1).map(|out| folder.join(out));
    let (mut budget, mut named) = (LEAST, false);
    for _ in 0..12 {
        let Ended { code, peak, said } = run(folder, arguments, budget);
        let told = format!("{arguments} within {budget}: {peak} bytes, {said}");
        assert!(peak <= budget.max(LEAST), "{told}");
        if code == 0 {
            assert!(!named || peak as f64 >= USED * budget as f64, "{told}");
            return budget;
        }
        assert!(!named, "a figure that was named is refused: {told}");
        assert!(code == 2 && said.starts_with("error: ") && said.lines().count() == 1, "{told}");
        assert!(said.contains("is not enough"), "{told}");
        assert!(written.as_ref().is_none_or(|written| !written.exists()), "{told}");
        let figure = said.split("give --memory ").nth(1).and_then(|rest| rest.split("MB").next()?.parse::<f64>().ok());
        named = figure.is_some();
        budget = figure.map_or(budget + budget / 8, |megabytes| (megabytes * 1e6) as u64);
    }
    panic!("{arguments}: no budget is enough");
}

/// A folder with texts, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-budget-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    fn write(&self, name: &str, fill: impl FnOnce(&mut dyn Write)) {
        let mut file = BufWriter::new(File::create(self.0.join(name)).unwrap());
        fill(&mut file);
        file.flush().unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// So many words, of which there are ever more, each followed by what `after` gives for its number.
fn words(out: &mut dyn Write, count: u64, after: impl Fn(u64) -> &'static str) {
    let mut state = 1u64;
    for number in 0..count {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let share = (state >> 33) as f64 / (1u64 << 31) as f64;
        write!(out, "w{:x}{}", (share.powi(6) * 100_000.0) as u64, after(number)).unwrap();
    }
}

fn lines(number: u64) -> &'static str {
    if number.is_multiple_of(11) { "\n" } else { " " }
}

/// The shapes of text, by the name of their file.
fn write_shape(place: &Place, name: &str) {
    place.write(name, |out| match name {
        "lines.txt" => words(out, 300_000, lines),
        "one-line.txt" => words(out, 600_000, |_| " "),
        "no-spaces.txt" => words(out, 600_000, |_| "\u{4e2d}"),
        "one-letter.txt" => (0..40_000).for_each(|_| out.write_all(&[b'a'; 100]).unwrap()),
        "one-record.jsonl" => {
            write!(out, "{{\"text\": \"").unwrap();
            words(out, 600_000, lines_in_json);
            writeln!(out, "\"}}").unwrap();
        }
        "empty-records.jsonl" => {
            (0..300_000).for_each(|_| writeln!(out, "{{\"text\": \"\"}}").unwrap());
            writeln!(out, "{{\"text\": \"{}\"}}", "some text ".repeat(200)).unwrap();
        }
        "text.txt.gz" => {
            let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
            words(&mut packed, 300_000, lines);
            packed.finish().unwrap();
        }
        "text.txt.zst" => {
            // A frame of raw blocks: packing it would take more memory than reading it.
            let frame = |block: &[u8], out: &mut dyn Write| {
                out.write_all(&[0x28, 0xb5, 0x2f, 0xfd, 0x60]).unwrap();
                out.write_all(&(block.len() as u16 - 256).to_le_bytes()).unwrap();
                out.write_all(&((block.len() as u32) << 3 | 1).to_le_bytes()[..3]).unwrap();
                out.write_all(block).unwrap();
            };
            (0..60).for_each(|_| {
                let mut block = vec![];
                words(&mut block, 8_000, lines);
                frame(&block[..block.len().min(40_000)], out);
            });
        }
        _ => unreachable!("no shape is called {name}"),
    });
}

fn lines_in_json(number: u64) -> &'static str {
    if number.is_multiple_of(11) { "\\n" } else { " " }
}

/// One cell of several megabytes, in a table.
fn write_table(place: &Place, name: &str) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    let schema = parquet::schema::parser::parse_message_type("message table { REQUIRED BINARY text (UTF8); }").unwrap();
    let file = File::create(place.0.join(name)).unwrap();
    let mut writer = parquet::file::writer::SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let mut text = vec![];
    words(&mut text, 100_000, lines);
    column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(text)], None, None).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.close().unwrap();
}

const TRAIN: &str =
    "--preset nano --batch 4 --steps 2 --eval-every 1 --sample-every 1 --save-every 1 --quiet --threads 2";

/// A run on a text, with a tokenizer.
fn trains(place: &Place, text: &str, tokenizer: &str) -> u64 {
    is_kept(&place.0, &format!("train {text} --out run-{text}-{tokenizer} --tokenizer {tokenizer} {TRAIN}"))
}

const SHAPES: [&str; 8] = [
    "lines.txt",
    "one-line.txt",
    "no-spaces.txt",
    "one-letter.txt",
    "one-record.jsonl",
    "empty-records.jsonl",
    "text.txt.gz",
    "text.txt.zst",
];

#[test]
fn every_shape_of_text_is_trained_on_within_what_is_said_to_be_enough() {
    let place = Place::new("shapes");
    for (text, tokenizer) in SHAPES.into_iter().zip(["byte", "bpe", "char", "bpe"].into_iter().cycle()) {
        write_shape(&place, text);
        trains(&place, text, tokenizer);
        fs::remove_file(place.0.join(text)).unwrap();
    }
}

#[test]
fn every_command_keeps_its_budget() {
    let place = Place::new("commands");
    write_shape(&place, "lines.txt");
    trains(&place, "lines.txt", "bpe");
    write_table(&place, "table.parquet");
    trains(&place, "table.parquet", "run-lines.txt-bpe/tokenizer.json");
    for text in ["lines.txt", "table.parquet"] {
        is_kept(&place.0, &format!("eval run-lines.txt-bpe/model {text}"));
    }
    is_kept(&place.0, "generate run-lines.txt-bpe/model --prompt w --max-tokens 40");
    is_kept(&place.0, "generate run-lines.txt-bpe/model --prompt w --max-tokens 40 --count 8");
}

/// Asks one port for all there is, by more connections than are answered, until it is dropped.
struct Crowd {
    asks: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Crowd {
    fn at(port: u16) -> Crowd {
        let asks = Arc::new(AtomicBool::new(true));
        let asking = asks.clone();
        let thread = std::thread::spawn(move || {
            let mut answered = 0;
            while asking.load(Relaxed) {
                let connections: Vec<TcpStream> =
                    (0..40).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
                for (mut stream, target) in
                    connections.iter().zip(["runs/0/history", "runs", "", "runs/0/samples"].iter().cycle())
                {
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
                    let _ = write!(stream, "GET /{target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                }
                let mut start = [0; 12];
                answered +=
                    connections.iter().filter(|stream| (&**stream).read_exact(&mut start).is_ok()).count() as u64;
                std::thread::sleep(Duration::from_millis(20));
            }
            answered
        });
        Crowd { asks, thread: Some(thread) }
    }

    /// How often it was answered.
    fn end(mut self) -> u64 {
        self.asks.store(false, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
fn a_page_that_many_read_is_part_of_the_budget() {
    let place = Place::new("page");
    write_shape(&place, "lines.txt");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let crowd = Crowd::at(port);
    let options =
        "--preset nano --batch 4 --steps 60 --eval-every 20 --sample-every 20 --save-every 20 --quiet --threads 2";
    is_kept(&place.0, &format!("train lines.txt --out run --tokenizer byte --dashboard {port} {options}"));
    assert!(crowd.end() > 0, "the page was read");
}

#[test]
fn what_cannot_be_predicted_is_ended_before_the_budget_is_passed() {
    let place = Place::new("hostile");
    write_shape(&place, "lines.txt");
    place.write("tokenizer.json", |out| {
        write!(out, "{{\"version\": \"1.0\", \"model\": {{\"type\": \"BPE\", \"merges\": [], \"vocab\": {{\"a\": 0")
            .unwrap();
        (1..200_000).for_each(|number| write!(out, ", \"token {number}\": {number}").unwrap());
        write!(out, "}}}}}}").unwrap();
    });
    let ended = run(&place.0, &format!("train lines.txt --out run --tokenizer tokenizer.json {TRAIN}"), 30_000_000);
    let Ended { code, peak, said } = ended;
    assert!(code == 2 && peak <= 30_000_000, "{peak} bytes: {said}");
    assert!(said.starts_with("error: --memory 30.0 MB is not enough") && said.lines().count() == 1, "{said}");
    assert!(!place.0.join("run").exists());
}

#[test]
fn the_closing_peak_is_that_of_the_process() {
    let place = Place::new("account");
    write_shape(&place, "lines.txt");
    // Learning the vocabulary takes more than training does.
    let arguments = format!("train lines.txt --out run --tokenizer bpe {TRAIN}");
    let Ended { code, peak, said } = run(&place.0, &arguments, 60_000_000);
    assert_eq!(code, 0, "{said}");
    let metrics = fs::read_to_string(place.0.join("run/metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    let told = last["account"]["peak"].as_u64().unwrap();
    // The sample and the checkpoint come after the last line.
    assert!(told <= peak + 500_000 && told + 2_000_000 > peak, "{told} told, {peak} measured");
}

#[test]
fn without_a_budget_the_limit_of_the_group_is_one() {
    // Only who may make a group can see this; groups of version 2 need a parent that has no processes.
    let group = PathBuf::from(format!("/sys/fs/cgroup/memory/gradus-budget-{}", std::process::id()));
    if fs::create_dir(&group).is_err() {
        return;
    }
    let limited = fs::write(group.join("memory.limit_in_bytes"), "40000000");
    let place = Place::new("group");
    write_shape(&place, "lines.txt");
    let ran = limited.map(|()| {
        let train = |out: &str, preset: &str| {
            let command = format!(
                "echo $$ > {}/cgroup.procs && exec {} train lines.txt --out {out} --tokenizer byte --preset {preset} \
                 --batch 16 --steps 1 --quiet --threads 2",
                group.display(),
                env!("CARGO_BIN_EXE_gradus")
            );
            Command::new("sh").current_dir(&place.0).args(["-c", &command]).output().unwrap()
        };
        (train("fits", "tiny"), train("large", "small"))
    });
    fs::remove_dir(&group).unwrap();
    let Ok((fits, large)) = ran else { return };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(fits.status.success(), "{}", said(&fits));
    let refusal = said(&large);
    assert!(large.status.code() == Some(2) && refusal.contains("MB at least"), "{refusal}");
}

/// All shapes with all tokenizers; minutes.
#[test]
#[ignore = "takes minutes; the others are a sample of it"]
fn every_shape_with_every_tokenizer() {
    let place = Place::new("all");
    for text in SHAPES {
        write_shape(&place, text);
        for tokenizer in ["byte", "bpe", "char"] {
            let enough = trains(&place, text, tokenizer);
            for share in [1.02, 1.1, 1.3, 2.0] {
                let budget = (share * enough as f64) as u64;
                let arguments =
                    format!("train {text} --out more-{text}-{tokenizer}-{share} --tokenizer {tokenizer} {TRAIN}");
                let Ended { code, peak, said } = run(&place.0, &arguments, budget);
                assert!(code == 0 && peak <= budget, "{arguments} within {budget}: {peak} bytes, {said}");
            }
        }
        let model = format!("run-{text}-byte/model");
        is_kept(&place.0, &format!("eval {model} {text}"));
        is_kept(&place.0, &format!("eval {model} {text} --batch 1"));
        is_kept(&place.0, &format!("generate {model} --prompt w --max-tokens 80 --count 3"));
    }
}
