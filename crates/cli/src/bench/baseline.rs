//! Results beside those of a saved run.

use super::report::{Document, Measurement};
use gradus_train::profiler::Spread;
use gradus_train::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A smaller difference than this share is none, however steady both runs were: the machine is not that steady
/// between runs.
const SMALLEST_DIFFERENCE: f64 = 0.02;

/// How a result stands beside a saved one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// How many times as fast it is now, by the medians.
    pub ratio: f64,
    /// What to make of it.
    pub verdict: Verdict,
}

/// Whether a difference is more than the spread of the timings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Faster beyond the spread.
    Faster,
    /// Slower beyond the spread.
    Slower,
    /// Within the spread.
    Same,
}

impl Comparison {
    /// A result now beside the same one before. The middle halves of the timings must lie apart.
    pub fn of(now: &Spread, before: &Spread) -> Comparison {
        let ratio = before.median / now.median;
        let verdict = match ratio {
            _ if (ratio - 1.0).abs() < SMALLEST_DIFFERENCE => Verdict::Same,
            1.0.. if now.upper_quartile < before.lower_quartile => Verdict::Faster,
            ..1.0 if now.lower_quartile > before.upper_quartile => Verdict::Slower,
            _ => Verdict::Same,
        };
        Comparison { ratio, verdict }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} x", self.ratio)?;
        match self.verdict {
            Verdict::Faster => f.write_str(" faster"),
            Verdict::Slower => f.write_str(" SLOWER"),
            Verdict::Same => Ok(()),
        }
    }
}

/// A saved run.
pub struct Baseline(Document);

impl Baseline {
    /// Reads what `--save` wrote or `--json` printed.
    pub fn read(path: &Path) -> Result<Baseline> {
        let text = std::fs::read(path).map_err(Error::io("read", path))?;
        let document = serde_json::from_slice(&text).map_err(|error| {
            let problem = "not a saved run of `gradus bench`; make one by --save";
            Error::Config(format!("{}: {problem} ({error})", path.display()))
        })?;
        Ok(Baseline(document))
    }

    /// Why ratios to it may mean little, if they may.
    pub fn caution(&self, now: &Document) -> Option<String> {
        let (before, now) = (&self.0.machine, &now.machine);
        if before == now {
            return None;
        }
        let told = |machine: &super::machine::Machine| {
            format!("{} ({}, {} threads)", machine.processor, machine.instruction_set, machine.threads)
        };
        Some(format!("the baseline was measured on {}, this is {}", told(before), told(now)))
    }

    /// Notes in a result how it stands beside the saved one, if there is one.
    pub fn compare(&self, result: &mut Measurement) {
        let before = self.0.result(&result.name);
        result.comparison = before.map(|before| Comparison::of(&result.seconds, &before.seconds));
    }
}

/// How many results are faster, slower and neither, in one line.
pub fn summary(document: &Document) -> String {
    let count = |verdict: Verdict| {
        let verdicts = document.results.iter().filter_map(|result| result.comparison);
        verdicts.filter(|comparison| comparison.verdict == verdict).count()
    };
    let (faster, slower, same) = (count(Verdict::Faster), count(Verdict::Slower), count(Verdict::Same));
    format!("beside the baseline: {faster} faster, {slower} slower, {same} the same within the spread")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::result;
    use super::*;

    fn compared(now: [f64; 3], before: [f64; 3]) -> Comparison {
        Comparison::of(&Spread::of(now.into()), &Spread::of(before.into()))
    }

    #[test]
    fn only_what_is_beyond_the_spread_is_faster_or_slower() {
        assert_eq!(compared([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]), Comparison { ratio: 2.0, verdict: Verdict::Faster });
        assert_eq!(compared([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]), Comparison { ratio: 0.5, verdict: Verdict::Slower });
        assert_eq!(compared([1.0, 2.0, 9.0], [1.0, 3.0, 9.0]).verdict, Verdict::Same);
        assert_eq!(compared([1.0, 1.0, 1.0], [1.01, 1.01, 1.01]).verdict, Verdict::Same);
    }

    #[test]
    fn results_are_compared_by_name() {
        let mut saved = Document::new(1);
        saved.results = vec![result("a", [2.0; 3]), result("b", [1.0; 3])];
        let baseline = Baseline(saved.clone());
        let mut now = Document::new(1);
        now.results = vec![result("a", [1.0; 3]), result("b", [4.0; 3]), result("c", [1.0; 3])];
        now.results.iter_mut().for_each(|result| baseline.compare(result));
        assert_eq!(now.results[0].comparison.unwrap().to_string(), "2.00 x faster");
        assert_eq!(now.results[1].comparison.unwrap().to_string(), "0.25 x SLOWER");
        assert_eq!(now.results[2].comparison, None);
        assert_eq!(summary(&now), "beside the baseline: 1 faster, 1 slower, 0 the same within the spread");
        assert_eq!(baseline.caution(&now), None);
        now.machine.threads += 1;
        assert!(baseline.caution(&now).unwrap().contains("the baseline was measured on"));
    }

    #[test]
    fn what_is_no_saved_run_is_refused() {
        let path = std::env::temp_dir().join(format!("gradus-baseline-{}", std::process::id()));
        std::fs::write(&path, "{\"version\": 3}").unwrap();
        let problem = Baseline::read(&path).err().unwrap().to_string();
        assert!(problem.contains("not a saved run") && !problem.contains('\n'), "{problem}");
        std::fs::remove_file(&path).unwrap();
        assert!(Baseline::read(&path).err().unwrap().to_string().starts_with("cannot read"));
    }
}
