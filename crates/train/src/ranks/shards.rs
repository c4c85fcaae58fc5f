//! Which rank has which part of what is summed, and which tensors are exchanged together.

use crate::lanes::SQUARES_TOGETHER;
use std::ops::Range;

/// Buckets of a model at most: so many that what is exchanged begins soon, and so few that messages stay large.
const BUCKETS: usize = 96;
/// Numbers of a bucket at least, but for the first weights.
const BUCKET_NUMBERS: usize = 1 << 13;

/// Tensors one after another, in units of [`SQUARES_TOGETHER`] numbers. Neighbouring tensors are a bucket, of which every rank
/// has a part; of all numbers every rank has as many, to a unit. A tensor begins with a unit of its own, so that those of
/// a part of it are its own.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    /// Numbers of each tensor.
    numbers: Vec<usize>,
    /// The first unit of each tensor, and the end of the last.
    starts: Vec<usize>,
    /// The tensors of each bucket: first those of the weights, and last all else.
    buckets: Vec<Range<usize>>,
    /// By bucket: where the units of each rank begin, and where those of the last end.
    bounds: Vec<Vec<usize>>,
}

/// A part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub tensor: usize,
    pub numbers: Range<usize>,
}

impl Piece {
    /// The same numbers, counted from this one on.
    pub fn from(&self, start: usize) -> Piece {
        Piece { tensor: self.tensor, numbers: self.numbers.start - start..self.numbers.end - start }
    }
}

impl Shards {
    /// Of tensors of these numbers, the first of which are so many weights.
    pub fn new(numbers: Vec<usize>, weights: usize, ranks: usize) -> Shards {
        let mut starts = vec![0];
        for count in &numbers {
            starts.push(starts[starts.len() - 1] + count.div_ceil(SQUARES_TOGETHER));
        }
        let mut buckets = buckets(&numbers[..weights]);
        buckets.push(weights..numbers.len());
        let bounds = bounds(&numbers, &starts, &buckets, ranks);
        Shards { numbers, starts, buckets, bounds }
    }

    pub fn ranks(&self) -> usize {
        self.bounds[0].len() - 1
    }

    /// How many buckets are of weights. One more is of all else.
    pub fn of_weights(&self) -> usize {
        self.buckets.len() - 1
    }

    /// The tensors of a bucket.
    pub fn bucket(&self, bucket: usize) -> Range<usize> {
        self.buckets[bucket].clone()
    }

    /// The units of a bucket that a rank has.
    pub fn units(&self, bucket: usize, rank: usize) -> Range<usize> {
        self.bounds[bucket][rank]..self.bounds[bucket][rank + 1]
    }

    /// The most units of a bucket that a rank has.
    pub fn most_units(&self) -> usize {
        let all = (0..self.buckets.len()).flat_map(|bucket| (0..self.ranks()).map(move |rank| (bucket, rank)));
        all.map(|(bucket, rank)| self.units(bucket, rank).len()).max().unwrap_or(0)
    }

    /// The first unit of a tensor, and the end of its last.
    pub fn units_of(&self, tensor: usize) -> Range<usize> {
        self.starts[tensor]..self.starts[tensor + 1]
    }

    /// The numbers of a tensor that a rank has.
    pub fn part(&self, tensor: usize, rank: usize) -> Range<usize> {
        let bucket = self.buckets.iter().position(|bucket| bucket.contains(&tensor)).expect("a tensor has a bucket");
        let (own, all) = (self.units(bucket, rank), self.units_of(tensor));
        let number =
            |unit: usize| ((unit.clamp(all.start, all.end) - all.start) * SQUARES_TOGETHER).min(self.numbers[tensor]);
        number(own.start)..number(own.end)
    }

    /// What some units hold, in order.
    pub fn pieces(&self, units: Range<usize>) -> impl Iterator<Item = Piece> {
        let first = self.starts.partition_point(|start| *start <= units.start) - 1;
        let within = (first..self.numbers.len()).take_while(move |tensor| self.starts[*tensor] < units.end);
        let piece = move |tensor: usize| {
            let numbers = |unit: usize| (unit * SQUARES_TOGETHER).min(self.numbers[tensor]);
            let start = units.start.max(self.starts[tensor]) - self.starts[tensor];
            let end = units.end.min(self.starts[tensor + 1]) - self.starts[tensor];
            Piece { tensor, numbers: numbers(start)..numbers(end) }
        };
        within.map(piece).filter(|piece| !piece.numbers.is_empty())
    }
}

/// By bucket, where the units of each rank begin, and where those of the last end: such that the numbers of all buckets up to each are
/// shared out evenly, to a unit.
fn bounds(numbers: &[usize], starts: &[usize], buckets: &[Range<usize>], ranks: usize) -> Vec<Vec<usize>> {
    // Of all buckets so far, numbers in all, and those of the ranks up to each.
    let (mut all, mut had) = (0, vec![0; ranks]);
    let cut = |bucket: &Range<usize>| {
        let mut bounds = vec![starts[bucket.start]];
        let units = bucket.clone().flat_map(|tensor| {
            let of_unit = move |first: usize| SQUARES_TOGETHER.min(numbers[tensor] - first);
            (0..numbers[tensor]).step_by(SQUARES_TOGETHER).map(of_unit)
        });
        let mut units = units.peekable();
        all += numbers[bucket.clone()].iter().sum::<usize>();
        let (mut unit, mut held) = (starts[bucket.start], 0);
        for (rank, had) in had.iter_mut().enumerate() {
            let wanted = (all * (rank + 1) / ranks).saturating_sub(*had);
            // As long as that comes closer.
            while let Some(count) = units.next_if(|count| 2 * held + count <= 2 * wanted) {
                (unit, held) = (unit + 1, held + count);
            }
            *had += held;
            bounds.push(unit);
        }
        bounds
    };
    buckets.iter().map(cut).collect()
}

/// Weights of these numbers in buckets. They are filled from the last on, whose gradients are there first.
fn buckets(numbers: &[usize]) -> Vec<Range<usize>> {
    let enough = (numbers.iter().sum::<usize>() / BUCKETS).max(BUCKET_NUMBERS);
    let (mut buckets, mut end, mut held) = (vec![], numbers.len(), 0);
    for tensor in (0..numbers.len()).rev() {
        held += numbers[tensor];
        if held >= enough || tensor == 0 {
            buckets.push(tensor..end);
            (end, held) = (tensor, 0);
        }
    }
    buckets.reverse();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_rank() {
        let numbers = vec![50_000, 3, 1024, 1, 100_000, 2048, 7, 1, 30];
        for (ranks, weights) in [(1, 7), (2, 7), (3, 7), (4, 1), (8, 7), (13, 8), (2, 9)] {
            let shards = Shards::new(numbers.clone(), weights, ranks);
            let mut found = vec![0; numbers.len()];
            let mut sizes = vec![0; ranks];
            for bucket in 0..=shards.of_weights() {
                for (rank, size) in sizes.iter_mut().enumerate() {
                    let units = shards.units(bucket, rank);
                    *size += shards.pieces(units.clone()).map(|piece| piece.numbers.len()).sum::<usize>();
                    // However they are cut, in order.
                    for start in units.clone().step_by(3) {
                        for piece in shards.pieces(start..units.end.min(start + 3)) {
                            assert!(shards.bucket(bucket).contains(&piece.tensor));
                            assert_eq!(piece.numbers.start, found[piece.tensor], "{piece:?}");
                            assert!(piece.numbers.start.is_multiple_of(SQUARES_TOGETHER));
                            found[piece.tensor] = piece.numbers.end;
                        }
                    }
                }
            }
            assert_eq!(found, numbers, "{ranks} ranks");
            for (tensor, count) in numbers.iter().enumerate() {
                let parts = (0..ranks).map(|rank| shards.part(tensor, rank)).filter(|part| !part.is_empty());
                let end = parts.fold(0, |end, part| {
                    assert_eq!(part.start, end);
                    part.end
                });
                assert_eq!(end, *count);
            }
            let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            assert!(spread <= 2 * SQUARES_TOGETHER, "{sizes:?}");
        }
    }

    #[test]
    fn buckets_are_large_and_not_many() {
        assert!(buckets(&[]).is_empty());
        assert_eq!(buckets(&[5])[..], [0..1; 1]);
        // Those that are not enough for a bucket are in one with others before them.
        assert_eq!(buckets(&[1 << 20, 3, 1 << 15, 7, 1 << 14, 1 << 17]), [0..2, 2..4, 4..5, 5..6]);
        let even = buckets(&[1 << 18; 100]);
        assert!(even.len() <= BUCKETS && even.len() > BUCKETS / 2, "{even:?}");
        assert_eq!((even[0].start, even.last().unwrap().end), (0, 100));
        assert!(even.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
