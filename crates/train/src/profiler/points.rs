//! Named points in a program: what it holds there, what changed between two of them, and what grows from turn to turn.

use super::allocations::{Counted, own};
use super::growth::{Leak, leak};
use crate::memory::ProcessMemory;
use crate::{Error, Result};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Looks at a program at named points.
///
/// ```
/// use gradus_train::profiler::Profiler;
///
/// let mut profiler = Profiler::new();
/// profiler.point("begin");
/// let numbers = vec![1.0f32; 1 << 20];
/// profiler.point("filled");
/// let filled = profiler.difference("begin", "filled")?;
/// println!("{} bytes more are resident after {:?}", filled.resident, filled.time);
///
/// // A point of the same name in every turn of a loop: what grows from turn to turn is a leak.
/// let mut kept = vec![];
/// for turn in 0..12 {
///     kept.push(vec![turn; 1 << 20]);
///     profiler.point("turn");
/// }
/// # if cfg!(target_os = "linux") {
/// assert_eq!(profiler.leaks()[0].name, "turn");
/// # }
/// # drop((numbers, kept));
/// # Ok::<(), gradus_train::Error>(())
/// ```
///
/// With [`Counting`](super::Counting) as the program's allocator the heap is counted to the byte; without, only what the
/// system says of the whole process is known.
#[derive(Debug)]
pub struct Profiler {
    // First, so that what the points held is not counted when it goes.
    counted: Counted,
    began: Instant,
    points: Vec<Point>,
}

/// What a program holds at some point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// When it was, since the profiler began.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    /// Bytes resident.
    pub resident: u64,
    /// Bytes resident of what comes from no file.
    pub anonymous: u64,
    /// Bytes on the heap beyond those when counting began, if the program's allocator counts.
    pub heap: Option<i64>,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// What changed from one point to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The time between them.
    pub time: Duration,
    /// Bytes that are resident beyond those before.
    pub resident: i64,
    /// Bytes that are on the heap beyond those before, if the program's allocator counts.
    pub heap: Option<i64>,
}

impl Profiler {
    /// Begins; the heap is counted from here on.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Profiler {
        Profiler { counted: Counted::begin(), began: Instant::now(), points: vec![] }
    }

    /// Looks at the program now. What a point takes itself does not count.
    pub fn point(&mut self, name: &str) {
        own(|| {
            let ProcessMemory { now, anonymous, .. } = ProcessMemory::read();
            let (name, heap) = (name.to_string(), self.counted.live());
            self.points.push(Point { name, at: self.began.elapsed(), resident: now, anonymous, heap });
        });
    }

    /// Does some work several times, with a point of this name after each.
    pub fn repeat(&mut self, name: &str, times: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        for _ in 0..times {
            work()?;
            self.point(name);
        }
        Ok(())
    }

    /// All points, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// What changed between two points; of several of a name, the last.
    pub fn difference(&self, from: &str, to: &str) -> Result<Difference> {
        let find = |name: &str| {
            let found = self.points.iter().rfind(|point| point.name == name);
            found.ok_or_else(|| Error::Config(format!("there is no point named {name:?}; make it with `point`")))
        };
        let (from, to) = (find(from)?, find(to)?);
        Ok(Difference {
            time: to.at.saturating_sub(from.at),
            resident: to.resident as i64 - from.resident as i64,
            heap: to.heap.zip(from.heap).map(|(to, from)| to - from),
        })
    }

    /// Points that come again and again and hold more each time.
    pub fn leaks(&self) -> Vec<Leak> {
        let mut names: Vec<&str> = vec![];
        for point in &self.points {
            if !names.contains(&&point.name[..]) {
                names.push(&point.name);
            }
        }
        names.into_iter().filter_map(|name| self.leak(name)).collect()
    }

    fn leak(&self, name: &str) -> Option<Leak> {
        let points = || self.points.iter().filter(|point| point.name == name);
        let heap: Option<Vec<i64>> = points().map(|point| point.heap).collect();
        let anonymous: Vec<i64> = points().map(|point| point.anonymous as i64).collect();
        leak(name, heap.as_deref(), &anonymous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_found_by_name_and_a_name_that_is_not_there_is_told() {
        let mut profiler = Profiler::new();
        profiler.point("a");
        profiler.repeat("b", 3, || Ok(())).unwrap();
        assert_eq!(profiler.points().len(), 4);
        let found = profiler.difference("a", "b").unwrap();
        assert_eq!((found.heap, profiler.difference("b", "b").unwrap().time), (None, Duration::ZERO));
        let problem = profiler.difference("a", "c").unwrap_err().to_string();
        assert!(problem.contains("\"c\"") && problem.contains("`point`"), "{problem}");
    }
}
