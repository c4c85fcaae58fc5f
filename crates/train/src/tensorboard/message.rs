//! Protocol buffers: fields put behind each other, without allocating where there is room.

/// The message that is written.
pub type Message = Vec<u8>;

/// What follows a field's number.
const VARINT: u32 = 0;
const EIGHT_BYTES: u32 = 1;
const LENGTH: u32 = 2;
const FOUR_BYTES: u32 = 5;

fn key(out: &mut Message, field: u32, kind: u32) {
    varint(out, u64::from(field << 3 | kind));
}

fn varint(out: &mut Message, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A whole number that is not negative.
pub fn integer(out: &mut Message, field: u32, number: u64) {
    key(out, field, VARINT);
    varint(out, number);
}

/// A number in double precision.
pub fn double(out: &mut Message, field: u32, number: f64) {
    key(out, field, EIGHT_BYTES);
    out.extend_from_slice(&number.to_le_bytes());
}

/// A number in single precision.
pub fn float(out: &mut Message, field: u32, number: f32) {
    key(out, field, FOUR_BYTES);
    out.extend_from_slice(&number.to_le_bytes());
}

/// A text.
pub fn text(out: &mut Message, field: u32, text: &str) {
    nested(out, field, |out| out.extend_from_slice(text.as_bytes()));
}

/// A message within this one, or bytes. Its length stands before it, and is known after it.
pub fn nested(out: &mut Message, field: u32, write: impl FnOnce(&mut Message)) {
    key(out, field, LENGTH);
    let start = out.len();
    write(out);
    let end = out.len();
    varint(out, (end - start) as u64);
    let length_bytes = out.len() - end;
    out[start..].rotate_right(length_bytes);
}

/// A field as it is read back.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    Integer(u64),
    Double(f64),
    Float(f32),
    Bytes(&'a [u8]),
}

/// The fields of a message by their numbers: what a reader does.
#[cfg(test)]
pub fn fields(mut bytes: &[u8]) -> Vec<(u32, Field<'_>)> {
    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(length);
        *bytes = rest;
        taken
    }
    fn number(bytes: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = take(bytes, 1)[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }
    let mut fields = vec![];
    while !bytes.is_empty() {
        let key = number(&mut bytes) as u32;
        let field = match key & 7 {
            VARINT => Field::Integer(number(&mut bytes)),
            EIGHT_BYTES => Field::Double(f64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            LENGTH => {
                let length = number(&mut bytes) as usize;
                Field::Bytes(take(&mut bytes, length))
            }
            FOUR_BYTES => Field::Float(f32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap())),
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the format's own description.
    #[test]
    fn fields_are_written_as_they_are_described() {
        let mut out = vec![];
        integer(&mut out, 1, 150);
        text(&mut out, 2, "testing");
        nested(&mut out, 3, |out| integer(out, 1, 150));
        assert_eq!(out, b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01");
    }

    #[test]
    fn what_was_written_is_read_back() {
        let mut out = vec![];
        integer(&mut out, 2, u64::MAX);
        double(&mut out, 1, -1.5);
        float(&mut out, 16, f32::MIN_POSITIVE);
        // Lengths of one byte, of two and of three.
        let texts = [0, 127, 128, 20_000].map(|length| "x".repeat(length));
        texts.iter().for_each(|long| nested(&mut out, 5, |out| text(out, 1, long)));
        let read = fields(&out);
        let first = [(2, Field::Integer(u64::MAX)), (1, Field::Double(-1.5)), (16, Field::Float(f32::MIN_POSITIVE))];
        assert_eq!(read[..3], first);
        for ((number, field), long) in read[3..].iter().zip(&texts) {
            let Field::Bytes(inner) = field else { panic!("{field:?}") };
            assert_eq!((*number, fields(inner)), (5, vec![(1, Field::Bytes(long.as_bytes()))]));
        }
        assert_eq!(read.len(), 7);
    }
}
