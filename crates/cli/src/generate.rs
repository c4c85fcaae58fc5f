//! `gradus generate`.

use crate::args::GenerateArgs;
use crate::print::printable;
use crate::{defaults, folders, library, print};
use gradus_train::generate::Generator;
use gradus_train::{Error, Result};
use std::io::{IsTerminal, Read, stdin, stdout};
use std::path::Path;

/// The longest prompt that is read: more than any context takes.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Writes the prompt and what the model makes of it as it comes, one text after another.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    Generator::check_count(args.count)?;
    let prompt = prompt(args)?;
    let mut texts = Texts::new(&prompt, args.count);
    let threads = args.threads.unwrap_or_else(defaults::threads);
    library::generate(&folder, args, &prompt, threads, &mut |number, text, ends| {
        texts.hear(number, text, ends).into_iter().try_for_each(print::out)
    })
}

/// The prompt that is given, or what standard input holds.
fn prompt(args: &GenerateArgs) -> Result<String> {
    match args.prompt.as_deref() {
        Some("-") => read_prompt(stdin()),
        None if !stdin().is_terminal() => read_prompt(stdin()),
        given => Ok(given.unwrap_or_default().to_string()),
    }
}

/// All that a reader has, but for one line end at its end.
fn read_prompt(reader: impl Read) -> Result<String> {
    let mut bytes = vec![];
    let read = reader.take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(Error::io("read", Path::new("standard input")))?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        let limit = PROMPT_BYTES_MAX >> 20;
        return Err(Error::Config(format!(
            "the prompt on standard input is longer than {limit} MiB; give a shorter one"
        )));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Error::Config(format!("the prompt on standard input is not UTF-8 at byte {place}; convert it first"))
    })?;
    if text.ends_with('\n') {
        text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
    }
    Ok(text)
}

/// Texts that are written at the same time and shown one after another: the first that has not ended as it comes.
struct Texts<'a> {
    prompt: &'a str,
    /// What was written to each and not shown yet.
    waiting: Vec<String>,
    ended: Vec<bool>,
    /// The text that is shown, and whether it was begun.
    shown: usize,
    begun: bool,
}

impl<'a> Texts<'a> {
    fn new(prompt: &'a str, count: usize) -> Texts<'a> {
        Texts { prompt, waiting: vec![String::new(); count], ended: vec![false; count], shown: 0, begun: false }
    }

    /// What is to be shown now that more was written to a text.
    fn hear(&mut self, number: usize, text: &str, ends: bool) -> Vec<String> {
        self.waiting[number].push_str(text);
        self.ended[number] |= ends;
        let mut parts = vec![];
        while let Some(waiting) = self.waiting.get_mut(self.shown) {
            let text = std::mem::take(waiting);
            if !self.begun {
                parts.push(shown(self.heading() + self.prompt));
                self.begun = true;
            }
            parts.push(shown(text));
            if !self.ended[self.shown] {
                break;
            }
            parts.push("\n".to_string());
            (self.shown, self.begun) = (self.shown + 1, false);
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    fn heading(&self) -> String {
        let space = if self.shown > 0 { "\n" } else { "" };
        match self.waiting.len() {
            1 => String::new(),
            count => format!("{space}--- {} of {count} ---\n", self.shown + 1),
        }
    }
}

/// Text as it goes out: on a terminal without what would steer it.
fn shown(text: String) -> String {
    if stdout().is_terminal() { printable(&text) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_come_together_are_shown_one_after_another() {
        let mut texts = Texts::new("P", 3);
        let mut shown = |number, text: &str, ends| texts.hear(number, text, ends).concat();
        assert_eq!(shown(0, "a", false), "--- 1 of 3 ---\nPa");
        assert_eq!(shown(1, "b", false), "");
        assert_eq!(shown(2, "c", true), "");
        assert_eq!(shown(0, "A", false), "A", "as it comes");
        assert_eq!(shown(0, "", true), "\n\n--- 2 of 3 ---\nPb");
        assert_eq!(shown(1, "B", false), "B");
        assert_eq!(shown(1, "", true), "\n\n--- 3 of 3 ---\nPc\n");
        assert_eq!(Texts::new("P", 1).hear(0, "", true).concat(), "P\n");
    }

    #[test]
    fn a_prompt_is_read_to_its_end_without_the_last_line_end() {
        let read = |bytes: &[u8]| read_prompt(bytes).map_err(|error| error.to_string());
        assert_eq!(read(b"one\ntwo\n\n").unwrap(), "one\ntwo\n");
        assert_eq!(read(b"one\r\n").unwrap(), "one");
        assert_eq!(read(b"").unwrap(), "");
        assert!(read(b"ab\xff").unwrap_err().contains("not UTF-8 at byte 2"));
        assert!(read_prompt(std::io::repeat(b'a')).unwrap_err().to_string().contains("longer than 16 MiB"));
    }
}
