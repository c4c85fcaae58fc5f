//! Time against memory.

use super::{Chosen, StepPlans};

/// Points of a curve, from the smallest plan to the fastest.
pub const CURVE_POINTS: usize = 16;

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
    fn of(chosen: &Chosen) -> Point {
        Point { arena: chosen.arena(), seconds: chosen.seconds(), micro_batch: chosen.config.micro_batch }
    }
}

impl StepPlans<'_> {
    /// The fastest way for budgets between the smallest arena and that of the fastest way, evenly spread by ratio.
    /// Each point is faster than those before it.
    pub fn curve(&self) -> Vec<Point> {
        let Some(fastest) = self.fastest_within(usize::MAX) else { return vec![] };
        let smallest = self.smallest();
        let (least, most) = (smallest.arena() as f64, fastest.arena() as f64);
        let mut points = vec![Point::of(&smallest)];
        for index in 1..CURVE_POINTS {
            let share = index as f64 / (CURVE_POINTS - 1) as f64;
            let limit = (least * (most / least).powf(share)).ceil() as usize;
            let Some(chosen) = self.fastest_within(limit) else { continue };
            let point = Point::of(&chosen);
            if points.last().is_some_and(|last| point.seconds < last.seconds) {
                points.push(point);
            }
        }
        points
    }
}
