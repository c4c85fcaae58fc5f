//! What is printed. A reader that has seen enough and has gone away is no error, and no reason to end a training.
//! Names, paths and texts come from outside: [`printable`] stands between them and the terminal.

use gradus_train::{Error, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Prints text for people on standard output.
pub fn text(text: impl AsRef<str>) -> Result<()> {
    out(printable(text.as_ref()))
}

/// Prints on standard output what programs read, byte for byte.
pub fn out(text: impl AsRef<[u8]>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("write", Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Prints a line for people on standard error, if anyone reads it.
pub fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", printable(&line.to_string()));
}

/// Text in which nothing steers a terminal: control characters other than ends of lines and tabs are shown as `\u{1b}`.
pub fn printable(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_harmless(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_steer_the_terminal() {
        assert_eq!(printable("one\n\ttwo\u{1b}[2J\r\u{7}\u{9b}1m"), "one\n\ttwo\\u{1b}[2J\\r\\u{7}\\u{9b}1m");
        assert_eq!(printable("naïve 日本 █ ▇"), "naïve 日本 █ ▇");
    }
}
