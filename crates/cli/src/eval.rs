//! `gradus eval`.

use crate::args::EvalArgs;
use crate::library;
use crate::numbers::count;
use crate::{defaults, folders, print};
use gradus_train::Result;
use gradus_train::evaluate::Evaluation;
use serde_json::json;

/// Measures a model on text and prints loss, perplexity and bits per byte.
pub fn run(args: &EvalArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    let evaluation = library::evaluate(&folder, args, args.threads.unwrap_or_else(defaults::threads))?;
    let Evaluation { loss, perplexity, bits_per_byte, tokens, bytes } = evaluation;
    if args.json {
        return print::out(format!("{}\n", json!(evaluation)));
    }
    let (tokens, bytes) = (count(tokens), count(bytes));
    print::text(format!(
        "loss           {loss:.4}\n\
         perplexity     {perplexity:.3}\n\
         bits per byte  {bits_per_byte:.4}\n\
         measured on    {tokens} tokens of {bytes} bytes\n"
    ))
}
