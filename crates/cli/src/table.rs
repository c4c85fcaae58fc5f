//! Lines of columns, and bars, as reports have them.

use std::fmt::Write;

/// Characters of the longest bar.
const BAR: f64 = 32.0;

/// Adds a line, without blanks at its end.
pub fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a text takes what is written");
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

/// A bar as long as this part of a whole.
pub fn bar(part: f64, whole: f64) -> String {
    "▇".repeat((BAR * part / whole.max(f64::MIN_POSITIVE)).round() as usize)
}
