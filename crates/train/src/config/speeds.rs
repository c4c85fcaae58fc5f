//! Speeds that plans go by, as they were measured.

use gradus_engine::plan::Speeds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Speeds that plans go by instead of those of a usual machine. Stated by the file that `gradus profile --save-speeds` writes, and
/// kept as they are in it: a run needs nothing but its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MeasuredSpeeds(pub Speeds);

/// More than a file of speeds has.
const MOST_BYTES: u64 = 1 << 20;

/// What is in a file of speeds.
#[derive(Serialize, Deserialize)]
struct SpeedsFile {
    /// How many times as long as reckoned each operation takes, and all others.
    speeds: BTreeMap<String, f64>,
}

impl MeasuredSpeeds {
    /// From what operations took beside what was reckoned, in seconds.
    pub fn of(measured: impl IntoIterator<Item = (String, f64, f64)>) -> Option<MeasuredSpeeds> {
        let (mut factors, mut all) = (BTreeMap::new(), (0.0, 0.0));
        for (operation, took, reckoned) in measured {
            all = (all.0 + took, all.1 + reckoned);
            factors.insert(operation, took / reckoned);
        }
        Speeds::new(factors, all.0 / all.1).map(MeasuredSpeeds)
    }

    /// The text of a file of them.
    pub fn to_json(&self) -> String {
        let pairs = self.to_string();
        let pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
        let speeds =
            pairs.map(|(name, factor)| (name.to_string(), factor.parse().expect("a number's own text"))).collect();
        serde_json::to_string_pretty(&SpeedsFile { speeds }).expect("plain numbers") + "\n"
    }

    fn read(path: &Path) -> Result<MeasuredSpeeds, String> {
        let advice = "make it with `gradus profile --save-speeds FILE`";
        let about = std::fs::metadata(path).map_err(|error| format!("cannot read it ({error}); {advice}"))?;
        if !about.is_file() || about.len() > MOST_BYTES {
            return Err(format!("it holds no speeds; {advice}"));
        }
        let text = std::fs::read(path).map_err(|error| format!("cannot read it ({error}); {advice}"))?;
        let SpeedsFile { speeds } =
            serde_json::from_slice(&text).map_err(|_| format!("it holds no speeds; {advice}"))?;
        let pairs: Vec<String> = speeds.iter().map(|(name, factor)| format!("{name}={factor}")).collect();
        Ok(MeasuredSpeeds(pairs.join(",").parse()?))
    }
}

impl fmt::Display for MeasuredSpeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MeasuredSpeeds {
    type Err = String;

    fn from_str(text: &str) -> Result<MeasuredSpeeds, String> {
        match Path::new(text).is_file() || !text.contains('=') {
            true => MeasuredSpeeds::read(Path::new(text)),
            false => text.parse().map(MeasuredSpeeds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_read_from_its_file_and_kept_as_text() {
        let measured = [("matmul", 3.0, 2.0), ("sum", 0.5, 1.0)];
        let speeds = MeasuredSpeeds::of(measured.map(|(name, took, reckoned)| (name.into(), took, reckoned))).unwrap();
        assert_eq!(speeds.to_string(), format!("matmul=1.5,sum=0.5,others={}", 3.5 / 3.0));
        let path = std::env::temp_dir().join(format!("gradus-speeds-{}", std::process::id()));
        std::fs::write(&path, speeds.to_json()).unwrap();
        assert_eq!(path.to_str().unwrap().parse(), Ok(speeds.clone()));
        assert_eq!(speeds.to_string().parse(), Ok(speeds));
        std::fs::write(&path, "{}").unwrap();
        let problem = path.to_str().unwrap().parse::<MeasuredSpeeds>().unwrap_err();
        assert!(problem.contains("--save-speeds"), "{problem}");
        std::fs::remove_file(&path).unwrap();
        assert!(path.to_str().unwrap().parse::<MeasuredSpeeds>().unwrap_err().starts_with("cannot read it"));
        assert_eq!(MeasuredSpeeds::of([]), None);
    }
}
