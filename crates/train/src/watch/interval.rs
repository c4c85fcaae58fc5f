//! How often the health of gradients is measured.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Steps between two measurements, where the cost allows.
const USUAL_STEPS: u64 = 10;
/// What measuring may add to the time of steps, by prediction.
const SHARE_MAX: f64 = 0.008;
/// However dear, it is measured so often: it moves fewer bytes than any step does, so that even then it adds less than one part
/// in a hundred.
const STEPS_MAX: u64 = 100;

/// How often the health of gradients is measured: after the first step, and then every so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum HealthInterval {
    /// As often as costs less than one part in a hundred of the steps, every 10 at most; never, where the memory has no room
    /// for it.
    #[default]
    Auto,
    /// Every so many steps.
    Steps(u64),
    /// Never; nothing is computed for it.
    Off,
}

impl HealthInterval {
    /// The steps between measurements of a step that takes so many seconds, and so many more when it is measured, as
    /// predicted; 0: none.
    pub fn steps(self, step_seconds: f64, more_seconds: f64) -> u64 {
        match self {
            HealthInterval::Off => 0,
            HealthInterval::Steps(steps) => steps,
            HealthInterval::Auto => {
                let needed = (more_seconds / (SHARE_MAX * step_seconds)).ceil();
                // Not a number where nothing is predicted.
                (needed as u64).clamp(USUAL_STEPS, STEPS_MAX)
            }
        }
    }
}

impl fmt::Display for HealthInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HealthInterval::Auto => f.write_str("auto"),
            HealthInterval::Steps(steps) => write!(f, "{steps}"),
            HealthInterval::Off => f.write_str("off"),
        }
    }
}

impl FromStr for HealthInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<HealthInterval, String> {
        match text {
            "auto" => Ok(HealthInterval::Auto),
            "off" => Ok(HealthInterval::Off),
            _ => match text.parse() {
                Ok(0) | Err(_) => Err("give a number of steps from 1 up, auto or off".into()),
                Ok(steps) => Ok(HealthInterval::Steps(steps)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_measured_as_often_as_costs_little() {
        let auto = |step, more| HealthInterval::Auto.steps(step, more);
        assert_eq!(auto(1.0, 0.02), 10);
        assert_eq!(auto(1.0, 0.2), 25, "25 steps of which one takes a fifth longer: 0.8 %");
        assert_eq!((auto(1e-6, 1.0), auto(0.0, 0.0)), (100, 10));
        assert_eq!((HealthInterval::Steps(3).steps(1.0, 9.0), HealthInterval::Off.steps(1.0, 0.0)), (3, 0));
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in ["auto", "off", "25"] {
            assert_eq!(text.parse::<HealthInterval>().unwrap().to_string(), text);
        }
        for text in ["0", "-1", "often", ""] {
            assert!(text.parse::<HealthInterval>().unwrap_err().contains("steps"), "{text}");
        }
    }
}
