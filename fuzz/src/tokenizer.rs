//! Tokenizers: any bytes as a `tokenizer.json`, used to encode and decode beside the library.

use crate::folder::Folder;
use crate::memory::{limit, within};
use crate::{SEPARATOR, is_one_line, parts};
use gradus_train::tokenizer::Tokenizer;
use serde_json::json;
use std::path::Path;

/// The library's tables, and a vocabulary in several forms at a time.
const CONSTANT_BYTES: usize = 24 << 20;
const BYTES_PER_BYTE: usize = 1024;

/// Text with what tokenizers treat as special: spaces, marks, characters of several bytes, the end of a text.
const TEXT: &str = "Once upon  a time,\n\tthere's a fox — über 日本 e\u{301} 🦊 <|endoftext|> 12345 </s>aaaaaaaa\u{0}.";

/// Opens the first part of the input as a tokenizer, and encodes its second part.
pub fn run(input: &[u8]) {
    let parts = parts(input);
    let given = parts.get(1).map_or(String::new(), |text| String::from_utf8_lossy(text).into_owned());
    let folder = Folder::new();
    let path = folder.write("tokenizer.json", parts[0]);
    within(limit(CONSTANT_BYTES, BYTES_PER_BYTE, input), || match Tokenizer::open(&path) {
        Ok(tokenizer) => [TEXT, &given, ""].iter().for_each(|text| encode(&tokenizer, text, &folder)),
        Err(error) => is_one_line(&error),
    });
}

/// A text has the same tokens by the saved tokenizer, and by the library; and they can be decoded.
fn encode(tokenizer: &Tokenizer, text: &str, folder: &Folder) {
    let ids = match tokenizer.encode(text) {
        Ok(ids) => ids,
        Err(error) => return is_one_line(&error),
    };
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary()), "an id outside the vocabulary");
    match tokenizer.decode(&ids) {
        Ok(_) => {}
        Err(error) => is_one_line(&error),
    }
    let saved = folder.path().join("saved.json");
    tokenizer.save(&saved).expect("a tokenizer that was opened can be saved");
    // Longer stretches without a space may be encoded in parts.
    if text.len() <= 4096 {
        assert_eq!(ids, by_library(&saved, text), "not the library's tokens");
    }
    let again = Tokenizer::open(&saved).expect("what was saved can be opened");
    assert_eq!(again.fingerprint(), tokenizer.fingerprint(), "saved differently");
    assert_eq!(again.encode(text).expect("it could be encoded"), ids, "other tokens after saving");
}

fn by_library(saved: &Path, text: &str) -> Vec<u32> {
    let library = tokenizers::Tokenizer::from_file(saved).expect("the library opens what we save");
    library.encode_fast(text, false).expect("the library encodes what we do").get_ids().to_vec()
}

/// A small tokenizer of each kind that the library knows.
pub fn seeds() -> Vec<Vec<u8>> {
    let folder = Folder::new();
    let saved = |tokenizer: Tokenizer| {
        let path = folder.path().join("seed.json");
        tokenizer.save(&path).expect("a tokenizer can be saved");
        std::fs::read(&path).expect("it was saved")
    };
    let characters = Tokenizer::characters([Ok("Once upon a time, foxes.")]).expect("it has characters");
    let mut seeds: Vec<Vec<u8>> = others().iter().map(|value| value.to_string().into_bytes()).collect();
    seeds.extend([saved(characters), saved(Tokenizer::bytes())]);
    seeds.iter().map(|seed| [seed, SEPARATOR, b"a time upon a fox"].concat()).collect()
}

fn others() -> Vec<serde_json::Value> {
    let end = json!({
        "id": 9, "content": "<|endoftext|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": true, "normalized": false,
    });
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let byte_pairs = json!({
        "type": "BPE", "unk_token": "a", "ignore_merges": false, "byte_fallback": false, "fuse_unk": true,
        "vocab": { "a": 0, "b": 1, "Ġ": 2, "aa": 3, "Ġa": 4, "aaaa": 5 },
        "merges": [["a", "a"], ["Ġ", "a"], ["aa", "aa"]],
    });
    let pieces = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": { "[UNK]": 0, "a": 1, "##a": 2, "time": 3, "fox": 4 },
    });
    let unigram = json!({
        "type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["▁a", -2.5], ["fox", -4.0]],
    });
    let words = json!({ "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "a": 1, "fox": 2 } });
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let split = json!({
        "type": "Split", "pattern": { "Regex": "\\p{L}+|\\s+(?!\\S)|\\d{1,3}" }, "behavior": "Isolated", "invert": false,
    });
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<|endoftext|>": { "id": "<|endoftext|>", "ids": [9], "tokens": ["<|endoftext|>"] } },
    });
    vec![
        json!({ "version": "1.0", "added_tokens": [end], "pre_tokenizer": byte_level, "decoder": byte_level, "model": byte_pairs }),
        json!({ "version": "1.0", "added_tokens": [end], "normalizer": { "type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
            "pre_tokenizer": { "type": "BertPreTokenizer" }, "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true }, "model": pieces }),
        json!({ "version": "1.0", "added_tokens": [], "normalizer": { "type": "Replace", "pattern": { "String": "e" }, "content": "a" },
            "pre_tokenizer": metaspace, "decoder": metaspace, "model": unigram }),
        json!({ "version": "1.0", "added_tokens": [end], "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, { "type": "Whitespace" }] },
            "post_processor": template, "truncation": null, "padding": null, "model": words }),
    ]
}
