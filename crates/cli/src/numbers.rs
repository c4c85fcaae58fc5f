//! Numbers as people read them.

/// A count with its thousands set apart: 1,234,567.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in bytes: 1.5 GB.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, &["B", "KB", "MB", "GB", "TB", "PB", "EB"])
}

/// A size in bytes to three digits: 1.53 GB.
pub fn bytes_to_three_digits(number: u64) -> String {
    let mut unit = 0;
    let mut scaled = number as f64;
    const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    while scaled >= 999.5 {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = match scaled {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {}", UNITS[unit])
}

/// A number of weights or tokens: 1.5 M.
pub fn rounded(number: u64) -> String {
    scaled(number as f64, &["", "K", "M", "G", "T", "P", "E"])
}

/// A number in single precision as a person would write it.
pub fn shortest(number: f32) -> f64 {
    number.to_string().parse().expect("a number's own text")
}

fn scaled(mut number: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = if unit > 0 && number < 9.95 { 1 } else { 0 };
    format!("{number:.digits$} {}", units[unit]).trim_end().to_string()
}

/// A length of time: 45s, 1m05s, 2h03m.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The time of a step: 12.3 ms, 1.25 s, 3m20s.
pub fn short_time(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{:.1} ms", 1e3 * seconds),
        ..10.0 => format!("{seconds:.3} s"),
        ..100.0 => format!("{seconds:.1} s"),
        _ => duration(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_precision_is_written_short() {
        assert_eq!((shortest(0.1), shortest(0.95), shortest(1e-5)), (0.1, 0.95, 1e-5));
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!((count(7), count(1234), count(1_234_567)), ("7".into(), "1,234".into(), "1,234,567".into()));
        assert_eq!((bytes(0), bytes(999), bytes(1500)), ("0 B".into(), "999 B".into(), "1.5 KB".into()));
        assert_eq!((bytes(85_300_000), bytes(u64::MAX)), ("85 MB".into(), "18 EB".into()));
        assert_eq!((rounded(12), rounded(124_439_808)), ("12".into(), "124 M".into()));
        assert_eq!((duration(45.2), duration(65.0), duration(7380.0)), ("45s".into(), "1m05s".into(), "2h03m".into()));
        assert_eq!(duration(f64::NAN), "0s");
        let size = bytes_to_three_digits;
        assert_eq!((size(0), size(999), size(999_600)), ("0 B".into(), "999 B".into(), "1.00 MB".into()));
        assert_eq!((size(84_360_000), size(1_534_000_000)), ("84.4 MB".into(), "1.53 GB".into()));
        assert_eq!(
            (short_time(0.0123), short_time(1.25), short_time(200.0)),
            ("12.3 ms".into(), "1.250 s".into(), "3m20s".into())
        );
    }
}
