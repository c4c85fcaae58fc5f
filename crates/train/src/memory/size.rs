//! Sizes in bytes as people write and read them.

use super::{ProcessMemory, available_memory};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units, the largest first.
const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
            Some((name, unit)) if bytes / unit < 100.0 => write!(f, "{:.1} {name}", bytes / unit),
            Some((name, unit)) => write!(f, "{:.0} {name}", bytes / unit),
            None => write!(f, "{bytes} B"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    /// Reads `150MB`, `2GiB`, `1.5 gb`, `800k` or a plain number of bytes.
    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let unit = match &text[end..].trim().to_ascii_lowercase()[..] {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1_048_576.0,
            "gib" => 1_073_741_824.0,
            "tib" => 1_099_511_627_776.0,
            _ => return Err(ADVICE.into()),
        };
        let bytes = text[..end].parse::<f64>().ok().map(|number| number * unit);
        bytes.filter(|bytes| (1.0..9e18).contains(bytes)).map(|bytes| Size(bytes as u64)).ok_or_else(|| ADVICE.into())
    }
}

const ADVICE: &str = "give a size such as 150MB, 2GiB or 80% of what is free";

/// Memory to stay within, as it was stated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Budget {
    /// So many bytes.
    Bytes(Size),
    /// A share of what is free when the process begins.
    Share(f64),
}

impl Budget {
    /// So many millions of bytes.
    pub const fn megabytes(count: u64) -> Budget {
        Budget::Bytes(Size(count.saturating_mul(1_000_000)))
    }

    /// The bytes that the process may have resident in all.
    pub fn bytes(self) -> u64 {
        self.of(available_memory() + ProcessMemory::read().anonymous)
    }

    /// The bytes where so many can be had.
    pub fn of(self, available: u64) -> u64 {
        match self {
            Budget::Bytes(Size(bytes)) => bytes,
            Budget::Share(share) => (share * available as f64) as u64,
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let Some(percent) = text.trim().strip_suffix('%') else { return text.parse().map(Budget::Bytes) };
        let share = percent.trim().parse::<f64>().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
        share.map(|percent| Budget::Share(percent / 100.0)).ok_or_else(|| ADVICE.into())
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Bytes(Size(bytes)) => write!(f, "{bytes}"),
            Budget::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_form() {
        let read = |text: &str| text.parse::<Size>().unwrap().0;
        assert_eq!((read("150MB"), read("2GiB"), read(" 1.5 gb ")), (150_000_000, 2 << 30, 1_500_000_000));
        assert_eq!((read("800k"), read("123"), read("64 KiB"), read("5B")), (800_000, 123, 65536, 5));
        for wrong in ["", "MB", "-5MB", "0", "5 parsecs", "1e40GB", "80%", "."] {
            assert!(wrong.parse::<Size>().unwrap_err().contains("150MB"), "{wrong:?}");
        }
    }

    #[test]
    fn budgets_are_sizes_or_shares_of_what_is_free() {
        assert_eq!("100MB".parse(), Ok(Budget::Bytes(Size(100_000_000))));
        assert_eq!("80%".parse(), Ok(Budget::Share(0.8)));
        assert_eq!("100MB".parse(), Ok(Budget::megabytes(100)));
        let (half, whole) = (Budget::Share(0.5).bytes(), Budget::Share(1.0).bytes());
        assert!(half > 1 << 20 && half < whole, "{half} of {whole}");
        for wrong in ["0%", "101%", "-1%", "%", "some"] {
            assert!(wrong.parse::<Budget>().is_err(), "{wrong:?}");
        }
        for text in ["150000000", "80%"] {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text, "it reads back");
        }
    }

    #[test]
    fn sizes_read_well() {
        let shown = |bytes: u64| Size(bytes).to_string();
        assert_eq!((shown(17), shown(1500), shown(79_300_000)), ("17 B".into(), "1.5 KB".into(), "79.3 MB".into()));
        assert_eq!((shown(150_000_000), shown(2_500_000_000)), ("150 MB".into(), "2.5 GB".into()));
    }
}
