//! Repeated timings of some work, and what they say together.

use crate::Result;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A timing shorter than this says more about the clock, so that short work is repeated within it.
const SHORTEST_ROUND: Duration = Duration::from_millis(2);
/// Share of a stated time that goes to rounds that do not count.
const WARM_UP_SHARE: f64 = 0.1;
/// Fewest timings in a stated time, whatever time they take.
const FEWEST_ROUNDS: usize = 5;
/// Most timings in a stated time: more would not move the median.
const MOST_ROUNDS: usize = 1000;

/// How some work is timed: rounds that do not count, then rounds that do.
///
/// ```
/// use gradus_train::profiler::Benchmark;
///
/// let mut numbers = vec![0.0f32; 1000];
/// let spread = Benchmark::rounds(2, 10).run(|| {
///     numbers.iter_mut().for_each(|x| *x = (*x + 1.0).sqrt());
///     Ok(())
/// })?;
/// assert!(spread.rounds == 10 && spread.best <= spread.mean);
/// println!("{:.1} µs ± {:.1}, {:.2e} numbers/s", 1e6 * spread.mean, 1e6 * spread.deviation, spread.throughput(1000.0));
/// # Ok::<(), gradus_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    length: Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Rounds { warm_up: usize, count: usize },
    Time(Duration),
}

impl Benchmark {
    /// So many rounds to warm up, and so many that count, one at least; each is one run of the work.
    pub fn rounds(warm_up: usize, count: usize) -> Benchmark {
        Benchmark { length: Length::Rounds { warm_up, count: count.max(1) } }
    }

    /// As many rounds as take about this long, after a tenth of it to warm up. Work that takes less than 2 ms is run several
    /// times a round.
    pub fn lasting(time: Duration) -> Benchmark {
        Benchmark { length: Length::Time(time) }
    }

    /// Times the work, whole.
    pub fn run(&self, mut work: impl FnMut() -> Result<()>) -> Result<Spread> {
        self.run_counted(|| {
            let begin = Instant::now();
            work()?;
            Ok(begin.elapsed().as_secs_f64())
        })
    }

    /// Times work that says itself how many of its seconds count.
    pub fn run_counted(&self, mut work: impl FnMut() -> Result<f64>) -> Result<Spread> {
        match self.length {
            Length::Rounds { warm_up, count } => {
                for _ in 0..warm_up {
                    work()?;
                }
                Ok(Spread::of((0..count).map(|_| work()).collect::<Result<_>>()?))
            }
            Length::Time(time) => rounds_in(time, work),
        }
    }
}

fn rounds_in(time: Duration, mut work: impl FnMut() -> Result<f64>) -> Result<Spread> {
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
    /// All rounds, divided by their number. Not in files of earlier versions.
    #[serde(default = "unknown")]
    pub mean: f64,
    /// The standard deviation from that. Not in files of earlier versions.
    #[serde(default = "unknown")]
    pub deviation: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

fn unknown() -> f64 {
    f64::NAN
}

impl Spread {
    /// What these timings say; there must be at least one.
    pub fn of(mut seconds: Vec<f64>) -> Spread {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len() as f64;
        let mean = seconds.iter().sum::<f64>() / count;
        let squares: f64 = seconds.iter().map(|round| (round - mean).powi(2)).sum();
        Spread {
            median: quantile(&seconds, 0.5),
            lower_quartile: quantile(&seconds, 0.25),
            upper_quartile: quantile(&seconds, 0.75),
            best: seconds[0],
            mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
            rounds: seconds.len(),
        }
    }

    /// Half the distance between the quartiles, as a share of the median.
    pub fn relative(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0 / self.median
    }

    /// How much is done in a second if a run does so much, by the median.
    pub fn throughput(&self, amount: f64) -> f64 {
        amount / self.median
    }
}

/// The value below which this share of the sorted values lies, between two neighbours if need be.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!((spread.best, spread.lower_quartile, spread.median), (1.0, 1.75, 2.5));
        assert_eq!((spread.upper_quartile, spread.rounds), (3.25, 4));
        assert_eq!((spread.relative(), spread.throughput(10.0)), (0.3, 4.0));
        assert_eq!((spread.mean, spread.deviation), (2.5, (5.0f64 / 3.0).sqrt()));
    }

    #[test]
    fn one_timing_is_its_own_median() {
        let spread = Spread::of(vec![7.0]);
        assert_eq!((spread.median, spread.lower_quartile, spread.upper_quartile), (7.0, 7.0, 7.0));
        assert_eq!((spread.relative(), spread.mean, spread.deviation), (0.0, 7.0, 0.0));
    }

    /// Each run says its number.
    fn numbered(benchmark: Benchmark, each: Duration) -> Spread {
        let mut runs = 0;
        let work = || -> Result<f64> {
            runs += 1;
            std::thread::sleep(each);
            Ok(runs as f64)
        };
        benchmark.run_counted(work).unwrap()
    }

    #[test]
    fn what_warms_up_does_not_count() {
        let spread = numbered(Benchmark::lasting(Duration::ZERO), SHORTEST_ROUND);
        assert_eq!((spread.rounds, spread.best, spread.median), (FEWEST_ROUNDS, 2.0, 4.0));
        let spread = numbered(Benchmark::rounds(3, 4), Duration::ZERO);
        assert_eq!((spread.rounds, spread.best, spread.mean), (4, 4.0, 5.5));
        assert_eq!(numbered(Benchmark::rounds(0, 0), Duration::ZERO).rounds, 1);
    }

    #[test]
    fn an_error_ends_the_rounds() {
        for benchmark in [Benchmark::lasting(Duration::ZERO), Benchmark::rounds(0, 3)] {
            assert!(benchmark.run(|| Err(Error::Config("no".into()))).is_err());
        }
    }

    #[test]
    fn what_earlier_versions_saved_is_read() {
        let saved = r#"{"median":1,"lower_quartile":1,"upper_quartile":1,"best":1,"rounds":3}"#;
        assert!(serde_json::from_str::<Spread>(saved).unwrap().mean.is_nan());
    }
}
