//! Records of any size and shape: compared with `serde_json`, and cut at every place.

use super::super::testing::Folder;
use super::pieces::PIECE_BYTES;
use super::text_stream::WINDOW_BYTES;
use super::*;
use serde_json::{Map, Value, json};

/// The documents of a file, put together from their pieces, none of which may be too long.
fn documents(path: &Path, field: Option<&str>) -> Result<Vec<String>> {
    let mut documents: Vec<String> = vec![];
    let mut goes_on = false;
    for piece in Corpus::open(&[path.to_path_buf()], field)?.documents() {
        let piece = piece?;
        assert!(piece.text.len() <= PIECE_BYTES, "{} bytes", piece.text.len());
        match goes_on {
            true => *documents.last_mut().unwrap() += &piece.text,
            false => documents.push(piece.text),
        }
        goes_on = piece.continues;
    }
    assert!(!goes_on, "the last piece ends its document");
    Ok(documents)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn text(&mut self, characters: u64) -> String {
        const LETTERS: [char; 14] =
            ['a', 'Z', ' ', '"', '\\', '/', '\n', '\t', '\u{1}', 'é', '中', '。', '😀', '\u{ffff}'];
        (0..self.below(characters)).map(|_| LETTERS[self.below(LETTERS.len() as u64) as usize]).collect()
    }

    fn value(&mut self, depth: u64) -> Value {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(1 << 30) as i64 - (1 << 29)),
            3 => json!(self.below(1 << 30) as f64 * 1e-7),
            4 | 5 => json!(self.text(12)),
            6 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => (0..self.below(4)).map(|_| (self.text(6), self.value(depth - 1))).collect::<Map<_, _>>().into(),
        }
    }

    /// The value as JSON, each character of a string in one of the ways to write it, with space where it may be.
    fn written(&mut self, value: &Value, to: &mut String) {
        match value {
            Value::String(text) => self.written_text(text, to),
            Value::Array(values) => {
                *to += "[";
                for (index, value) in values.iter().enumerate() {
                    *to += if index > 0 { " ,\t" } else { " " };
                    self.written(value, to);
                }
                *to += " ]";
            }
            Value::Object(members) => {
                *to += "{";
                for (index, (name, value)) in members.iter().enumerate() {
                    *to += if index > 0 { ", " } else { "" };
                    self.written_text(name, to);
                    *to += " :";
                    self.written(value, to);
                }
                *to += "\r}";
            }
            plain => *to += &plain.to_string(),
        }
    }

    fn written_text(&mut self, text: &str, to: &mut String) {
        to.push('"');
        for character in text.chars() {
            let short = ('"', '\\', '/', '\n', '\t');
            match character {
                _ if self.below(3) == 0 => {
                    for code in character.encode_utf16(&mut [0; 2]) {
                        *to += &format!("\\u{code:04x}");
                    }
                }
                c if c == short.3 => *to += "\\n",
                c if c == short.4 => *to += "\\t",
                c if c == short.0 || c == short.1 => to.extend(['\\', c]),
                c if c == short.2 && self.below(2) == 0 => *to += "\\/",
                c if c < ' ' => *to += "\\u0001",
                c => to.push(c),
            }
        }
        to.push('"');
    }
}

#[test]
fn random_records_are_what_serde_json_reads() {
    let folder = Folder::new("random-records");
    let mut random = Random(7);
    let (mut lines, mut expected) = (String::new(), vec![]);
    for _ in 0..3000 {
        let mut record: Map<String, Value> = (0..random.below(5)).map(|_| (random.text(5), random.value(4))).collect();
        let text = if random.below(9) == 0 { Value::Null } else { json!(random.text(40)) };
        record.insert("text".into(), text);
        let mut line = String::new();
        random.written(&Value::Object(record), &mut line);
        let read: Map<String, Value> = serde_json::from_str(&line).unwrap();
        expected.push(read["text"].as_str().unwrap_or("").to_string());
        lines += &line;
        lines += ["\n", "\r\n", "\n \t\n", "\n\n"][random.below(4) as usize];
    }
    let path = folder.write("random.jsonl", &lines);
    assert_eq!(documents(&path, Some("text")).unwrap(), expected);
}

#[test]
fn what_serde_json_refuses_is_refused_and_what_it_takes_is_taken() {
    let folder = Folder::new("damaged-records");
    let mut random = Random(11);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut record = Map::from_iter([("text".to_string(), json!(random.text(9)))]);
        record.insert("other".into(), random.value(3));
        let mut line = String::new();
        random.written(&Value::Object(record), &mut line);
        let mut bytes = line.into_bytes();
        for _ in 0..=random.below(2) {
            let (place, byte) = (
                random.below(bytes.len() as u64) as usize,
                b"{}[]\",:\\u0e-+.tfn x\x01\xff"[random.below(21) as usize],
            );
            match random.below(3) {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                _ => drop(bytes.remove(place)),
            }
        }
        let read = serde_json::from_slice::<Map<String, Value>>(&bytes);
        // What is passed over need not fit a number of ours.
        if read.as_ref().is_err_and(|error| error.to_string().contains("out of range")) {
            continue;
        }
        let read = read.ok();
        let names_text_twice = bytes.windows(6).filter(|window| window == b"\"text\"").count() > 1;
        let expected = read.and_then(|read| match read.get("text")? {
            Value::String(text) => Some(text.clone()),
            Value::Null => Some(String::new()),
            _ => None,
        });
        let found = documents(&folder.write("damaged.jsonl", &bytes), Some("text"));
        match (expected, found) {
            (Some(_), Err(told)) if names_text_twice => assert!(told.to_string().contains("twice"), "{told}"),
            (Some(expected), found) => {
                taken += 1;
                assert_eq!(found.unwrap(), [expected], "{}", String::from_utf8_lossy(&bytes));
            }
            (None, found) => {
                refused += 1;
                let told = found.expect_err(&String::from_utf8_lossy(&bytes)).to_string();
                assert!(told.contains("line 1: ") || told.contains("at byte"), "{told}");
            }
        }
    }
    assert!(taken > 200 && refused > 200, "{taken} taken, {refused} refused");
}

/// What is hard to cut lies across the end of a window at each of its bytes, as text, as a name and as what is skipped.
#[test]
fn every_cut_of_a_window_reads_the_same() {
    let folder = Folder::new("window-cuts");
    let hard = r#"a\"\\\u00e9\ud83d\ude00中😀é\n\/"#;
    let text: String = serde_json::from_str(&format!("\"{hard}\"")).unwrap();
    for before in 0..=hard.len() + 2 {
        let padding = "x".repeat(WINDOW_BYTES - before - "{\"pad\":\"\",\"text\":\"".len());
        let lines = [
            format!("{{\"pad\":\"{padding}\",\"text\":\"{hard}\"}}"),
            format!("{{\"text\":\"{padding}\",\"{hard}\":[\"{hard}\"]}}"),
            format!("{{\"text\":\"x{padding}{hard}\",\"pad\":0}}"),
        ];
        let expected = [text.clone(), padding.clone(), format!("x{padding}{text}")];
        for (line, expected) in lines.iter().zip(expected) {
            let path = folder.write("cut.jsonl", line);
            assert_eq!(documents(&path, None).unwrap(), [expected], "{before} bytes before the cut");
        }
    }
}

#[test]
fn every_cut_of_a_piece_keeps_the_text() {
    let folder = Folder::new("piece-cuts");
    for (hard, before) in ["\\u4e2d\\u3002", "\\ud83d\\ude00", "中", "\\n\\n", " b"]
        .into_iter()
        .flat_map(|hard| (0..8).map(move |before| (hard, before)))
    {
        let line = format!("{{\"text\":\"{}{}\"}}", "x".repeat(PIECE_BYTES - before), hard.repeat(30_000));
        let text = serde_json::from_str::<Value>(&line).unwrap()["text"].as_str().unwrap().to_string();
        let found = documents(&folder.write("long.jsonl", &line), None).unwrap();
        assert!(found == [text], "{hard} after {before}");
    }
}

#[test]
fn one_line_without_end_is_a_document() {
    let folder = Folder::new("endless");
    let words = "some words and then more of them ".repeat(100_000);
    let path = folder.write("endless.jsonl", format!("{{\"meta\": \"{words}\", \"text\": \"{words}\"}}"));
    assert!(documents(&path, None).unwrap() == [words.clone()]);
    let unfinished = folder.write("unfinished.jsonl", format!("{{\"text\": \"{words}"));
    let told = documents(&unfinished, Some("text")).unwrap_err().to_string();
    assert!(told.contains(&format!("line 1: column {}", words.len() + 11)) && told.contains("file ends"), "{told}");
}

#[test]
fn a_million_empty_records_are_read() {
    let folder = Folder::new("empty-records");
    let path = folder.write("empty.jsonl", "{\"text\":\"\"}\n".repeat(1_000_000));
    let corpus = Corpus::open(&[path], None).unwrap();
    assert_eq!(corpus.documents().map(|piece| piece.unwrap()).filter(|piece| piece.text.is_empty()).count(), 1_000_000);
}

#[test]
fn depth_has_a_limit_and_width_has_none() {
    let folder = Folder::new("depth");
    let nested = |depth: usize| format!("{{\"a\": {}{}, \"text\": \"x\"}}", "[".repeat(depth), "]".repeat(depth));
    for depth in [1, 126, 127, 128, 1_000_000] {
        let line = nested(depth);
        let found = documents(&folder.write("deep.jsonl", &line), Some("text"));
        assert_eq!(found.is_ok(), serde_json::from_str::<Value>(&line).is_ok(), "{depth}");
        assert!(found.is_ok_and(|texts| texts == ["x"]) || depth > 126);
    }
    let told = documents(&folder.write("deep.jsonl", nested(1_000_000)), Some("text")).unwrap_err().to_string();
    assert!(told.contains("column 133") && told.contains("too deep"), "{told}");
    let wide: String = (0..5000).map(|number| format!("\"name{number:05}\": {number}, ")).collect();
    let path = folder.write("wide.jsonl", format!("{{{wide}\"text\": \"x\"}}"));
    assert_eq!(documents(&path, None).unwrap(), ["x"]);
    let told = documents(&path, Some("other")).unwrap_err().to_string();
    assert!(told.contains("\"name00000\"") && told.contains(", ...") && told.len() < 600, "{told}");
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    let folder = Folder::new("twice");
    let path =
        folder.write("twice.jsonl", "{\"text\": \"one\", \"n\": 1, \"n\": 2}\n{\"text\": \"one\", \"text\": \"two\"}");
    let told = documents(&path, None).unwrap_err().to_string();
    assert!(told.contains("line 2: the field \"text\" is there twice"), "{told}");
}
