//! How well and how fast a tokenizer encodes a text.

use super::Tokenizer;
use crate::Result;
use std::time::Instant;

/// What came of encoding texts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes of text.
    pub bytes: u64,
    /// Tokens that they became.
    pub tokens: u64,
    /// Tokens for each byte; 0 without text.
    pub tokens_per_byte: f64,
    /// Time spent encoding, without that of reading the texts.
    pub seconds: f64,
    /// Millions of bytes encoded a second; 0 without text.
    pub megabytes_per_second: f64,
}

/// Encodes texts one after the other and says what came of it.
pub fn tokenize_report<T: AsRef<str>>(
    tokenizer: &Tokenizer,
    texts: impl IntoIterator<Item = Result<T>>,
) -> Result<Report> {
    let mut report = Report::default();
    for text in texts {
        let text = text?;
        let start = Instant::now();
        report.tokens += tokenizer.encode(text.as_ref())?.len() as u64;
        report.seconds += start.elapsed().as_secs_f64();
        report.bytes += text.as_ref().len() as u64;
    }
    if report.bytes > 0 {
        report.tokens_per_byte = report.tokens as f64 / report.bytes as f64;
        report.megabytes_per_second = report.bytes as f64 / 1e6 / report.seconds;
    }
    Ok(report)
}
