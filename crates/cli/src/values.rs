//! Values of options that are more than a number or a name: durations, shares, sizes.

use std::str::FromStr;
use std::time::Duration;

/// A length of time, written as in `90s`, `10m`, `1h30m`; a plain number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub f64);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        let total = match text.parse::<f64>() {
            Ok(seconds) => Some(seconds),
            Err(_) => sum_of_parts(text),
        };
        let usable = total.filter(|seconds| *seconds > 0.0 && Duration::try_from_secs_f64(*seconds).is_ok());
        usable.map(Seconds).ok_or_else(|| "give a time such as 90s, 10m or 1h30m".into())
    }
}

/// The seconds of a text such as `1h30m`: numbers each with a unit, from long units to short ones.
fn sum_of_parts(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text;
    let mut last_unit = f64::INFINITY;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = match rest[end..].chars().next()? {
            'd' => 86_400.0,
            'h' => 3_600.0,
            'm' => 60.0,
            's' => 1.0,
            _ => return None,
        };
        if unit >= last_unit {
            return None;
        }
        total += rest[..end].parse::<f64>().ok()? * unit;
        (rest, last_unit) = (&rest[end + 1..], unit);
    }
    Some(total)
}

/// A whole number from 1.
pub fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "give a whole number of at least 1".into())
}

/// A number above 0.
pub fn positive_number(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "give a number above 0")
}

/// A number from 0.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "give a number of at least 0")
}

/// A share that is not the whole.
pub fn fraction(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..1.0).contains(&number), "give a number of at least 0 and below 1")
}

/// A share that is not nothing.
pub fn share(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0 && number <= 1.0, "give a number above 0 and at most 1")
}

fn number(text: &str, fits: impl Fn(f64) -> bool, advice: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && fits(*number)).ok_or_else(|| advice.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_form() {
        let seconds = |text: &str| text.parse::<Seconds>().map(|seconds| seconds.0);
        assert_eq!(seconds("90s"), Ok(90.0));
        assert_eq!(seconds("10m"), Ok(600.0));
        assert_eq!(seconds("1h30m"), Ok(5400.0));
        assert_eq!(seconds("1d1s"), Ok(86_401.0));
        assert_eq!(seconds("1.5h"), Ok(5400.0));
        assert_eq!(seconds("45"), Ok(45.0));
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "0", "0s", "-5", "m", "10x", "30m1h", "1h30", "5m5m", "inf", "NaN", "1e300", "..s", "10m "] {
            assert!(text.parse::<Seconds>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_have_their_ranges() {
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("1.5").is_err());
        assert_eq!(positive("12"), Ok(12));
        assert!(positive_number("0").is_err() && positive_number("inf").is_err());
        assert_eq!(fraction("0"), Ok(0.0));
        assert!(fraction("1").is_err() && not_negative("-0.1").is_err());
        assert_eq!(share("1"), Ok(1.0));
        assert!(share("0").is_err() && share("NaN").is_err());
    }
}
