//! A few lines at the bottom of the terminal that are drawn over and over. What else is printed comes above them.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

static FRAME: Mutex<Frame> = Mutex::new(Frame { widths: vec![] });

/// What is drawn, by the columns of each line. The cursor stands at the beginning of the line below.
pub struct Frame {
    widths: Vec<usize>,
}

/// Whoever has it is the only one who writes to the terminal.
pub fn lock() -> MutexGuard<'static, Frame> {
    FRAME.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Frame {
    /// Draws these lines in place of those that are there. They must be narrower than the terminal.
    pub fn draw(&mut self, out: &mut impl Write, lines: &[String], columns: Option<usize>) -> io::Result<()> {
        let mut text = self.to_its_start(columns);
        for line in lines {
            // The rest of a line goes after what is new is there, so that nothing flickers.
            text += &format!("{line}\x1b[K\n");
        }
        text += "\x1b[J";
        self.widths = lines.iter().map(|line| line.chars().count()).collect();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }

    /// Removes what is drawn.
    pub fn erase(&mut self, out: &mut impl Write, columns: Option<usize>) -> io::Result<()> {
        if self.widths.is_empty() {
            return Ok(());
        }
        let text = self.to_its_start(columns) + "\x1b[J";
        self.widths.clear();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }

    /// Moves to where it begins. A terminal that has become narrower since shows a line in several rows.
    fn to_its_start(&self, columns: Option<usize>) -> String {
        let rows_of =
            |width: &usize| columns.filter(|columns| *columns > 0).map_or(1, |all| width.div_ceil(all).max(1));
        match self.widths.iter().map(rows_of).sum::<usize>() {
            0 => String::new(),
            rows => format!("\r\x1b[{rows}A"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(frame: &mut Frame, lines: &[&str], columns: usize) -> String {
        let mut out = vec![];
        let lines: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        frame.draw(&mut out, &lines, Some(columns)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_frame_replaces_the_one_before() {
        let mut frame = Frame { widths: vec![] };
        assert_eq!(drawn(&mut frame, &["one", "two"], 80), "one\x1b[K\ntwo\x1b[K\n\x1b[J");
        assert_eq!(drawn(&mut frame, &["three"], 80), "\r\x1b[2Athree\x1b[K\n\x1b[J");
        let mut out = vec![];
        frame.erase(&mut out, Some(80)).unwrap();
        frame.erase(&mut out, Some(80)).unwrap();
        assert_eq!(out, b"\r\x1b[1A\x1b[J", "once");
    }

    #[test]
    fn a_terminal_that_became_narrower_shows_more_rows() {
        let mut frame = Frame { widths: vec![] };
        drawn(&mut frame, &[&"█".repeat(79), "", "short"], 80);
        assert!(drawn(&mut frame, &["next"], 30).starts_with("\r\x1b[5A"), "3 rows, 1 and 1");
    }
}
