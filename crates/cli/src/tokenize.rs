//! `gradus tokenize`.

use crate::args::TokenizeArgs;
use crate::library::{self, Tokenized};
use crate::numbers::count;
use gradus_train::Result;
use serde_json::json;

/// Tokenises text and prints what came of it and how fast.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let tokenized = library::tokenize(args)?;
    let Tokenized { vocabulary, bytes, tokens, seconds } = tokenized;
    let bytes_per_token = bytes as f64 / tokens.max(1) as f64;
    let megabytes_per_second = bytes as f64 / 1e6 / seconds.max(f64::MIN_POSITIVE);
    if args.json {
        let object = json!({
            "vocabulary": vocabulary, "bytes": bytes, "tokens": tokens, "bytes_per_token": bytes_per_token,
            "seconds": seconds, "megabytes_per_second": megabytes_per_second,
        });
        println!("{object}");
        return Ok(());
    }
    println!("tokenizer   {}, {} tokens", args.tokenizer, count(vocabulary as u64));
    println!("text        {} bytes, {} tokens, {bytes_per_token:.3} bytes a token", count(bytes), count(tokens));
    println!("speed       {megabytes_per_second:.1} MB/s");
    if let Some(path) = &args.out {
        println!("saved       {}", path.display());
    }
    Ok(())
}
