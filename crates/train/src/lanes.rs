//! Lanes: the parts of a batch whose sums are added by a tree that depends on their number alone.
//!
//! A batch is so many contiguous parts of equal size. Within a lane, sums are the chain over its rows; over lanes, they
//! are a balanced binary tree. Whoever computes some of the lanes adds those up as far as the tree allows, to [`Block`]s;
//! and since adding two numbers does not ask which comes first, the sums over all lanes have the same bits wherever each
//! lane was computed. One lane is the chain over the whole batch.

use crate::{Error, Result};
use gradus_engine::Tensor;
use std::ops::Range;

/// The most lanes of a batch.
pub const MOST: usize = 4096;
/// The numbers of a gradient whose squares are added apart: a part of a weight that one process may have is a whole
/// number of these, so that the norm does not depend on who adds which.
pub const SQUARES_TOGETHER: usize = 1024;

/// Which of how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// This one.
    pub rank: usize,
    /// All of them.
    pub ranks: usize,
}

impl Default for Place {
    /// The only one.
    fn default() -> Place {
        Place { rank: 0, ranks: 1 }
    }
}

/// The lanes of a batch, and which of them are computed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    count: usize,
    place: Place,
}

/// Neighbouring lanes whose sums the tree adds up by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first of the lanes.
    pub first: usize,
    /// How many: a power of two that divides the first.
    pub size: usize,
}

/// What is done with the sums of a lane once they are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    /// Blocks that wait when the lane is done.
    pub waiting: usize,
    /// How many of those, from the last to wait, are added to it.
    pub added: usize,
    /// Whether the sums wait for further lanes, or stay where they are: those of the last lane do.
    pub waits: bool,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes::all(1)
    }
}

impl Lanes {
    /// So many lanes, a power of two, all of them computed here.
    pub fn all(count: usize) -> Lanes {
        Lanes::at(count, Place::default())
    }

    /// Of so many lanes those of one of several ranks, which have the same number each, or one more.
    pub fn at(count: usize, place: Place) -> Lanes {
        Lanes { count, place }
    }

    /// Whose lanes are computed here.
    pub fn place(&self) -> Place {
        self.place
    }

    /// All lanes of the batch.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The lanes that are computed here.
    pub fn hosted(&self) -> Range<usize> {
        let Place { rank, ranks } = self.place;
        self.count * rank / ranks..self.count * (rank + 1) / ranks
    }

    /// The rows of a batch of so many that are computed here.
    pub fn rows(&self, batch: usize) -> Range<usize> {
        let (of_lane, hosted) = (batch / self.count, self.hosted());
        hosted.start * of_lane..hosted.end * of_lane
    }

    /// Refuses a number of lanes that no batch has.
    pub(crate) fn check(&self) -> Result<()> {
        check_count(self.count)?;
        let Place { rank, ranks } = self.place;
        match rank < ranks && ranks <= self.count {
            true => Ok(()),
            false => Err(Error::Config(format!(
                "{ranks} ranks cannot share {} lanes: each has one at least; start fewer ranks, or a new run with more \
                 `settings.lanes`",
                self.count
            ))),
        }
    }

    /// What follows each lane that is computed here.
    pub(crate) fn folds(&self) -> Vec<Fold> {
        let mut waiting = vec![];
        let fold = |lane: usize| {
            let before = waiting.len();
            let block = added_up(&mut waiting, Block { first: lane, size: 1 });
            let (added, waits) = (before - waiting.len(), lane + 1 < self.hosted().end);
            waiting.push(block);
            Fold { waiting: before, added, waits }
        };
        self.hosted().map(fold).collect()
    }

    /// The blocks that the lanes computed here come to: those that wait in the end, and last the one that stays.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = vec![];
        for lane in self.hosted() {
            let block = added_up(&mut blocks, Block { first: lane, size: 1 });
            blocks.push(block);
        }
        blocks
    }

    /// How many blocks wait at once, at most.
    pub(crate) fn places(&self) -> usize {
        self.folds().iter().filter(|fold| fold.waits).map(|fold| fold.waiting - fold.added + 1).max().unwrap_or(0)
    }
}

/// Refuses a number of lanes that no batch has.
pub(crate) fn check_count(lanes: usize) -> Result<()> {
    match lanes.is_power_of_two() && lanes <= MOST {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "`settings.lanes` {lanes} is not a power of two up to {MOST}; choose one, such as 8"
        ))),
    }
}

/// Refuses lanes that a batch cannot be cut into, or that its micro-batches do not fit.
pub(crate) fn check_batch(lanes: usize, batch: usize, micro_batch: usize) -> Result<()> {
    check_count(lanes)?;
    if !batch.is_multiple_of(lanes) {
        return Err(Error::Config(format!(
            "`settings.batch` {batch} is not divisible by `settings.lanes` {lanes}; choose a multiple, or fewer lanes"
        )));
    }
    let of_lane = batch / lanes;
    if micro_batch > 0 && !of_lane.is_multiple_of(micro_batch) {
        return Err(Error::Config(format!(
            "`settings.micro_batch` {micro_batch} does not divide the {of_lane} of a lane (`settings.batch` {batch}, \
             `settings.lanes` {lanes}); choose a divisor, or leave `settings.micro_batch` out"
        )));
    }
    Ok(())
}

/// A block with all those that wait, from the last on, with which the tree adds it up.
fn added_up(waiting: &mut Vec<Block>, mut block: Block) -> Block {
    while let Some(last) = waiting.pop_if(|last| last.is_left_of(&block)) {
        block = Block { first: last.first, size: 2 * block.size };
    }
    block
}

impl Block {
    /// Whether this and the other are the two halves of a larger one, in this order.
    fn is_left_of(&self, other: &Block) -> bool {
        let neighbours = self.first + self.size == other.first && self.size == other.size;
        neighbours && self.first.is_multiple_of(2 * self.size)
    }
}

/// In which order blocks that cover all lanes are added up: pairs of places, of which the first gets the sum. In the end
/// the sum of all is at the first place.
pub(crate) fn additions(blocks: &[Block]) -> Vec<(usize, usize)> {
    let mut additions = vec![];
    let mut waiting: Vec<(usize, Block)> = vec![];
    for (place, &block) in blocks.iter().enumerate() {
        let mut sum = (place, block);
        while let Some((left, last)) = waiting.pop_if(|(_, last)| last.is_left_of(&sum.1)) {
            additions.push((left, sum.0));
            sum = (left, Block { first: last.first, size: 2 * sum.1.size });
        }
        waiting.push(sum);
    }
    additions
}

/// The sums of squares of a gradient, [`SQUARES_TOGETHER`] numbers at a time, in their order.
#[track_caller]
pub(crate) fn squares(gradient: &Tensor) -> Vec<Tensor> {
    let count = gradient.shape().elements();
    let (flat, whole) = (gradient.reshape([count]), count / SQUARES_TOGETHER * SQUARES_TOGETHER);
    let mut sums = vec![];
    if whole > 0 {
        let rows = flat.slice(0, 0..whole).reshape([whole / SQUARES_TOGETHER, SQUARES_TOGETHER]);
        sums.push(rows.sum_of_squares(&[1]));
    }
    if whole < count {
        sums.push(flat.slice(0, whole..count).reshape([1, count - whole]).sum_of_squares(&[1]));
    }
    sums
}

/// The norm of all gradients, of each of which these are the [`squares`].
#[track_caller]
pub(crate) fn norm_of(squares: &[Vec<Tensor>]) -> Tensor {
    let sums = squares.iter().flatten().map(|squares| squares.sum(&[0]));
    sums.reduce(|sum, squares| sum + squares).expect("a model has weights").sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree over some lanes, written down.
    fn tree(lanes: Range<usize>) -> String {
        match lanes.len() {
            1 => lanes.start.to_string(),
            size => {
                let half = lanes.start + size / 2;
                format!("({}+{})", tree(lanes.start..half), tree(half..lanes.end))
            }
        }
    }

    /// What the folds of some lanes come to, written down by block.
    fn folded(lanes: &Lanes) -> Vec<String> {
        let mut places = vec![String::new(); lanes.places()];
        let mut held = 0;
        let mut sums = String::new();
        for (lane, fold) in lanes.hosted().zip(lanes.folds()) {
            assert_eq!(fold.waiting, held);
            sums = lane.to_string();
            for added in 0..fold.added {
                sums = format!("({}+{sums})", places[fold.waiting - 1 - added]);
            }
            held = fold.waiting - fold.added;
            if fold.waits {
                places[held] = std::mem::take(&mut sums);
                held += 1;
            }
        }
        places.truncate(held);
        places.push(sums);
        places
    }

    #[test]
    fn however_lanes_are_hosted_they_are_added_by_the_same_tree() {
        for count in [1, 2, 4, 8, 16, 32] {
            for ranks in 1..=count {
                let mut blocks = vec![];
                let mut written = vec![];
                for rank in 0..ranks {
                    let lanes = Lanes::at(count, Place { rank, ranks });
                    assert!(!lanes.hosted().is_empty());
                    let (own, texts) = (lanes.blocks(), folded(&lanes));
                    assert!(own.iter().zip(&texts).all(|(own, text)| tree(own.first..own.first + own.size) == *text));
                    assert_eq!(own.len(), texts.len());
                    if ranks.is_power_of_two() {
                        assert_eq!(own.len(), 1, "one subtree each");
                        assert_eq!(lanes.places(), (count / ranks).ilog2() as usize);
                    }
                    blocks.extend(own);
                    written.extend(texts);
                }
                for (left, right) in additions(&blocks) {
                    written[left] = format!("({}+{})", written[left], written[right]);
                }
                assert_eq!(written[0], tree(0..count), "{count} lanes on {ranks} ranks");
            }
        }
    }

    #[test]
    fn what_no_batch_can_be_cut_into_is_refused() {
        for (lanes, batch, micro_batch, part) in [
            (3, 12, 0, "`settings.lanes` 3 is not a power of two"),
            (0, 12, 0, "`settings.lanes` 0 is not a power of two"),
            (8192, 8192, 0, "up to 4096"),
            (8, 12, 0, "`settings.batch` 12 is not divisible by `settings.lanes` 8"),
            (4, 24, 4, "`settings.micro_batch` 4 does not divide the 6 of a lane"),
        ] {
            let problem = check_batch(lanes, batch, micro_batch).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
        check_batch(4, 24, 3).unwrap();
        check_batch(1, 7, 0).unwrap();
    }
}
