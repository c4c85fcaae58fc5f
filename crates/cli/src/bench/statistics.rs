//! Repeated timings, and what they say together.

use gradus_train::Result;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A timing shorter than this says more about the clock, so that short work is repeated within it.
const SHORTEST_ROUND: Duration = Duration::from_millis(2);
/// Share of the time that goes to rounds that do not count.
const WARM_UP_SHARE: f64 = 0.1;
/// Fewest timings, whatever time they take.
const FEWEST_ROUNDS: usize = 5;
/// Most timings: more would not move the median.
const MOST_ROUNDS: usize = 1000;

/// Seconds that one run of some work took, over many rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds were shorter.
    pub median: f64,
    /// A quarter of the rounds was shorter.
    pub lower_quartile: f64,
    /// A quarter of the rounds was longer.
    pub upper_quartile: f64,
    /// The shortest round.
    pub best: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Spread {
    /// What these timings say; there must be at least one.
    pub fn of(mut seconds: Vec<f64>) -> Spread {
        seconds.sort_by(f64::total_cmp);
        Spread {
            median: quantile(&seconds, 0.5),
            lower_quartile: quantile(&seconds, 0.25),
            upper_quartile: quantile(&seconds, 0.75),
            best: seconds[0],
            rounds: seconds.len(),
        }
    }

    /// Half the distance between the quartiles, as a share of the median.
    pub fn relative(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0 / self.median
    }
}

/// The value below which this share of the sorted values lies, between two neighbours if need be.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Runs work for about this long, after a warm-up. The work says how many of its seconds count.
pub fn spread_of(time: Duration, mut work: impl FnMut() -> Result<f64>) -> Result<Spread> {
    let begin = Instant::now();
    let mut runs = 0;
    while runs == 0 || begin.elapsed() < time.mul_f64(WARM_UP_SHARE) {
        work()?;
        runs += 1;
    }
    let each = begin.elapsed().as_secs_f64() / runs as f64;
    let repeats = (SHORTEST_ROUND.as_secs_f64() / each).ceil().max(1.0) as usize;
    let mut rounds = vec![];
    let begin = Instant::now();
    while rounds.len() < FEWEST_ROUNDS || (begin.elapsed() < time && rounds.len() < MOST_ROUNDS) {
        let mut seconds = 0.0;
        for _ in 0..repeats {
            seconds += work()?;
        }
        rounds.push(seconds / repeats as f64);
    }
    Ok(Spread::of(rounds))
}

/// As [`spread_of`], with the whole of each run counted.
pub fn spread_of_whole(time: Duration, mut work: impl FnMut() -> Result<()>) -> Result<Spread> {
    spread_of(time, || {
        let begin = Instant::now();
        work()?;
        Ok(begin.elapsed().as_secs_f64())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!((spread.best, spread.lower_quartile, spread.median), (1.0, 1.75, 2.5));
        assert_eq!((spread.upper_quartile, spread.rounds), (3.25, 4));
        assert_eq!(spread.relative(), 0.3);
    }

    #[test]
    fn one_timing_is_its_own_median() {
        let spread = Spread::of(vec![7.0]);
        assert_eq!(
            (spread.median, spread.lower_quartile, spread.upper_quartile, spread.relative()),
            (7.0, 7.0, 7.0, 0.0)
        );
    }

    #[test]
    fn there_are_always_a_few_rounds_and_a_warm_up() {
        let mut runs = 0;
        let slow = || {
            runs += 1;
            std::thread::sleep(SHORTEST_ROUND);
            Ok(runs as f64)
        };
        let spread = spread_of(Duration::ZERO, slow).unwrap();
        assert_eq!((spread.rounds, spread.best, spread.median), (FEWEST_ROUNDS, 2.0, 4.0));
    }

    #[test]
    fn an_error_ends_the_rounds() {
        let refused = || Err(gradus_train::Error::Config("no".into()));
        assert!(spread_of_whole(Duration::ZERO, refused).is_err());
    }
}
