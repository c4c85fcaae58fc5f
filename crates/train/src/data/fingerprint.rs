//! A number that tells whether something is still what it was.

use super::mix;

/// Gathers bytes and numbers into one number that changes when any of them does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of nothing yet.
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    /// With a number more.
    pub fn number(self, number: u64) -> Fingerprint {
        Fingerprint(mix(self.0 ^ mix(number)))
    }

    /// With bytes more. Their length counts, so that "ab", "c" is not "a", "bc".
    pub fn bytes(self, bytes: &[u8]) -> Fingerprint {
        bytes.chunks(8).fold(self.number(bytes.len() as u64), |print, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            print.number(u64::from_le_bytes(word))
        })
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_boundaries_count() {
        let of = |parts: &[&str]| parts.iter().fold(Fingerprint::new(), |print, part| print.bytes(part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab", "c"]), of(&["c", "ab"]));
        assert_ne!(of(&["a\0"]), of(&["a"]));
    }
}
