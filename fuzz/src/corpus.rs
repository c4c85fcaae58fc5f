//! Corpora: any bytes as a file of any format, read as documents and tokenized.

use crate::folder::Folder;
use crate::is_one_line;
use crate::memory::{limit, within};
use flate2::write::GzEncoder;
use gradus_train::Result;
use gradus_train::config::Validation;
use gradus_train::data::{Corpus, Encoding, Prepared, TokenFile, prepare};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// The files that an input may be; its first byte says which.
const NAMES: [&str; 9] = [
    "a.txt",
    "a.jsonl",
    "a.parquet",
    "a.txt.gz",
    "a.jsonl.gz",
    "a.parquet.gz",
    "a.txt.zst",
    "a.jsonl.zst",
    "a.parquet.zst",
];

/// Set in the first byte: the field of the text is named.
const FIELD_NAMED: u8 = 0x80;

/// A piece of text, what it is read and unpacked from, and the library's own tables.
const CONSTANT_BYTES: usize = 24 << 20;
const BYTES_PER_BYTE: usize = 64;

/// More text than this is read, and not tokenized besides.
const TOKENIZED_BYTES: u64 = 1 << 22;

const END: u32 = 256;

/// What was read: enough to tell whether something else was the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    documents: u64,
    bytes: u64,
    hash: u64,
}

impl Digest {
    const NOTHING: Digest = Digest { documents: 0, bytes: 0, hash: 0xcbf2_9ce4_8422_2325 };

    fn add(&mut self, text: impl IntoIterator<Item = u8>) {
        for byte in text {
            self.bytes += 1;
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Reads the rest of the input as the file that its first byte chooses.
pub fn run(input: &[u8]) {
    let Some((&choice, content)) = input.split_first() else { return };
    let name = NAMES[usize::from(choice & !FIELD_NAMED) % NAMES.len()];
    let field = (choice & FIELD_NAMED != 0).then_some("text");
    let folder = Folder::new();
    let path = folder.write(name, content);
    let limit = limit(CONSTANT_BYTES, BYTES_PER_BYTE, content);
    let read = within(limit, || read(&path, field));
    let few = read.as_ref().is_ok_and(|digest| digest.bytes <= TOKENIZED_BYTES);
    if few || read.is_err() {
        within(limit, || tokenize(&path, field, &folder.path().join("run"), &read));
    }
    if path.extension().is_some_and(|ending| ending != "gz" && ending != "zst") {
        is_the_same_packed(&folder, name, content, field, &read);
    }
    if let (Ok(digest), "a.jsonl", Some(_)) = (&read, name, field) {
        is_the_same_split(&folder, content, field, digest);
    }
}

/// The documents of a path, or the one line that says what is wrong, without the path.
fn read(path: &Path, field: Option<&str>) -> Result<Digest, String> {
    digest(path, field).map_err(|error| {
        is_one_line(&error);
        error.to_string().replace(&path.display().to_string(), "")
    })
}

fn digest(path: &Path, field: Option<&str>) -> Result<Digest> {
    let mut digest = Digest::NOTHING;
    for document in Corpus::open(&[path.to_path_buf()], field)?.documents() {
        let document = document?;
        digest.documents += u64::from(!document.continues);
        digest.add(document.text.bytes());
    }
    Ok(digest)
}

/// Tokenizes each byte to itself: the tokens must be those of the text that was read.
fn tokenize(path: &Path, field: Option<&str>, out: &Path, read: &Result<Digest, String>) {
    let prepared = Corpus::open(&[path.to_path_buf()], field).and_then(|corpus| {
        let encode = |text: &str| Ok(text.bytes().map(u32::from).collect());
        let encoding =
            Encoding { encode: &encode, vocabulary: 257, starts_with: &[], ends_with: &[END], fingerprint: 1 };
        prepare(&corpus, &encoding, &Validation::Fraction(0.25), 4, out, &mut |_, _| Ok(()))
    });
    match (prepared, read) {
        (Ok(prepared), Ok(digest)) => assert_eq!(tokens(&prepared), (digest.bytes, digest.hash), "other tokens"),
        (Ok(_), Err(problem)) => panic!("tokenized, though it cannot be read: {problem}"),
        // Too little text is an error of its own.
        (Err(error), _) => is_one_line(&error),
    }
}

/// The number and hash of the bytes that the tokens stand for.
fn tokens(prepared: &Prepared) -> (u64, u64) {
    let mut digest = Digest::NOTHING;
    let validation = prepared.validation.as_ref().expect("a share is held out");
    for file in [&prepared.train, validation] {
        let byte = |token: i32| (token as u32 != END).then_some(token as u8);
        in_chunks(file, |tokens| digest.add(tokens.iter().filter_map(|&token| byte(token))));
    }
    (digest.bytes, digest.hash)
}

fn in_chunks(file: &TokenFile, mut each: impl FnMut(&[i32])) {
    let mut chunk = [0; 4096];
    let mut start = 0;
    while start < file.len() {
        let count = (file.len() - start).min(chunk.len() as u64) as usize;
        file.read(start, &mut chunk[..count]).expect("what was written is read");
        each(&chunk[..count]);
        start += count as u64;
    }
}

/// The same bytes compressed, whole and in two parts, are the same documents or the same mistake.
fn is_the_same_packed(
    folder: &Folder,
    name: &str,
    content: &[u8],
    field: Option<&str>,
    expected: &Result<Digest, String>,
) {
    let (first, second) = content.split_at(content.len() / 2);
    let packings = [
        ("gz", gzip(content)),
        ("gz", [gzip(first), gzip(second)].concat()),
        ("zst", zstandard(content)),
        ("zst", [zstandard(first), zstandard(second)].concat()),
    ];
    for (ending, packed) in packings {
        let found = read(&folder.write(&format!("{name}.{ending}"), &packed), field);
        // What holds no byte is told apart before it is unpacked.
        if !content.is_empty() {
            assert_eq!(&found, expected, "compressed as {ending}");
        }
    }
}

/// Records in two files of a folder are the same documents.
fn is_the_same_split(folder: &Folder, content: &[u8], field: Option<&str>, expected: &Digest) {
    let middle = content.len() / 2;
    let Some(end) = content[middle..].iter().position(|&byte| byte == b'\n') else { return };
    let (first, second) = content.split_at(middle + end + 1);
    folder.write("split/1.jsonl", first);
    folder.write("split/2.jsonl", second);
    assert_eq!(read(&folder.path().join("split"), field), Ok(*expected), "in two files");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Default::default());
    encoder.write_all(bytes).expect("memory takes bytes");
    encoder.finish().expect("memory takes bytes")
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// A Parquet file of two row groups with a column of texts.
fn parquet(rows: [&[&str]; 2]) -> Vec<u8> {
    let schema = parse_message_type("message schema { optional binary text (UTF8); }").expect("a schema");
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Default::default()).expect("a writer");
    for rows in rows {
        let mut group = writer.next_row_group().expect("a group");
        let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(*row)).collect();
        let levels = [vec![1; rows.len()], vec![0]].concat();
        let mut column = group.next_column().expect("a column").expect("the column");
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).expect("values");
        column.close().expect("a whole column");
        group.close().expect("a whole group");
    }
    writer.close().expect("a whole file");
    bytes
}

/// A file of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let text = "Once upon a time\nthere was a fox.\n\nIt was a clever fox — and a hungry one.\n".as_bytes().to_vec();
    let records = "{\"id\": 1, \"text\": \"one\\n\\u00e9\"}\n\n{\"text\": \"two \\\"three\\\"\", \"more\": [1, {\"a\": null}]}\n{\"text\": null}\n";
    let table = parquet([&["the first", "the second"], &["the third", ""]]);
    let contents = [text, records.as_bytes().to_vec(), table];
    let packings = [|bytes: &[u8]| bytes.to_vec(), gzip, zstandard];
    let kinds = packings.iter().flat_map(|pack| contents.iter().map(move |content| pack(content)));
    let named = kinds.clone().enumerate().map(|(kind, content)| (kind as u8 | FIELD_NAMED, content));
    let guessed = kinds.enumerate().map(|(kind, content)| (kind as u8, content));
    guessed.chain(named).map(|(choice, content)| [vec![choice], content].concat()).collect()
}
