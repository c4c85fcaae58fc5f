//! `gradus eval`.

use crate::args::EvalArgs;
use crate::library::{self, Evaluation};
use crate::numbers::count;
use crate::{defaults, folders};
use gradus_train::Result;
use serde_json::json;

/// Measures a model on text and prints loss, perplexity and bits per byte.
pub fn run(args: &EvalArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    let evaluation = library::evaluate(&folder, args, args.threads.unwrap_or_else(defaults::threads))?;
    let Evaluation { loss, tokens, bytes } = evaluation;
    let (perplexity, bits_per_byte) = (loss.exp(), bits_per_byte(&evaluation));
    if args.json {
        let object = json!({
            "loss": loss, "perplexity": perplexity, "bits_per_byte": bits_per_byte, "tokens": tokens, "bytes": bytes,
        });
        println!("{object}");
    } else {
        println!("loss           {loss:.4}");
        println!("perplexity     {perplexity:.3}");
        println!("bits per byte  {bits_per_byte:.4}");
        println!("measured on    {} tokens of {} bytes", count(tokens), count(bytes));
    }
    Ok(())
}

fn bits_per_byte(evaluation: &Evaluation) -> f64 {
    evaluation.loss * evaluation.tokens as f64 / evaluation.bytes as f64 / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_knows_nothing_needs_eight_bits_a_byte() {
        let evaluation = Evaluation { loss: 256f64.ln(), tokens: 1000, bytes: 1000 };
        assert!((bits_per_byte(&evaluation) - 8.0).abs() < 1e-12);
    }
}
