//! Tensors in units of 1024 numbers, which are compressed one by one.

use crate::lanes::{Lanes, Place, SQUARES_TOGETHER as UNIT};
use std::ops::Range;

/// Tensors one after another, of whose units every lane has the same number, or one more; a rank has those of the lanes that it
/// computes. A tensor begins with a unit of its own.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    /// Numbers of each tensor.
    numbers: Vec<usize>,
    /// The first unit of each tensor, and the end of the last.
    starts: Vec<usize>,
    lanes: Lanes,
}

/// A unit: some numbers of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub tensor: usize,
    pub numbers: Range<usize>,
}

impl Units {
    pub fn new(numbers: Vec<usize>, lanes: &Lanes) -> Units {
        let mut starts = vec![0];
        for count in &numbers {
            starts.push(starts[starts.len() - 1] + count.div_ceil(UNIT));
        }
        Units { numbers, starts, lanes: *lanes }
    }

    fn all(&self) -> usize {
        self.starts[self.numbers.len()]
    }

    /// The units that a rank has.
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        let (all, count) = (self.all(), self.lanes.count());
        let hosted = Lanes::at(count, Place { rank, ..self.lanes.place() }).hosted();
        all * hosted.start / count..all * hosted.end / count
    }

    /// The lane that has a unit.
    pub fn lane(&self, unit: usize) -> usize {
        ((unit + 1) * self.lanes.count() - 1) / self.all()
    }

    /// The most that a rank has.
    pub fn most(&self) -> usize {
        (0..self.lanes.place().ranks).map(|rank| self.of_rank(rank).len()).max().unwrap_or(0)
    }

    /// Those that a rank has in a round of at most so many.
    pub fn in_round(&self, rank: usize, most: usize, round: usize) -> Range<usize> {
        let own = self.of_rank(rank);
        let start = (own.start + round * most).min(own.end);
        start..(start + most).min(own.end)
    }

    pub fn unit(&self, place: usize) -> Unit {
        let tensor = self.starts.partition_point(|start| *start <= place) - 1;
        let start = (place - self.starts[tensor]) * UNIT;
        Unit { tensor, numbers: start..(start + UNIT).min(self.numbers[tensor]) }
    }

    /// The numbers of a tensor that a rank has.
    pub fn part(&self, tensor: usize, rank: usize) -> Range<usize> {
        let (own, first, end) = (self.of_rank(rank), self.starts[tensor], self.starts[tensor + 1]);
        let number = |unit: usize| ((unit.clamp(first, end) - first) * UNIT).min(self.numbers[tensor]);
        number(own.start)..number(own.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_rank() {
        let numbers = vec![5000, 3, 1024, 1, 100_000, 2048, 7];
        for ranks in [1, 2, 3, 8, 13] {
            let lanes = |rank: usize| Lanes::at(16, Place { rank, ranks });
            let units = Units::new(numbers.clone(), &lanes(0));
            let mut found = vec![0; 7];
            for rank in 0..ranks {
                let rounds = units.most().div_ceil(3);
                for place in (0..rounds).flat_map(|round| units.in_round(rank, 3, round)) {
                    assert!(lanes(rank).hosted().contains(&units.lane(place)));
                    let Unit { tensor, numbers } = units.unit(place);
                    let part = units.part(tensor, rank);
                    assert_eq!(numbers.start, found[tensor]);
                    assert!(part.start <= numbers.start && numbers.end <= part.end);
                    found[tensor] = numbers.end;
                }
            }
            assert_eq!(found, numbers);
        }
    }
}
