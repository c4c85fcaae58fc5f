//! What is printed. A reader that has seen enough and has gone away is no error, and no reason to end a training.

use gradus_train::{Error, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Prints on standard output what was asked for.
pub fn out(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("write", Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard error, if anyone reads it.
pub fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
