//! Reading JSON objects, one a line, without holding them: a string comes in parts, and what is not asked for is
//! checked and passed over.

use super::SourceFile;
use super::text_stream::TextStream;
use crate::{Error, Result};

/// How deep lists and objects may lie in one another, within the object of a line.
const DEPTH_MAX: usize = 126;

/// The objects of a file.
pub struct Json {
    stream: TextStream,
    /// The number of the line, and where it begins in the file.
    line: u64,
    line_start: u64,
    /// Whether no member of the object has been read.
    at_first_member: bool,
}

impl Json {
    pub fn open(file: &SourceFile) -> Result<Json> {
        Ok(Json { stream: TextStream::open(file)?, line: 1, line_start: 0, at_first_member: true })
    }

    /// Goes into the object of the next line that is not blank; false at the end of the file.
    pub fn begin_object(&mut self) -> Result<bool> {
        loop {
            match self.after_space()? {
                None => return Ok(false),
                Some(b'\n') => {
                    self.stream.consume(1);
                    (self.line, self.line_start) = (self.line + 1, self.stream.offset());
                }
                Some(b'{') => {
                    self.stream.consume(1);
                    self.at_first_member = true;
                    return Ok(true);
                }
                Some(b'[') if self.line == 1 => {
                    return Err(self.problem("begins a list: put one object on each line (jq -c '.[]')"));
                }
                Some(_) => return Err(self.wrong("expected an object")),
            }
        }
    }

    /// Reads the name of the object's next member, of which no more than about `bytes_max` are kept, and stops before
    /// its value. False at the end of the object, which must be that of the line.
    pub fn next_member(&mut self, name: &mut String, bytes_max: usize) -> Result<bool> {
        match self.after_space()? {
            Some(b'}') => {
                self.stream.consume(1);
                return match self.after_space()? {
                    None | Some(b'\n') => Ok(false),
                    Some(_) => Err(self.wrong("the object is followed by something")),
                };
            }
            Some(b',') if !self.at_first_member => self.stream.consume(1),
            _ if self.at_first_member => self.at_first_member = false,
            _ => return Err(self.wrong("expected , or }")),
        }
        self.name(name, bytes_max)?;
        Ok(true)
    }

    /// The first byte of the value that comes next.
    pub fn value_start(&mut self) -> Result<Option<u8>> {
        self.after_space()
    }

    /// Goes into a string, whose first byte comes next.
    pub fn begin_string(&mut self) {
        self.stream.consume(1);
    }

    /// Appends more of the string that is being read, until `text` has more than `bytes_max` bytes; true once the
    /// string has ended.
    pub fn string_part(&mut self, text: &mut String, bytes_max: usize) -> Result<bool> {
        while text.len() <= bytes_max {
            let room = bytes_max + 1 - text.len();
            let window = self.stream.window()?;
            let plain = window.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
            let taken = window.ceil_char_boundary(plain.unwrap_or(window.len()).min(room));
            text.push_str(&window[..taken]);
            let is_at_end = window.is_empty();
            self.stream.consume(taken);
            if taken > 0 {
                continue;
            }
            match self.stream.peek()? {
                Some(b'"') => {
                    self.stream.consume(1);
                    return Ok(true);
                }
                Some(b'\\') => text.push(self.escaped()?),
                _ if is_at_end => return Err(self.wrong("the file ends within a string")),
                Some(b'\n') => return Err(self.wrong("the line ends within a string")),
                _ => return Err(self.wrong("there is a control character in a string")),
            }
        }
        Ok(false)
    }

    /// Passes over a value.
    pub fn skip_value(&mut self) -> Result<()> {
        // What closes the lists and objects that the value lies in.
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.after_space()? {
                Some(b'{' | b'[') if open.len() == DEPTH_MAX => {
                    return Err(self.wrong("lists and objects lie too deep in one another"));
                }
                Some(start @ (b'{' | b'[')) => {
                    self.stream.consume(1);
                    let close = if start == b'{' { b'}' } else { b']' };
                    if self.after_space()? != Some(close) {
                        open.push(close);
                        if close == b'}' {
                            self.skip_name()?;
                        }
                        continue;
                    }
                    self.stream.consume(1);
                }
                Some(b'"') => self.skip_string()?,
                Some(b'-' | b'0'..=b'9') => self.skip_number()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.wrong("expected a value")),
            }
            // With a value, what it lies in may end too.
            loop {
                let Some(&close) = open.last() else { return Ok(()) };
                match self.after_space()? {
                    Some(b',') => {
                        self.stream.consume(1);
                        if close == b'}' {
                            self.skip_name()?;
                        }
                        break;
                    }
                    Some(byte) if byte == close => {
                        self.stream.consume(1);
                        open.pop();
                    }
                    _ => return Err(self.wrong(if close == b'}' { "expected , or }" } else { "expected , or ]" })),
                }
            }
        }
    }

    /// Passes over a word of the language.
    pub fn literal(&mut self, word: &str) -> Result<()> {
        for byte in word.bytes() {
            self.expect(byte, "expected a value")?;
        }
        Ok(())
    }

    /// What is wrong with the line.
    pub fn problem(&self, problem: impl std::fmt::Display) -> Error {
        self.stream.problem(format!("line {}: {problem}", self.line))
    }

    /// What is wrong where the reading stands.
    fn wrong(&self, reason: &str) -> Error {
        let column = self.stream.offset() - self.line_start + 1;
        self.problem(format!("column {column} is not a JSON object ({reason}): correct or remove the line"))
    }

    fn expect(&mut self, byte: u8, reason: &str) -> Result<()> {
        if self.stream.peek()? != Some(byte) {
            return Err(self.wrong(reason));
        }
        self.stream.consume(1);
        Ok(())
    }

    /// The next byte that is not space within a line.
    fn after_space(&mut self) -> Result<Option<u8>> {
        loop {
            match self.stream.peek()? {
                Some(b' ' | b'\t' | b'\r') => self.stream.consume(1),
                next => return Ok(next),
            }
        }
    }

    /// Reads a member's name and the colon after it.
    fn name(&mut self, name: &mut String, bytes_max: usize) -> Result<()> {
        name.clear();
        self.after_space()?;
        self.expect(b'"', "expected a name in quotes")?;
        if !self.string_part(name, bytes_max)? {
            self.skip_string_rest()?;
        }
        self.after_space()?;
        self.expect(b':', "expected :")
    }

    fn skip_name(&mut self) -> Result<()> {
        self.name(&mut String::new(), 0)
    }

    fn skip_string(&mut self) -> Result<()> {
        self.begin_string();
        self.skip_string_rest()
    }

    fn skip_string_rest(&mut self) -> Result<()> {
        let mut part = String::new();
        while !self.string_part(&mut part, 1 << 12)? {
            part.clear();
        }
        Ok(())
    }

    fn skip_number(&mut self) -> Result<()> {
        if self.stream.peek()? == Some(b'-') {
            self.stream.consume(1);
        }
        match self.stream.peek()? {
            Some(b'0') => self.stream.consume(1),
            _ => self.skip_digits()?,
        }
        if self.stream.peek()? == Some(b'.') {
            self.stream.consume(1);
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.stream.peek()? {
            self.stream.consume(1);
            if let Some(b'+' | b'-') = self.stream.peek()? {
                self.stream.consume(1);
            }
            self.skip_digits()?;
        }
        Ok(())
    }

    /// Passes over digits, one at least.
    fn skip_digits(&mut self) -> Result<()> {
        let start = self.stream.offset();
        while let Some(b'0'..=b'9') = self.stream.peek()? {
            self.stream.consume(1);
        }
        if self.stream.offset() == start { Err(self.wrong("expected a digit")) } else { Ok(()) }
    }

    /// The character that a backslash, which comes next, and what follows it stand for.
    fn escaped(&mut self) -> Result<char> {
        self.stream.consume(1);
        let character = match self.stream.peek()? {
            Some(byte @ (b'"' | b'\\' | b'/')) => byte as char,
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.stream.consume(1);
                return self.escaped_code();
            }
            _ => return Err(self.wrong("unknown escape")),
        };
        self.stream.consume(1);
        Ok(character)
    }

    /// The character of four digits, or of two such codes that are one character.
    fn escaped_code(&mut self) -> Result<char> {
        const LONE: &str = "half of a surrogate pair";
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or_else(|| self.wrong(LONE));
        }
        self.expect(b'\\', LONE)?;
        self.expect(b'u', LONE)?;
        match self.four_digits()? {
            second @ 0xdc00..0xe000 => {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                Ok(char::from_u32(code).expect("a pair is a character"))
            }
            _ => Err(self.wrong(LONE)),
        }
    }

    fn four_digits(&mut self) -> Result<u32> {
        let mut number = 0;
        for _ in 0..4 {
            let digit = self.stream.peek()?.and_then(|byte| (byte as char).to_digit(16));
            number = 16 * number + digit.ok_or_else(|| self.wrong("expected four hexadecimal digits"))?;
            self.stream.consume(1);
        }
        Ok(number)
    }
}
