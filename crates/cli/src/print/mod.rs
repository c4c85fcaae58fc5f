//! What is printed. A reader that has seen enough and has gone away is no error, and no reason to end a training.
//! Names, paths and texts come from outside: [`printable`] stands between them and the terminal.

mod frame;

use gradus_train::{Error, Result};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
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

/// Prints a line for people on standard error, if anyone reads it. A frame that is there goes, until it is drawn again.
pub fn note(line: impl Display) {
    let text = format!("{}\n", printable(&line.to_string()));
    let mut frame = frame::lock();
    let mut out = std::io::stderr().lock();
    let _ = frame.erase(&mut out, terminal_size().map(|(_, columns)| columns));
    let _ = out.write_all(text.as_bytes());
}

/// Draws lines at the bottom of the terminal, in place of those that were drawn there before; none: removes them.
pub fn frame(lines: &[String]) {
    let lines: Vec<String> = lines.iter().map(|line| printable(line)).collect();
    let columns = terminal_size().map(|(_, columns)| columns);
    let (mut frame, mut out) = (frame::lock(), std::io::stderr().lock());
    let _ = match lines.is_empty() {
        true => frame.erase(&mut out, columns),
        false => frame.draw(&mut out, &lines, columns),
    };
}

/// Whether standard error is a terminal on which lines can be drawn over.
pub fn draws() -> bool {
    let moves = match cfg!(windows) {
        // To ask also makes older ones understand it.
        true => console::Term::stderr().features().colors_supported(),
        false => std::env::var_os("TERM").is_none_or(|name| name != "dumb"),
    };
    std::io::stderr().is_terminal() && moves
}

/// Rows and columns of the terminal that standard error is, where it says.
pub fn terminal_size() -> Option<(usize, usize)> {
    console::Term::stderr().size_checked().map(|(rows, columns)| (rows.into(), columns.into()))
}

/// Text in which nothing steers a terminal: control characters other than ends of lines and tabs are shown as `\u{1b}`.
pub fn printable(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_harmless(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// A path as a shell takes it.
pub fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@".contains(c);
    if path.chars().all(plain) { path.into() } else { format!("'{}'", path.replace('\'', "'\\''")) }
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
