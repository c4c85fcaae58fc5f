//! Which rank has which part of what is summed.

use crate::lanes::SQUARES_TOGETHER;
use std::ops::Range;

/// Tensors one after another, in units of [`SQUARES_TOGETHER`] numbers, of which every rank has the same number, or one more.
/// A tensor begins with a unit of its own, so that those of a part of it are its own.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    /// Numbers of each tensor.
    numbers: Vec<usize>,
    /// The first unit of each tensor, and the end of the last.
    starts: Vec<usize>,
    ranks: usize,
}

/// A part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub tensor: usize,
    pub numbers: Range<usize>,
}

impl Shards {
    pub fn new(numbers: Vec<usize>, ranks: usize) -> Shards {
        let mut starts = vec![0];
        for count in &numbers {
            starts.push(starts[starts.len() - 1] + count.div_ceil(SQUARES_TOGETHER));
        }
        Shards { numbers, starts, ranks }
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn tensors(&self) -> usize {
        self.numbers.len()
    }

    /// The units of some tensors that a rank has.
    pub fn units(&self, tensors: &Range<usize>, rank: usize) -> Range<usize> {
        let all = self.starts[self.tensors()];
        let own = all * rank / self.ranks..all * (rank + 1) / self.ranks;
        let (first, end) = (self.starts[tensors.start], self.starts[tensors.end]);
        let start = own.start.clamp(first, end);
        start..own.end.clamp(start, end)
    }

    /// The first unit of a tensor, and how many it has.
    pub fn units_of(&self, tensor: usize) -> Range<usize> {
        self.starts[tensor]..self.starts[tensor + 1]
    }

    /// The numbers of a tensor that a rank has.
    pub fn part(&self, tensor: usize, rank: usize) -> Range<usize> {
        let units = self.units(&(tensor..tensor + 1), rank);
        let number = |unit: usize| ((unit - self.starts[tensor]) * SQUARES_TOGETHER).min(self.numbers[tensor]);
        number(units.start)..number(units.end)
    }

    /// What some units hold, in order.
    pub fn pieces(&self, units: Range<usize>) -> impl Iterator<Item = Piece> {
        let first = self.starts.partition_point(|start| *start <= units.start) - 1;
        let within = (first..self.tensors()).take_while(move |tensor| self.starts[*tensor] < units.end);
        let piece = move |tensor: usize| {
            let numbers = |unit: usize| (unit * SQUARES_TOGETHER).min(self.numbers[tensor]);
            let start = units.start.max(self.starts[tensor]) - self.starts[tensor];
            let end = units.end.min(self.starts[tensor + 1]) - self.starts[tensor];
            Piece { tensor, numbers: numbers(start)..numbers(end) }
        };
        within.map(piece).filter(|piece| !piece.numbers.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_rank() {
        let numbers = vec![5000, 3, 1024, 1, 100_000, 2048, 7];
        for ranks in [1, 2, 3, 4, 8, 13] {
            let shards = Shards::new(numbers.clone(), ranks);
            for tensors in [0..7, 0..3, 2..7, 6..7, 3..3] {
                let mut found = vec![0; 7];
                for rank in 0..ranks {
                    let units = shards.units(&tensors, rank);
                    // However they are cut, in order.
                    for start in units.clone().step_by(3) {
                        for piece in shards.pieces(start..units.end.min(start + 3)) {
                            assert_eq!(piece.numbers.start, found[piece.tensor], "{piece:?}");
                            assert!(piece.numbers.start.is_multiple_of(SQUARES_TOGETHER));
                            found[piece.tensor] = piece.numbers.end;
                        }
                    }
                }
                let all = numbers.iter().enumerate();
                let expected: Vec<usize> =
                    all.map(|(i, &count)| if tensors.contains(&i) { count } else { 0 }).collect();
                assert_eq!(found, expected, "{ranks} ranks, {tensors:?}");
            }
            for (tensor, count) in numbers.iter().enumerate() {
                let parts = (0..ranks).map(|rank| shards.part(tensor, rank)).filter(|part| !part.is_empty());
                let end = parts.fold(0, |end, part| {
                    assert_eq!(part.start, end);
                    part.end
                });
                assert_eq!(end, *count);
            }
            let sizes: Vec<usize> = (0..ranks).map(|rank| shards.units(&(0..7), rank).len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        }
    }
}
