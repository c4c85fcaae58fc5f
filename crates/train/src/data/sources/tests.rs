use super::super::testing::Folder;
use super::*;
use flate2::write::GzEncoder;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Write;
use std::sync::Arc;

fn texts(paths: &[PathBuf], field: Option<&str>) -> Result<Vec<String>> {
    Corpus::open(paths, field)?.documents().map(|document| document.map(|document| document.text)).collect()
}

/// The one line that a corpus of this file gets.
fn problem(path: &Path) -> String {
    let problem = texts(&[path.to_path_buf()], None).unwrap_err().to_string();
    assert!(problem.starts_with(&path.display().to_string()), "it names the file: {problem}");
    assert!(!problem.contains('\n'), "one line: {problem}");
    problem
}

#[track_caller]
fn says(problem: &str, parts: &[&str]) {
    for part in parts {
        assert!(problem.contains(part), "{part:?} is not in {problem:?}");
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Default::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstandard(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// A Parquet file of two row groups with the texts in a column `story`, and one null.
fn parquet(rows: [&[&str]; 2]) -> Vec<u8> {
    let schema = "message schema { required int64 id; optional binary story (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Default::default()).unwrap();
    for rows in rows {
        let mut group = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (0..=rows.len() as i64).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(*row)).collect();
        let mut levels = vec![1i16; rows.len()];
        levels.push(0);
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

#[test]
fn every_format_plain_and_compressed() {
    let folder = Folder::new("formats");
    let lines = "{\"id\": \"x\", \"text\": \"one\"}\n\n{\"text\": \"two\\n\", \"id\": 3}";
    let table = parquet([&["three", "four"], &["five"]]);
    let files: [(&str, Vec<u8>, &[&str]); 3] = [
        ("text.txt", b"\xef\xbb\xbfone\ntwo \xc3\xa9".to_vec(), &["one\ntwo é"]),
        ("lines.jsonl", lines.into(), &["one", "two\n"]),
        ("table.parquet", table, &["three", "four", "five"]),
    ];
    for (name, bytes, expected) in files {
        let plain = folder.write(name, &bytes);
        let gz = folder.write(&format!("{name}.gz"), gzip(&bytes));
        let zst = folder.write(&format!("{name}.zst"), zstandard(&bytes));
        for path in [plain, gz, zst] {
            assert_eq!(texts(&[path], None).unwrap(), expected);
        }
    }
}

#[test]
fn folders_and_globs_in_order() {
    let folder = Folder::new("folders");
    for (name, text) in [("b.txt", "b"), ("a/z.txt", "az"), ("a/b/c.txt", "abc"), ("c.jsonl", "{\"body\":\"c\"}")] {
        folder.write(name, text);
    }
    folder.write("notes.pdf", "not taken");
    assert_eq!(texts(&[folder.path().to_path_buf()], None).unwrap(), ["abc", "az", "b", "c"]);
    assert_eq!(texts(&[folder.path().join("*.txt"), folder.path().join("c*")], None).unwrap(), ["b", "c"]);
    says(&problem(&folder.path().join("*.parquet")), &["no file", ".jsonl"]);
}

#[test]
fn folders_of_runs_are_left_out_unless_they_are_named() {
    let folder = Folder::new("own-runs");
    folder.write("runs/own-1/config.toml", "# A run of gradus: every choice, resolved.\nwidth = 16\n");
    folder.write("runs/own-1/samples/step-1.txt", "what a model wrote");
    folder.write("other/config.toml", "width = 3");
    folder.write("other/a.txt", "a");
    let open = |name: &str| Corpus::open(&[folder.path().join(name)], None);
    let corpus = open("").unwrap();
    assert_eq!(corpus.left_out(), [folder.path().join("runs/own-1")]);
    assert_eq!(texts(&[folder.path().to_path_buf()], None).unwrap(), ["a"]);
    assert_eq!(open("*").unwrap().left_out().len(), 1);
    says(&open("runs").unwrap_err().to_string(), &["no file of a corpus", "named themselves"]);
    assert_eq!(texts(&[folder.path().join("runs/own-1")], None).unwrap(), ["what a model wrote"]);
    assert_eq!(texts(&[folder.path().join("runs/own-1/samples")], None).unwrap(), ["what a model wrote"]);
}

#[test]
fn a_long_text_comes_in_pieces() {
    let folder = Folder::new("pieces");
    let text: String = (0..300_000).map(|number| format!("line {number} é\n")).collect();
    let path = folder.write("long.txt", &text);
    let corpus = Corpus::open(&[path], None).unwrap();
    let pieces: Vec<Document> = corpus.documents().collect::<Result<_>>().unwrap();
    assert!(pieces.len() > 3);
    assert!(pieces.iter().all(|piece| piece.text.len() <= pieces::PIECE_BYTES && piece.text.ends_with('\n')));
    let continues: Vec<bool> = pieces.iter().map(|piece| piece.continues).collect();
    assert_eq!(continues.iter().position(|continues| !continues), Some(pieces.len() - 1));
    assert_eq!(pieces.into_iter().map(|piece| piece.text).collect::<String>(), text);
    assert_eq!(corpus.text_bytes(), Some(text.len() as u64));
}

#[test]
fn a_text_of_exactly_one_piece_does_not_continue() {
    let folder = Folder::new("exact");
    let path = folder.write("exact.txt", vec![b'x'; pieces::PIECE_BYTES]);
    let documents: Vec<Document> = Corpus::open(&[path], None).unwrap().documents().collect::<Result<_>>().unwrap();
    assert_eq!(documents.iter().map(|document| document.continues).collect::<Vec<_>>(), [false]);
}

#[test]
fn what_a_bad_path_gets() {
    let folder = Folder::new("bad-paths");
    says(&problem(&folder.path().join("none.txt")), &["no such file"]);
    says(&problem(&folder.write("table.xlsx", "x")), &["does not say", ".parquet"]);
    says(&problem(&folder.write("empty.txt", "")), &["no text", "not empty"]);
    std::fs::create_dir(folder.path().join("nothing")).unwrap();
    says(&problem(&folder.path().join("nothing")), &["no file", ".txt"]);
}

#[test]
fn what_a_bad_text_gets() {
    let folder = Folder::new("bad-texts");
    says(&problem(&folder.write("zero.txt", "abc\0def")), &["binary", "byte 3"]);
    says(&problem(&folder.write("control.txt", "\x01\x02\x03abc")), &["binary", "control"]);
    says(&problem(&folder.write("latin.txt", b"caf\xe9 noir")), &["not UTF-8 at byte 3 (0xe9)", "convert"]);
    says(&problem(&folder.write("wide.txt", b"\xff\xfea\0b\0")), &["UTF-16", "convert"]);
    let mut late = "good line\n".repeat(200_000).into_bytes();
    late.push(0xff);
    says(&problem(&folder.write("late.txt", late)), &["not UTF-8 at byte 2000000"]);
}

#[test]
fn what_bad_json_gets() {
    let folder = Folder::new("bad-json");
    let broken = "{\"text\": \"one\"}\n\n{\"text\": \"two\n{\"text\": \"three\"}\n";
    says(&problem(&folder.write("broken.jsonl", broken)), &["line 3", "column", "correct or remove"]);
    let without = "{\"text\": \"one\"}\n{\"title\": \"two\", \"size\": 3}\n";
    says(&problem(&folder.write("without.jsonl", without)), &["line 2", "\"text\"", "\"size\", \"title\""]);
    says(
        &problem(&folder.write("many.jsonl", r#"{"a": "x", "b": "y"}"#)),
        &["line 1", "`settings.text_field`", "\"a\", \"b\""],
    );
    says(&problem(&folder.write("list.json", "[{\"text\": \"x\"}]")), &["line 1", "one object on each line"]);
    says(&problem(&folder.write("number.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}")), &["line 2", "not text"]);
    says(&problem(&folder.write("latin.jsonl", b"{\"text\": \"\xe9\"}")), &["not UTF-8 at byte 10"]);
    let named = folder.write("named.jsonl", r#"{"a": "x", "b": "y"}"#);
    assert_eq!(texts(&[named], Some("b")).unwrap(), ["y"]);
}

#[test]
fn what_bad_tables_and_archives_get() {
    let folder = Folder::new("bad-tables");
    let table = parquet([&["three", "four"], &["five"]]);
    for length in [2, table.len() / 2, table.len() - 1] {
        says(&problem(&folder.write("cut.parquet", &table[..length])), &["not a whole Parquet file", "fetch it again"]);
    }
    let path = folder.write("good.parquet", &table);
    let missing = texts(&[path], Some("body")).unwrap_err().to_string();
    says(&missing, &["no text column \"body\"", "story"]);
    let long = "many words in a row ".repeat(1000);
    for (name, bytes) in [("cut.txt.gz", gzip(long.as_bytes())), ("cut.txt.zst", zstandard(long.as_bytes()))] {
        says(&problem(&folder.write(name, &bytes[..bytes.len() / 2])), &["not a whole", "again"]);
        says(&problem(&folder.write(name, "no archive at all")), &["not a whole", "again"]);
    }
}

#[test]
fn a_damaged_table_never_panics() {
    let folder = Folder::new("damaged");
    let table = parquet([&["three", "four"], &["five"]]);
    for (index, mask) in (0..table.len()).flat_map(|index| [(index, 0x01), (index, 0x55), (index, 0xff)]) {
        let mut damaged = table.clone();
        damaged[index] ^= mask;
        let _ = texts(&[folder.write("damaged.parquet", damaged)], None);
    }
}

#[test]
fn several_zstandard_frames_are_one_text() {
    let folder = Folder::new("frames");
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
    let bytes = [zstandard(b"one "), skipped.to_vec(), zstandard(b"two")].concat();
    assert_eq!(texts(&[folder.write("frames.txt.zst", bytes)], None).unwrap(), ["one two"]);
}

#[test]
fn a_changed_file_changes_the_fingerprint() {
    let folder = Folder::new("fingerprint");
    let path = folder.write("a.txt", "one");
    let print = || Corpus::open(std::slice::from_ref(&path), None).unwrap().fingerprint();
    let before = print();
    assert_eq!(before, print());
    folder.write("a.txt", "more");
    assert_ne!(before, print());
}
