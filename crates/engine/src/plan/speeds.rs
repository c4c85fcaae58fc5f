//! How long steps take beside what a machine reckons, as it was measured.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The name of what has no factor of its own.
const OTHERS: &str = "others";

/// How many times as long as reckoned the steps of each operation take. A plan follows from the machine alone unless it is
/// given these: it must not depend on the hour. As text: `matmul=1.25,others=0.9`.
#[derive(Clone, Debug, PartialEq)]
pub struct Speeds {
    factors: BTreeMap<String, f64>,
    others: f64,
}

impl Default for Speeds {
    fn default() -> Self {
        Speeds { factors: BTreeMap::new(), others: 1.0 }
    }
}

impl Speeds {
    /// From factors by operation, and that of all other operations; none, if one of them is not finite and above 0.
    pub fn new(factors: BTreeMap<String, f64>, others: f64) -> Option<Speeds> {
        let is_factor = |factor: &f64| factor.is_finite() && *factor > 0.0;
        (factors.values().all(is_factor) && is_factor(&others)).then_some(Speeds { factors, others })
    }

    /// The factor of an operation.
    pub fn factor(&self, operation: &str) -> f64 {
        self.factors.get(operation).copied().unwrap_or(self.others)
    }
}

impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.factors.iter().try_for_each(|(operation, factor)| write!(f, "{operation}={factor},"))?;
        write!(f, "{OTHERS}={}", self.others)
    }
}

impl FromStr for Speeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Speeds, String> {
        let mut factors = BTreeMap::new();
        for part in text.split(',') {
            let wrong = || format!("`{part}` is no speed; give an operation and a number above 0, as in matmul=1.25");
            let (operation, factor) = part.split_once('=').ok_or_else(wrong)?;
            factors.insert(operation.to_string(), factor.parse::<f64>().map_err(|_| wrong())?);
        }
        let others = factors.remove(OTHERS).unwrap_or(1.0);
        Speeds::new(factors, others).ok_or_else(|| "a speed is not above 0; measure it anew".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_they_are_written() {
        let speeds: Speeds = "attention=2.5,matmul=0.75,others=1.5".parse().unwrap();
        assert_eq!(speeds.to_string().parse::<Speeds>().unwrap(), speeds);
        assert_eq!((speeds.factor("matmul"), speeds.factor("sum")), (0.75, 1.5));
        assert_eq!(Speeds::default().factor("matmul"), 1.0);
        for wrong in ["", "matmul", "matmul=fast", "matmul=0", "matmul=nan", "others=-1"] {
            assert!(wrong.parse::<Speeds>().is_err(), "{wrong}");
        }
    }
}
