//! Parquet files of every compression and any page size, honest or not.

use super::super::testing::Folder;
use super::pieces::PIECE_BYTES;
use super::tests::gzip;
use super::*;
use parquet::basic::{BrotliLevel, Compression as Codec, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

/// A file of one column of texts.
fn table(texts: &[&str], properties: WriterPropertiesBuilder) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message schema { required binary text (UTF8); }").unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let values: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

fn plain() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_dictionary_enabled(false)
}

fn pieces(path: &Path, memory: Option<u64>) -> Result<Vec<Document>> {
    let mut corpus = Corpus::open(&[path.to_path_buf()], None)?;
    if let Some(bytes) = memory {
        corpus.limit_memory(bytes);
    }
    corpus.documents().collect()
}

#[test]
fn every_compression_and_encoding_is_read() {
    let folder = Folder::new("codecs");
    let texts: Vec<String> = (0..3000).map(|number| format!("text {} of a table", number % 700)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let codecs = [
        Codec::UNCOMPRESSED,
        Codec::SNAPPY,
        Codec::GZIP(GzipLevel::default()),
        Codec::BROTLI(BrotliLevel::default()),
        Codec::LZ4,
        Codec::LZ4_RAW,
        Codec::ZSTD(ZstdLevel::default()),
    ];
    for codec in codecs {
        let ways = [
            WriterProperties::builder(),
            plain().set_data_page_size_limit(1000).set_write_batch_size(10),
            plain().set_writer_version(WriterVersion::PARQUET_2_0).set_encoding(Encoding::DELTA_BYTE_ARRAY),
        ];
        for way in ways {
            let path = folder.write("codec.parquet", table(&texts, way.set_compression(codec)));
            let found = pieces(&path, None).unwrap();
            assert!(found.iter().map(|piece| &piece.text[..]).eq(texts.iter().copied()), "{codec:?}");
        }
    }
}

#[test]
fn a_long_value_comes_in_pieces() {
    let folder = Folder::new("long-values");
    let long = "中文 and some words ".repeat(100_000);
    let path = folder.write("long.parquet", table(&["before", &long, "", "after"], plain()));
    let found = pieces(&path, None).unwrap();
    let (middle, end) = found[1..].split_at(found.len() - 3);
    assert!(middle.len() > 5 && middle.iter().all(|piece| piece.text.len() <= PIECE_BYTES));
    assert!(middle.iter().map(|piece| &piece.text[..]).collect::<String>() == long);
    assert!(middle.iter().rev().skip(1).all(|piece| piece.continues) && !middle.last().unwrap().continues);
    assert_eq!([&found[0].text[..], &end[0].text, &end[1].text], ["before", "", "after"]);
}

#[test]
fn pages_that_take_too_much_are_refused_before_they_are_read() {
    let folder = Folder::new("large-pages");
    let long = "many words in a row ".repeat(200_000);
    let pages = ["x", &long];
    for (way, least) in [(plain(), 4_000_000), (WriterProperties::builder(), 4_000_000)] {
        for codec in [Codec::UNCOMPRESSED, Codec::SNAPPY, Codec::BROTLI(BrotliLevel::default())] {
            let bytes = table(&pages, way.clone().set_compression(codec));
            let path = folder.write("large.parquet", &bytes);
            let held = Corpus::open(std::slice::from_ref(&path), None).unwrap().bytes_held().unwrap();
            assert!((least..20_000_000).contains(&held), "{codec:?}: {held}");
            assert!(pieces(&path, Some(held)).is_ok(), "{codec:?}");
            let packed = folder.write("large.parquet.gz", gzip(&bytes));
            for path in [&path, &packed] {
                let told = pieces(path, Some(held - 1000)).unwrap_err().to_string();
                assert!(
                    told.contains("pages") && told.contains("are left") && told.contains("`settings.memory`"),
                    "{told}"
                );
            }
        }
    }
}

/// Each byte of the headers is changed to what makes numbers large: nothing may panic, and what is read whole is text.
#[test]
fn sizes_that_are_not_true_are_found_out() {
    let folder = Folder::new("lies");
    let properties = || WriterProperties::builder().set_compression(Codec::SNAPPY);
    let honest = table(&["one text", "another text", "one text"], properties());
    for index in 4..honest.len() {
        for change in [0x7f, 0x80, 0xff, 0x16] {
            let mut bytes = honest.clone();
            bytes[index] = change;
            let path = folder.write("lie.parquet", &bytes);
            let mut corpus = match Corpus::open(&[path], None) {
                Ok(corpus) => corpus,
                Err(_) => continue,
            };
            corpus.limit_memory(READING_BYTES + (1 << 20));
            if let Ok(found) = corpus.documents().collect::<Result<Vec<_>>>() {
                assert!(found.iter().map(|piece| piece.text.len()).sum::<usize>() < 1 << 20, "byte {index}");
            }
        }
    }
}

#[test]
fn a_list_that_is_said_to_be_longer_than_the_file_is_refused() {
    let folder = Folder::new("truths");
    let mut bytes = table(&["one text"], plain());
    let footer = bytes.len() - 8;
    let footer_bytes = u32::from_le_bytes(bytes[footer..footer + 4].try_into().unwrap());
    // One more field: a list of 2^31 - 1 truths, none of which takes a byte if they are skipped by their kind.
    let list = [0xf9, 0xf2, 0xff, 0xff, 0xff, 0xff, 0x07];
    bytes.splice(footer - 1..footer - 1, list);
    let footer = bytes.len() - 8;
    bytes[footer..footer + 4].copy_from_slice(&(footer_bytes + list.len() as u32).to_le_bytes());
    let told = pieces(&folder.write("truths.parquet", &bytes), None).unwrap_err().to_string();
    assert!(told.contains("not a whole Parquet file"), "{told}");
}

#[test]
fn a_packed_table_that_is_far_larger_unpacked_is_refused() {
    let folder = Folder::new("bomb");
    let path = folder.write("bomb.parquet.gz", gzip(&vec![0; 300 << 20]));
    let told = pieces(&path, None).unwrap_err().to_string();
    assert!(told.contains("unpacks to more than 268 MB") && told.contains("unpack it first"), "{told}");
}

#[test]
fn what_unpacking_a_frame_takes_is_known_and_kept() {
    let folder = Folder::new("window");
    // A frame of no content that asks for a window of 64 MiB.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 16 << 3, 0x01, 0x00, 0x00];
    let path = folder.write("wide.txt.zst", frame);
    let mut corpus = Corpus::open(&[path], None).unwrap();
    assert!((64 << 20..66 << 20).contains(&(corpus.bytes_held().unwrap() - READING_BYTES)));
    corpus.limit_memory(8 << 20);
    let told = corpus.documents().next().unwrap().unwrap_err().to_string();
    assert!(told.contains("67.1 MB to be unpacked") && told.contains("`settings.memory`"), "{told}");
}
