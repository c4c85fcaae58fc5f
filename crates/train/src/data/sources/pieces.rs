//! Long texts in pieces, cut where it matters least to a tokenizer.

use super::Document;

/// Bytes of a piece at most: small beside memory, large beside a line.
pub const PIECE_BYTES: usize = 1 << 18;

/// A piece of a document whose text goes on: what is before the cut. `text` is longer than a piece; what is after the
/// cut stays in it.
pub fn cut_piece(text: &mut String) -> Document {
    let rest = text.split_off(piece_end(&text.as_bytes()[..PIECE_BYTES]));
    Document { text: std::mem::replace(text, rest), continues: true }
}

/// Where the piece ends that bytes of UTF-8 begin with, the last character of which may be cut in two. The first of
/// these that there is: after a line end with no other space beside it, where no tokenizer joins what is on both sides;
/// after the last line end; before a space after something else, where words begin; between a letter and a mark of
/// Chinese, Japanese or Korean, where words end; after the last whole character.
pub fn piece_end(bytes: &[u8]) -> usize {
    let is_space = |index: usize| bytes[index].is_ascii_whitespace();
    let ends = || (1..bytes.len()).rev();
    let line_ends = || ends().filter(|&end| bytes[end - 1] == b'\n');
    let alone = line_ends().find(|&end| !is_space(end) && end >= 2 && !is_space(end - 2));
    alone
        .or_else(|| line_ends().next())
        .or_else(|| ends().find(|&end| bytes[end] == b' ' && !is_space(end - 1)))
        .or_else(|| ends().find(|&end| is_between_letter_and_mark(bytes, end)))
        .or_else(|| ends().find(|&end| is_character_start(bytes[end])))
        .unwrap_or(bytes.len())
}

/// Whether the byte begins a UTF-8 character.
fn is_character_start(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

/// Whether a letter of an alphabet that is written without spaces ends here, and a full stop or comma begins.
pub fn is_between_letter_and_mark(bytes: &[u8], end: usize) -> bool {
    let character = |from: usize| {
        let bytes = bytes.get(from..from + 3)?;
        str::from_utf8(bytes).ok().and_then(|text| text.chars().next())
    };
    let letter = end.checked_sub(3).and_then(character);
    let is_letter = |letter| matches!(letter, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}');
    let is_mark =
        |mark| matches!(mark, '\u{3001}' | '\u{3002}' | '\u{ff01}' | '\u{ff0c}' | '\u{ff1a}' | '\u{ff1b}' | '\u{ff1f}');
    letter.is_some_and(is_letter) && character(end).is_some_and(is_mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_no_token_is_cut() {
        let end = |text: &str| piece_end(text.as_bytes());
        assert_eq!(end("one\ntwo\n\nthree"), 4, "a line end alone");
        assert_eq!(end("one\n\n three"), 5, "a line end");
        assert_eq!(end("one two  three"), 7, "before a space");
        assert_eq!(end("一二三。四五"), 9, "before a mark");
        assert_eq!(end("onetwö"), 5, "a whole character");
        assert_eq!(end("é"), 2, "something, at any rate");
        assert_eq!(piece_end(&"一二三".as_bytes()[..8]), 6, "not within a character");
    }
}
