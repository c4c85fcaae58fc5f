//! Corpora whose records are large or odd: a budget is kept while they are read, learned from and encoded.
#![cfg(target_os = "linux")]

#[path = "support/measured.rs"]
mod measured;

use measured::Ended;
use parquet::basic::Compression;
use parquet::data_type::ByteArrayType;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder to run in, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-records-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    fn write(&self, name: &str, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let mut file = BufWriter::new(File::create(self.0.join(name)).unwrap());
        fill(&mut file).and_then(|()| file.flush()).unwrap();
    }

    fn run(&self, arguments: &str, input: Option<&Path>) -> Ended {
        measured::run(&self.0, arguments, input.map_or(Stdio::null(), |path| File::open(path).unwrap().into()))
    }

    /// Runs a command that must succeed within so many megabytes.
    #[track_caller]
    fn keeps(&self, arguments: &str, megabytes: u64) {
        let Ended { code, peak, said } = self.run(&format!("{arguments} --memory {megabytes}MB"), None);
        assert_eq!(code, 0, "{arguments}: {said}");
        assert!(peak <= 1_000_000 * megabytes, "{arguments}: {peak} bytes where {megabytes} MB are stated");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TINY: &str = "--width 16 --layers 1 --heads 2 --sequence 32 --batch 4 --steps 2 --quiet --threads 2";
const TEXT_BYTES: usize = 10_000_000;
const TABLE_BYTES: usize = 32_000_000;

fn words(out: &mut dyn Write, bytes: usize) -> std::io::Result<()> {
    const WORDS: &[u8] = b"A miller had a daughter and a cat, and all of them were hungry. ";
    (0..bytes / WORDS.len()).try_for_each(|_| out.write_all(WORDS))
}

#[test]
fn one_large_record_is_read_in_pieces() {
    let place = Place::new("json");
    let record = |text: usize, notes: usize| {
        move |out: &mut dyn Write| {
            out.write_all(b"{\"id\": 1, \"text\": \"")?;
            words(out, text)?;
            out.write_all(b"\", \"notes\": \"")?;
            words(out, notes)?;
            out.write_all(b"\"}\n")
        }
    };
    place.write("one.jsonl", record(TEXT_BYTES, TEXT_BYTES));
    place.write("notes.jsonl", record(100_000, 2 * TEXT_BYTES));
    place.keeps(&format!("train one.jsonl --out byte --tokenizer byte {TINY}"), 40);
    assert!(fs::metadata(place.0.join("byte/data/train.tokens")).unwrap().len() > 2 * 8_500_000);
    place.keeps("eval byte/model notes.jsonl --threads 2", 40);
    place.keeps(&format!("train one.jsonl --out bpe --vocab-size 300 {TINY}"), 45);
}

/// Writes a table of one large value, in a process of its own: what that holds does not count.
#[test]
#[ignore = "called by another test"]
fn write_table() {
    let Ok(path) = std::env::var("GRADUS_TABLE") else { return };
    let schema = parse_message_type("message schema { required binary text (UTF8); }").unwrap();
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let mut text = vec![];
    words(&mut text, TABLE_BYTES).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.build().into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&[text.into()], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn one_large_cell_is_read_within_the_budget_or_refused() {
    let place = Place::new("parquet");
    let mut writer = Command::new(std::env::current_exe().unwrap());
    writer.args(["--ignored", "--exact", "write_table"]).env("GRADUS_TABLE", place.0.join("one.parquet"));
    assert!(writer.stdout(Stdio::null()).status().unwrap().success());
    let train = format!("train one.parquet --tokenizer byte {TINY}");
    let Ended { code, peak, said } = place.run(&format!("{train} --out refused --memory 40MB"), None);
    assert!(code == 2 && said.contains("--memory") && said.lines().count() == 1, "{said}");
    assert!(peak <= 40_000_000, "{peak} bytes until it was refused");
    assert!(!place.0.join("refused").exists());
    place.keeps(&format!("{train} --out kept"), 90);
    assert!(fs::metadata(place.0.join("kept/data/train.tokens")).unwrap().len() > 2 * 28_000_000);
}

#[test]
fn text_without_spaces_is_learned_and_encoded() {
    let place = Place::new("unspaced");
    place.write("letter.txt", |out| (0..TEXT_BYTES / 1000).try_for_each(|_| out.write_all(&[b'a'; 1000])));
    place.keeps(&format!("train letter.txt --out letter --vocab-size 300 {TINY}"), 40);
    place.write("chinese.txt", |out| {
        let mut state = 1u64;
        for _ in 0..TEXT_BYTES / 3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 33) as f64 / (1u64 << 31) as f64;
            let code = if state.is_multiple_of(17) { 0x3002 } else { 0x4e00 + (number.powi(3) * 6000.0) as u32 };
            write!(out, "{}", char::from_u32(code).unwrap())?;
        }
        Ok(())
    });
    let train = format!("train chinese.txt --vocab-size 1000 --memory 40MB {TINY}").replace("--quiet", "");
    for run in ["one", "two"] {
        let Ended { code, peak, said } = place.run(&format!("{train} --out {run}"), None);
        assert!(code == 0 && said.contains("of the rarest words, which did not fit"), "{said}");
        assert!(peak <= 40_000_000, "{peak} bytes");
    }
    let tokenizer = |run: &str| fs::read(place.0.join(run).join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer("one"), tokenizer("two"), "the same budget gives the same tokens");
}

#[test]
fn hostile_files_are_refused_within_the_budget() {
    let place = Place::new("hostile");
    place.write("text.txt", |out| words(out, 100_000));
    place.write("tokenizer.json", |out| {
        out.write_all(
            br#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 2147483648}, "merges": []}}"#,
        )
    });
    let Ended { code, peak, said } =
        place.run(&format!("train text.txt --out run --tokenizer tokenizer.json --memory 60MB {TINY}"), None);
    assert!(code == 2 && said.contains("an id of 2147483648 where it has 2 tokens"), "{said}");
    assert!(peak < 60_000_000 && said.lines().count() == 1, "{peak} bytes");
    place.write("tokenizer.json", |out| (0..70).try_for_each(|_| out.write_all(&[b' '; 1 << 20])));
    let Ended { code, said, .. } =
        place.run(&format!("train text.txt --out run --tokenizer tokenizer.json {TINY}"), None);
    assert!(code == 2 && said.contains("it is over 64 MiB"), "{said}");
}

#[test]
fn a_corpus_comes_through_standard_input() {
    let place = Place::new("input");
    place.write("text.txt", |out| words(out, 300_000));
    place
        .write("text.jsonl", |out| (0..3000).try_for_each(|number| writeln!(out, "{{\"body\": \"record {number}\"}}")));
    let path = |name: &str| place.0.join(name);
    for (input, run) in [("text.txt", "a"), ("text.jsonl", "b")] {
        let piped = place.run(&format!("train - --out {run}-piped --vocab-size 300 {TINY}"), Some(&path(input)));
        assert_eq!(piped.code, 0, "{}", piped.said);
        assert_eq!(place.run(&format!("train {input} --out {run} --vocab-size 300 {TINY}"), None).code, 0);
        for file in ["tokenizer.json", "model/model.safetensors"] {
            assert_eq!(
                fs::read(path(run).join(file)).unwrap(),
                fs::read(path(&format!("{run}-piped")).join(file)).unwrap()
            );
        }
        let left: Vec<_> =
            fs::read_dir(path(&format!("{run}-piped/data"))).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "tokens, and nothing else: {left:?}");
    }
    assert_eq!(place.run("eval a/model - --threads 2", Some(&path("text.txt"))).code, 0);
    let empty = place.run(&format!("train - --out c {TINY}"), None);
    assert!(empty.code == 2 && empty.said.contains("standard input: there is no text in it"), "{}", empty.said);
    assert!(!path("c").exists(), "nothing is left behind");
}

#[test]
fn own_runs_are_no_corpus() {
    let place = Place::new("own");
    place.write("text.txt", |out| words(out, 100_000));
    let train = format!("train . --tokenizer byte {TINY}").replace("--quiet", "");
    assert_eq!(place.run(&train, None).code, 0);
    let again = place.run(&train, None);
    assert_eq!(again.code, 0, "{}", again.said);
    assert!(again.said.contains("is the folder of a run and not part of the corpus"), "{}", again.said);
    let tokens = |run: &str| {
        fs::read_dir(place.0.join("runs"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(run))
            .map(|path| fs::metadata(path.join("data/train.tokens")).unwrap().len())
            .next()
    };
    assert_eq!(tokens("-1"), tokens("-2"));
}
