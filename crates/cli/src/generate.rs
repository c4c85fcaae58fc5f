//! `gradus generate`.

use crate::args::GenerateArgs;
use crate::terminal::printable;
use crate::{defaults, folders, library, print};
use gradus_train::Result;
use std::io::IsTerminal;

/// Writes the prompt and what the model makes of it, once for each text.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    let texts = library::generate(&folder, args, args.threads.unwrap_or_else(defaults::threads))?;
    for (index, text) in texts.iter().enumerate() {
        if texts.len() > 1 {
            let space = if index > 0 { "\n" } else { "" };
            print::out(format!("{space}--- {} of {} ---\n", index + 1, texts.len()))?;
        }
        let text = if std::io::stdout().is_terminal() { printable(text) } else { text.clone() };
        print::out(format!("{}{text}\n", args.prompt))?;
    }
    Ok(())
}
