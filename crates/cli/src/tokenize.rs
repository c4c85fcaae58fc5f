//! `gradus tokenize`.

use crate::args::TokenizeArgs;
use crate::library;
use crate::numbers::count;
use crate::print;
use gradus_train::Result;
use gradus_train::tokenizer::Report;
use serde_json::json;

/// Tokenizes text and prints what came of it and how fast.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let (tokenizer, report) = library::tokenize(args)?;
    let Report { bytes, tokens, tokens_per_byte, seconds, megabytes_per_second } = report;
    let vocabulary = tokenizer.vocabulary();
    if args.json {
        let object = json!({
            "vocabulary": vocabulary, "bytes": bytes, "tokens": tokens, "tokens_per_byte": tokens_per_byte,
            "seconds": seconds, "megabytes_per_second": megabytes_per_second,
        });
        return print::out(format!("{object}\n"));
    }
    let asked = args.vocab_size.filter(|asked| *asked > vocabulary);
    let fewer = asked.map_or(String::new(), |asked| format!(" (the text has no pairs for {})", count(asked as u64)));
    let (kind, vocabulary, bytes, tokens) = (tokenizer.kind(), count(vocabulary as u64), count(bytes), count(tokens));
    let saved = args.out.as_ref().map_or(String::new(), |path| format!("saved       {}\n", path.display()));
    print::text(format!(
        "tokenizer   {kind}, {vocabulary} tokens{fewer}\n\
         text        {bytes} bytes, {tokens} tokens, {tokens_per_byte:.3} tokens a byte\n\
         speed       {megabytes_per_second:.1} MB/s\n{saved}"
    ))
}
