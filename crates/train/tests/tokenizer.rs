//! Tokenizers: the ids that other tools give, whole files or none, errors that say what to do.

use gradus_train::tokenizer::{END_OF_TEXT, TextStream, Tokenizer, tokenize_report};
use gradus_train::{Error, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const KINDS: [&str; 3] = ["byte", "char", "bpe"];
const TRAINED_VOCABULARY: usize = 384;

/// A folder of a test's own, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gradus-tokenizer-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, content: impl ToString) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content.to_string()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fixture(kind: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/tokenizer_{kind}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A text with what is hard to cut: contractions, runs of spaces, many alphabets, the end of text spelled out.
fn hard_text() -> String {
    fixture("byte")["text"].as_str().unwrap().to_string()
}

fn one(text: &str) -> impl Iterator<Item = Result<&str>> {
    std::iter::once(Ok(text))
}

fn make(kind: &str, text: &str) -> Tokenizer {
    match kind {
        "byte" => Tokenizer::bytes(),
        "char" => Tokenizer::characters(one(text)).unwrap(),
        _ => Tokenizer::train_bpe(TRAINED_VOCABULARY, one(text), None, |_| ()).unwrap(),
    }
}

/// The error's text, which must be one line.
fn refusal<T>(result: Result<T>) -> String {
    let text = result.err().expect("an error").to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

fn json_of(tokenizer: &Tokenizer) -> Value {
    let folder = Folder::new(&format!("json-{:?}", std::thread::current().id()));
    let path = folder.0.join("tokenizer.json");
    tokenizer.save(&path).unwrap();
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn ids_and_texts_are_those_of_the_python_library() {
    for kind in KINDS {
        let fixture = fixture(kind);
        let text = fixture["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(fixture["ids"].clone()).unwrap();
        let folder = Folder::new(kind);
        folder.write("tokenizer.json", &fixture["tokenizer"]);
        let opened = Tokenizer::open(&folder.0).unwrap();
        let made = make(kind, text);
        assert_eq!(made.fingerprint(), opened.fingerprint(), "{kind}: it is no more made as it was");
        for tokenizer in [made, opened] {
            assert_eq!(tokenizer.kind(), kind);
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{kind}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), fixture["decoded"].as_str().unwrap(), "{kind}");
        }
    }
}

/// Writes what `tests/tokenizers/check.py` compares with the Python library, into the folder of an environment variable.
#[test]
#[ignore = "writes folders for tests/tokenizers/check.py"]
fn write_folders_to_check() {
    let folder = PathBuf::from(std::env::var("TOKENIZER_FOLDERS").expect("TOKENIZER_FOLDERS names a folder"));
    let text = hard_text();
    for kind in KINDS {
        let folder = folder.join(kind);
        fs::create_dir_all(&folder).unwrap();
        let tokenizer = make(kind, &text);
        tokenizer.save(&folder.join("tokenizer.json")).unwrap();
        let class = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
        fs::write(folder.join("tokenizer_config.json"), class.to_string()).unwrap();
        fs::write(folder.join("text.txt"), &text).unwrap();
        fs::write(folder.join("ids.json"), json!(tokenizer.encode(&text).unwrap()).to_string()).unwrap();
    }
}

#[test]
fn every_text_comes_back() {
    let text = hard_text();
    for kind in KINDS {
        let tokenizer = make(kind, &text);
        let ids = tokenizer.encode(&text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{kind}");
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary()), "{kind}");
        assert!(tokenizer.encode("").unwrap().is_empty(), "{kind}");
        assert_eq!(tokenizer.decode(&[]).unwrap(), "", "{kind}");
    }
}

#[test]
fn texts_of_tokens_alone_decode_the_same() {
    let (text, folder) = (hard_text(), Folder::new("texts"));
    let templated = folder.write("templated.json", with_template(json!([{ "Sequence": { "id": "A", "type_id": 0 } }])));
    let mut listed = json_of(&make("char", &text));
    // Without a decoder, tokens are joined by spaces; an id in the middle may be nobody's.
    listed["decoder"] = Value::Null;
    listed["model"]["vocab"]["beyond"] = json!(listed["model"]["vocab"].as_object().unwrap().len() + 3);
    let listed = folder.write("listed.json", listed);
    let opened = [templated, listed].map(|path| Tokenizer::open(&path).unwrap());
    for tokenizer in KINDS.map(|kind| make(kind, &text)).into_iter().chain(opened) {
        let known: Vec<u32> = (0..tokenizer.vocabulary() as u32).filter(|&id| tokenizer.knows(id)).collect();
        let of_tokens: Vec<_> = (0..=tokenizer.vocabulary() as u32).map(|id| tokenizer.token(id)).collect();
        let (of_known, unknown) = (tokenizer.decode_text(&known).unwrap(), tokenizer.vocabulary() as u32);
        let refused = refusal(tokenizer.decode_text(&[unknown]));
        let tokens = tokenizer.into_texts();
        assert!((0..).zip(&of_tokens).all(|(id, token)| tokens.token(id) == token.as_deref()));
        assert_eq!(tokens.decode_text(&known).unwrap(), of_known);
        assert_eq!(refusal(tokens.decode_text(&[unknown])), refused);
    }
}

#[test]
fn bytes_are_their_own_ids() {
    let tokenizer = Tokenizer::bytes();
    assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (257, Some(256)));
    assert_eq!(tokenizer.encode("a\nß").unwrap(), [97, 10, 195, 159]);
    assert_eq!(tokenizer.encode("a<|endoftext|>b").unwrap(), [97, 256, 98]);
    let every_byte: Vec<u32> = (0..257).collect();
    assert!(tokenizer.decode(&every_byte).unwrap().ends_with(END_OF_TEXT));
    assert_eq!(tokenizer.decode(&[195]).unwrap(), "\u{fffd}");
}

#[test]
fn characters_are_sorted_and_no_more_than_the_corpus_has() {
    let tokenizer = Tokenizer::characters(["hello\n", "wörld"].map(Ok)).unwrap();
    assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (9, None));
    assert_eq!(tokenizer.encode("\ndehlorwö").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let refused = refusal(tokenizer.encode("hex"));
    assert!(refused.contains("'x' (U+0078)") && refused.contains("byte or bpe"), "{refused}");
    assert!(refusal(Tokenizer::characters(one(""))).contains("no characters"));
    assert!(refusal(tokenizer.decode(&[9])).contains("no token 9 (it has 9 tokens)"));
}

#[test]
fn byte_pairs_have_the_size_asked_for_and_are_always_the_same() {
    let text = hard_text().repeat(3);
    let halves = || [&text[..text.len() / 3], &text[text.len() / 3..]].map(Ok);
    let tokenizer = Tokenizer::train_bpe(400, halves(), None, |_| ()).unwrap();
    assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (400, Some(399)));
    for _ in 0..8 {
        let again = Tokenizer::train_bpe(400, halves(), None, |_| ()).unwrap();
        assert_eq!(again.fingerprint(), tokenizer.fingerprint());
    }
    let bytes_alone = Tokenizer::train_bpe(257, halves(), None, |_| ()).unwrap();
    assert_eq!((bytes_alone.vocabulary(), bytes_alone.end_of_text()), (257, Some(256)));
    assert!(
        refusal(Tokenizer::train_bpe(256, halves(), None, |_| ()))
            .contains("`settings.vocab_size` 256 is too small: give 257")
    );
}

#[test]
fn training_tells_its_progress_and_passes_on_what_stops_it() {
    let mut seen = Vec::new();
    Tokenizer::train_bpe(300, ["some", "more text"].map(Ok), None, |bytes| seen.push(bytes)).unwrap();
    assert_eq!(seen, [4, 13]);
    let broken = || [Ok("some"), Err(Error::corpus(Path::new("corpus.jsonl"), "line 7 is broken"))];
    assert_eq!(refusal(Tokenizer::train_bpe(300, broken(), None, |_| ())), "corpus.jsonl: line 7 is broken");
    assert_eq!(refusal(Tokenizer::characters(broken())), "corpus.jsonl: line 7 is broken");
}

#[test]
fn the_end_of_text_is_not_trained_as_words() {
    let with_ends = format!("one{END_OF_TEXT}two{END_OF_TEXT}").repeat(50);
    let without = Tokenizer::train_bpe(300, ["one", "two"].repeat(50).into_iter().map(Ok), None, |_| ()).unwrap();
    let with = Tokenizer::train_bpe(300, one(&with_ends), None, |_| ()).unwrap();
    assert_eq!(with.fingerprint(), without.fingerprint());
    assert_eq!(with.encode(END_OF_TEXT).unwrap(), [with.end_of_text().unwrap()]);
}

#[test]
fn remembered_words_and_several_threads_change_no_id() {
    let text = hard_text();
    let tokenizer = make("bpe", &text);
    let folder = Folder::new("library");
    let path = folder.0.join("tokenizer.json");
    tokenizer.save(&path).unwrap();
    let library = tokenizers::Tokenizer::from_file(&path).unwrap();
    let expected = |text: &str| library.encode_fast(text, false).unwrap().get_ids().to_vec();
    let long = text.repeat(100);
    assert_eq!(tokenizer.encode(&long).unwrap(), expected(&long));
    for start in (0..text.len()).step_by(7).filter(|&start| text.is_char_boundary(start)) {
        assert_eq!(tokenizer.encode(&text[start..]).unwrap(), expected(&text[start..]), "from {start}");
    }
}

/// A long stretch without a space is encoded in parts: where words end anyway, if there is such a place.
#[test]
fn stretches_without_a_space_are_encoded_in_parts() {
    let text = hard_text();
    let tokenizer = make("bpe", &text);
    let folder = Folder::new("stretches");
    let path = folder.0.join("tokenizer.json");
    tokenizer.save(&path).unwrap();
    let library = tokenizers::Tokenizer::from_file(&path).unwrap();
    let expected = |text: &str| library.encode_fast(text, false).unwrap().get_ids().to_vec();
    let sentences = "中文没有空格。".repeat(3000);
    assert!(tokenizer.encode(&sentences).unwrap() == expected(&sentences), "words end before the mark");
    let below = "ab".repeat(2048);
    assert_eq!(tokenizer.encode(&below).unwrap(), expected(&below));
    let beyond = "thé".repeat(20_000);
    let ids = tokenizer.encode(&beyond).unwrap();
    assert!(tokenizer.decode(&ids).unwrap() == beyond);
    assert!(ids.len() <= expected(&beyond).len() + 2 * beyond.len() / 4000, "only the ends of parts differ");
}

#[test]
fn ids_far_apart_and_files_too_large_are_refused_before_they_are_used() {
    let folder = Folder::new("far-ids");
    let mut value = json_of(&make("bpe", &hard_text()));
    for (place, id) in [("vocab", 1u64 << 31), ("added", (1 << 31) + 5), ("vocab", u64::from(u32::MAX))] {
        let mut changed = value.clone();
        match place {
            "vocab" => changed["model"]["vocab"]["far"] = json!(id),
            _ => changed["added_tokens"][0]["id"] = json!(id),
        }
        let refused = refusal(Tokenizer::open(&folder.write("far.json", &changed)));
        assert!(refused.contains(&format!("an id of {id}")) && refused.contains("follow one another"), "{refused}");
    }
    value["model"]["vocab"]["near"] = json!(1000);
    assert_eq!(Tokenizer::open(&folder.write("near.json", &value)).unwrap().vocabulary(), 1001);
    let large = fs::File::create(folder.0.join("large.json")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    assert!(refusal(Tokenizer::open(&folder.0.join("large.json"))).contains("over 64 MiB"));
}

/// The library opens such a file, and writes one back that it cannot open.
#[test]
fn tokens_that_share_an_id_are_refused() {
    let folder = Folder::new("shared-ids");
    let mut value = json_of(&make("bpe", &hard_text()));
    value["model"]["vocab"]["another"] = json!(7);
    let refused = refusal(Tokenizer::open(&folder.write("shared.json", &value)));
    assert!(refused.contains("two of its tokens have the id 7"), "{refused}");
}

#[test]
fn a_template_of_tokens_that_are_not_stated_is_refused() {
    let folder = Folder::new("template");
    let mut value = json_of(&make("bpe", &hard_text()));
    let pieces =
        json!([{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }]);
    let template = json!({ "type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": {} });
    for processor in [template.clone(), json!({ "type": "Sequence", "processors": [template] })] {
        value["post_processor"] = processor;
        let refused = refusal(Tokenizer::open(&folder.write("template.json", &value)));
        assert!(refused.contains("\"<s>\", which it does not state"), "{refused}");
    }
}

#[test]
fn a_saved_tokenizer_is_the_same_and_is_whole_or_not_there() {
    let folder = Folder::new("save");
    let tokenizer = make("bpe", &hard_text());
    let path = folder.0.join("tokenizer.json");
    tokenizer.save(&path).unwrap();
    let opened = Tokenizer::open(&folder.0).unwrap();
    assert_eq!(opened.fingerprint(), tokenizer.fingerprint());
    assert_ne!(opened.fingerprint(), Tokenizer::bytes().fingerprint());
    Tokenizer::bytes().save(&path).unwrap();
    assert_eq!(Tokenizer::open(&path).unwrap().kind(), "byte");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left beside it");
    let nowhere = folder.0.join("absent/tokenizer.json");
    assert!(refusal(tokenizer.save(&nowhere)).starts_with("cannot write"));
}

#[test]
fn files_that_state_no_tokenizer_are_refused() {
    let folder = Folder::new("broken");
    let refused = refusal(Tokenizer::open(&folder.0));
    assert!(refused.contains("tokenizer.json: there is no such file: name a tokenizer.json"), "{refused}");
    for (content, reason) in [
        ("", "not JSON"),
        ("{\"version\": \"1.0\",\n \"model\": {", "not JSON"),
        ("[1, 2]", "states no tokenizer"),
        ("{\"version\": \"1.0\"}", "states no tokenizer"),
        ("{\"model\": {\"type\": \"Unheard\"}}", "states no tokenizer"),
        (
            "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}",
            "vocabulary is empty",
        ),
    ] {
        let refused = refusal(Tokenizer::open(&folder.write("tokenizer.json", content)));
        assert!(refused.starts_with("tokenizer /") && refused.contains(reason), "{content}: {refused}");
    }
}

#[test]
fn tokenizers_of_others_give_every_id_of_the_text() {
    let folder = Folder::new("others");
    let mut value = json_of(&make("bpe", &hard_text()));
    value["truncation"] = json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    value["padding"] = json!({ "strategy": { "Fixed": 4000 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!" });
    value["model"]["dropout"] = json!(0.5);
    value["pre_tokenizer"]["add_prefix_space"] = json!(true);
    value["added_tokens"][0]["content"] = json!("</s>");
    let tokenizer = Tokenizer::open(&folder.write("other.json", &value)).unwrap();
    assert_eq!(tokenizer.kind(), "file");
    assert_eq!(tokenizer.end_of_text(), Some(TRAINED_VOCABULARY as u32 - 1));
    let ids = tokenizer.encode("The miller's daughter").unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), " The miller's daughter");
    assert_eq!(tokenizer.encode("The miller's daughter").unwrap(), ids);
}

#[test]
fn a_report_counts_bytes_and_tokens() {
    let report = tokenize_report(&Tokenizer::bytes(), ["ab", "ß", END_OF_TEXT].map(Ok)).unwrap();
    assert_eq!((report.bytes, report.tokens), (17, 5));
    assert_eq!(report.tokens_per_byte, 5.0 / 17.0);
    assert!(report.seconds >= 0.0 && report.megabytes_per_second > 0.0);
    let nothing = tokenize_report(&Tokenizer::bytes(), [Ok(""); 0]).unwrap();
    assert_eq!((nothing.tokens_per_byte, nothing.megabytes_per_second), (0.0, 0.0));
}

#[test]
fn text_comes_in_whole_characters_and_nothing_is_lost() {
    let tokenizer = Tokenizer::bytes();
    let bytes = [b"caf\xc3\xa9 \xff\xc3x".as_slice(), "\u{1f600}".as_bytes(), b"\xe2\x82"].concat();
    let ids: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte)).collect();
    let before = tokenizer.encode("a").unwrap();
    let tokens = tokenizer.into_texts();
    let mut stream = TextStream::after(&tokens, &before);
    let pushed: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(&pushed[3..6], ["", "\u{e9}", " "]);
    assert_eq!(pushed.concat() + &stream.finish().unwrap(), String::from_utf8_lossy(&bytes));
    assert!(tokens.knows(256) && !tokens.knows(257));
}

/// Bytes with special tokens before them, of which a template puts some around a text.
fn with_template(single: Value) -> Value {
    let mut json = json_of(&Tokenizer::bytes());
    let added = |(index, content): (usize, &str)| {
        json!({ "id": 257 + index, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false })
    };
    let tokens = ["<s>", "</s>", "<|im_end|>"];
    json["added_tokens"].as_array_mut().unwrap().extend(tokens.into_iter().enumerate().map(added));
    let special = |(index, content): (usize, &str)| {
        (content.to_string(), json!({ "id": content, "ids": [257 + index], "tokens": [content] }))
    };
    let special: serde_json::Map<_, _> = tokens.into_iter().enumerate().map(special).collect();
    json["post_processor"] =
        json!({ "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special });
    json
}

#[test]
fn a_template_puts_tokens_around_prompts_and_documents() {
    let folder = Folder::new("template");
    let [text, start, end] = [
        json!({ "Sequence": { "id": "A", "type_id": 0 } }),
        json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } }),
        json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } }),
    ];
    let open = |single: Value| Tokenizer::open(&folder.write("tokenizer.json", with_template(single))).unwrap();
    // The end of text is the one whose name is known best, until something says which it is.
    let tokenizer = open(json!([start, text]));
    assert_eq!(tokenizer.encode_prompt("a").unwrap(), [257, 97]);
    assert_eq!(tokenizer.encode("a").unwrap(), [97]);
    assert_eq!((tokenizer.document_start(), tokenizer.document_end()), (&[257][..], vec![256]));
    folder.write("tokenizer_config.json", json!({ "eos_token": { "content": "</s>" } }));
    let tokenizer = open(json!([start, text, end]));
    assert_eq!(tokenizer.encode_prompt("").unwrap(), [257, 258]);
    assert_eq!(tokenizer.document_end(), [258], "once");
    // What is saved in a folder says the same.
    let saved = Folder::new("template-saved");
    tokenizer.save_in(&saved.0).unwrap();
    let again = Tokenizer::open(&saved.0).unwrap();
    assert_eq!((again.document_start(), again.end_of_text()), (&[257][..], Some(258)));
    // Without a name, the id in a model's configuration.
    folder.write("tokenizer_config.json", json!({ "eos_token": null }));
    folder.write("config.json", json!({ "eos_token_id": [999, 259, 258] }));
    assert_eq!(open(json!([text])).end_of_text(), Some(259));
    assert!(
        refusal(Tokenizer::open(&folder.write("tokenizer.json", with_template(json!([start]))))).contains("template")
    );
}
