//! How messages follow each other in an event file: length, its checksum, the message, its checksum.

/// What is added to a checksum once it is rotated: that of bytes which hold checksums would say little.
const MASK: u32 = 0xa282_ead8;
/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

/// Adds the message that `write` puts behind what it is given, as a record. Allocates nothing where there is room.
pub fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 12]);
    write(out);
    let length = (out.len() - start - 12) as u64;
    out[start..start + 8].copy_from_slice(&length.to_le_bytes());
    let of_length = masked(crc32c(&length.to_le_bytes()));
    out[start + 8..start + 12].copy_from_slice(&of_length.to_le_bytes());
    let of_message = masked(crc32c(&out[start + 12..]));
    out.extend_from_slice(&of_message.to_le_bytes());
}

fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(MASK)
}

/// The checksum of Castagnoli, which is not the one of zip files.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ (sum >> 8))
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u32, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

/// The messages of whole records, with their checksums checked: what a reader does.
#[cfg(test)]
pub fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut messages = vec![];
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(number(&bytes[8..12]), masked(crc32c(&bytes[..8])), "of the length");
        let message = &bytes[12..12 + length];
        assert_eq!(number(&bytes[12 + length..16 + length]), masked(crc32c(message)), "of the message");
        messages.push(message);
        bytes = &bytes[16 + length..];
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the CRC catalogue, and the examples of RFC 3720.
    #[test]
    fn checksums_are_those_that_are_known() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(b""), 0);
    }

    /// The first record of every file of TensorFlow 2, as its writer has it.
    #[test]
    fn a_record_is_that_of_others() {
        let mut out = vec![];
        append(&mut out, |out| out.extend_from_slice(b"\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0dbrain.Event:2"));
        assert_eq!(out[..8], 24u64.to_le_bytes());
        // Of the length 24, by TensorFlow.
        assert_eq!(out[8..12], [0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(messages(&out), [&out[12..out.len() - 4]]);
        append(&mut out, |out| out.push(7));
        assert_eq!(messages(&out).len(), 2);
    }
}
