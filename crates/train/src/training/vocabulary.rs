//! Whether the vocabulary that was asked for is the one that there is.

use super::watched::Watched;
use crate::config::{TokenizerKind, TrainConfig};
use crate::run::Event;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Refuses room for fewer tokens than there are, and says so where there are fewer than asked for.
pub(super) fn check(config: &TrainConfig, tokenizer: &Tokenizer, observer: &Watched) -> Result<()> {
    let (there, asked) = (tokenizer.vocabulary(), config.vocab_size);
    if asked == 0 || config.init.is_some() {
        return Ok(());
    }
    match &config.tokenizer {
        TokenizerKind::Bpe if there < asked => {
            let text =
                format!("the text has pairs for {there} tokens, not for {asked}: the vocabulary is as large as that");
            observer.event(&Event::Note(&text));
        }
        TokenizerKind::Bpe => {}
        kind if there > asked => {
            return Err(Error::Config(format!(
                "`settings.vocab_size` {asked} is less than the {there} tokens of `settings.tokenizer` {kind}; raise it, or leave it out"
            )));
        }
        kind if there < asked => {
            let text = format!(
                "`settings.vocab_size` {asked} has no effect but to make the model larger: `settings.tokenizer` {kind} has {there} tokens"
            );
            observer.event(&Event::Warning(&text));
        }
        _ => {}
    }
    Ok(())
}
