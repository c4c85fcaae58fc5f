//! `gradus eval`.

use crate::args::EvalArgs;
use crate::library;
use crate::numbers::count;
use crate::{defaults, folders};
use gradus_train::Result;
use gradus_train::evaluate::Evaluation;
use serde_json::json;

/// Measures a model on text and prints loss, perplexity and bits per byte.
pub fn run(args: &EvalArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    let evaluation = library::evaluate(&folder, args, args.threads.unwrap_or_else(defaults::threads))?;
    let Evaluation { loss, perplexity, bits_per_byte, tokens, bytes } = evaluation;
    if args.json {
        println!("{}", json!(evaluation));
    } else {
        println!("loss           {loss:.4}");
        println!("perplexity     {perplexity:.3}");
        println!("bits per byte  {bits_per_byte:.4}");
        println!("measured on    {} tokens of {} bytes", count(tokens), count(bytes));
    }
    Ok(())
}
