//! Options that turn out to have no effect once the text is read.

use crate::place::{Place, SMALL};

const TEXT: &str = "The quick brown fox jumps over the lazy dog.\n";

#[test]
fn a_vocabulary_that_is_not_there_is_said() {
    let place = Place::new("asked");
    place.write("good.txt", TEXT.repeat(100));
    let train = |options: &str, out: &str| {
        let small = SMALL.replace("--tokenizer byte", options);
        place.printed(&format!("train good.txt {small} --steps 1 --out {out}")).1
    };
    let told = train("--vocab-size 5000", "bpe");
    assert!(told.contains("the text has pairs for ") && told.contains(" tokens, not for 5000"), "{told}");
    let told = train("--tokenizer char --vocab-size 100", "char");
    assert!(told.contains("warning: --vocab-size 100 has no effect but to make the model larger"), "{told}");
    let told = train("--tokenizer char", "usual");
    assert!(!told.contains("warning") && !told.contains("vocab"), "{told}");
    let told = place.refused("train good.txt --tokenizer char --vocab-size 10 --sequence 16");
    assert!(told.contains("--vocab-size 10 is less than the 30 tokens of --tokenizer char; raise it"), "{told}");
    let told = place.refused("tokenize good.txt --tokenizer byte --vocab-size 300");
    assert!(told.contains("--vocab-size has no effect"), "{told}");
    let (report, _) = place.printed("tokenize good.txt --vocab-size 5000");
    assert!(report.contains(" tokens (the text has no pairs for 5,000)"), "{report}");
}

#[test]
fn a_field_of_plain_text_is_refused() {
    let place = Place::new("field");
    place.write("good.txt", TEXT.repeat(100));
    place.write("good.jsonl", "{\"body\": \"The quick brown fox jumps over the lazy dog.\"}\n".repeat(40));
    for line in ["train good.txt --text-field body", "tokenize good.txt --text-field body"] {
        let told = place.refused(line);
        assert!(told.contains("is plain text, and --text-field names a field of JSON or Parquet records"), "{told}");
    }
    place.printed("tokenize good.txt good.jsonl --text-field body");
}
