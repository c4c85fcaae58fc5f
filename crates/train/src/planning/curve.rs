//! Time against memory.

use super::{Candidate, StepPlans};
use crate::Result;

/// Most points of a curve, from the smallest plan to the fastest.
pub const CURVE_POINTS: usize = 20;

/// What a budget brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The size of the arena.
    pub arena: usize,
    /// How long a step takes, about.
    pub seconds: f64,
    /// Sequences computed at once.
    pub micro_batch: usize,
}

impl Point {
    fn of(candidate: &Candidate<'_>) -> Point {
        Point { arena: candidate.arena, seconds: candidate.seconds, micro_batch: candidate.way.config.micro_batch }
    }
}

impl StepPlans<'_> {
    /// The fastest way for budgets between the smallest arena and that of the fastest way. Each point is faster than
    /// those before it, and there are more of them where the curve is steep.
    pub fn curve(&self) -> Result<Vec<Point>> {
        let Some(fastest) = self.fastest_candidate(usize::MAX)? else { return Ok(vec![]) };
        let smallest = self.smallest_candidate()?;
        let (least, most) = (smallest.arena as f64, fastest.arena as f64);
        let saved = smallest.seconds - fastest.seconds;
        let mut tried = vec![Tried::of(&smallest, smallest.arena), Tried::of(&fastest, fastest.arena)];
        let width = |pair: &[Tried]| {
            let faster = pair[0].point.seconds - pair[1].point.seconds;
            let ratio = (pair[1].limit as f64 / pair[0].limit as f64).ln() / (most / least).ln();
            // Where nothing is gained, nothing is to be seen.
            if faster > 0.0 && pair[1].limit > pair[0].limit + 1 { faster / saved + ratio } else { 0.0 }
        };
        while tried.len() < CURVE_POINTS {
            let gaps = tried.windows(2).map(width).enumerate();
            let Some((gap, _)) = gaps.filter(|gap| gap.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let limit = (tried[gap].limit as f64 * tried[gap + 1].limit as f64).sqrt() as usize;
            let Some(between) = self.fastest_candidate(limit)? else { break };
            tried.insert(gap + 1, Tried::of(&between, limit));
        }
        let mut points: Vec<Point> = tried.into_iter().map(|tried| tried.point).collect();
        points.dedup_by(|later, earlier| later.seconds >= earlier.seconds);
        Ok(points)
    }
}

/// The best for a limit.
struct Tried {
    limit: usize,
    point: Point,
}

impl Tried {
    fn of(candidate: &Candidate<'_>, limit: usize) -> Tried {
        Tried { limit, point: Point::of(candidate) }
    }
}
