//! Sums over lanes that are kept apart, added by the tree that all lanes have.

use super::Ranks;
use crate::Result;
use crate::lanes::{Block, Lanes, Place, additions};
use std::ops::Range;

/// Numbers of each lane that are under way at once.
const ROUND: usize = 1 << 17;

/// Numbers of each lane that is computed here, one after another, and where their sums go.
pub(crate) trait LaneNumbers {
    /// Gives some numbers of a lane, by its place among those computed here.
    fn read(&self, place: usize, numbers: Range<usize>, to: &mut [f32]) -> Result<()>;

    /// Takes the sums of some numbers over all lanes.
    fn write(&mut self, numbers: Range<usize>, sums: &[f32]) -> Result<()>;
}

/// Adds up lanes: those here as far as the tree allows, then the blocks of all ranks.
pub(crate) struct TreeSum {
    place: Place,
    /// Lanes that are computed here, how they are added up, and where the blocks that they come to begin.
    hosted: usize,
    own_additions: Vec<(usize, usize)>,
    own_blocks: Vec<usize>,
    /// Blocks of each rank, and how all are added up.
    blocks: Vec<usize>,
    additions: Vec<(usize, usize)>,
    /// Numbers of a round.
    round: usize,
    lanes: Vec<f32>,
    sent: Vec<f32>,
    sent_at: Vec<usize>,
    received: Vec<f32>,
    received_at: Vec<usize>,
    sums: Vec<f32>,
    sums_at: Vec<usize>,
}

/// The numbers of a round of so many that are a rank's to add up.
fn share(numbers: usize, Place { rank, ranks }: Place) -> Range<usize> {
    numbers * rank / ranks..numbers * (rank + 1) / ranks
}

/// Numbers of the buffers for sums of so many numbers.
struct Sizes {
    round: usize,
    lanes: usize,
    sent: usize,
    received: usize,
}

impl Sizes {
    fn of(lanes: &Lanes, numbers: usize) -> Sizes {
        let Place { ranks, .. } = lanes.place();
        let round = numbers.min(ROUND);
        let all: usize = of_ranks(lanes).map(|lanes| lanes.blocks().len()).sum();
        let (sent, received) = match ranks {
            1 => (0, 0),
            _ => (lanes.blocks().len() * round, all * round.div_ceil(ranks)),
        };
        Sizes { round, lanes: lanes.hosted().len() * round, sent, received }
    }
}

/// The lanes of each rank.
pub(super) fn of_ranks(lanes: &Lanes) -> impl Iterator<Item = Lanes> {
    let (count, Place { ranks, .. }) = (lanes.count(), lanes.place());
    (0..ranks).map(move |rank| Lanes::at(count, Place { rank, ranks }))
}

impl TreeSum {
    /// For up to so many numbers of each lane.
    pub fn new(lanes: &Lanes, numbers: usize) -> TreeSum {
        let sizes = Sizes::of(lanes, numbers);
        let hosted = lanes.hosted();
        let apart: Vec<Block> = hosted.clone().map(|lane| Block { first: lane, size: 1 }).collect();
        let all: Vec<Block> = of_ranks(lanes).flat_map(|lanes| lanes.blocks()).collect();
        let ranks = lanes.place().ranks;
        TreeSum {
            place: lanes.place(),
            own_additions: additions(&apart),
            own_blocks: lanes.blocks().iter().map(|block| block.first - hosted.start).collect(),
            hosted: hosted.len(),
            blocks: of_ranks(lanes).map(|lanes| lanes.blocks().len()).collect(),
            additions: additions(&all),
            round: sizes.round,
            lanes: vec![0.0; sizes.lanes],
            sent: vec![0.0; sizes.sent],
            sent_at: vec![0; ranks + 1],
            received: vec![0.0; sizes.received],
            received_at: vec![0; ranks + 1],
            sums: vec![0.0; sizes.round],
            sums_at: vec![0; ranks + 1],
        }
    }

    /// Bytes that it takes.
    pub fn bytes(lanes: &Lanes, numbers: usize) -> u64 {
        let Sizes { round, lanes, sent, received } = Sizes::of(lanes, numbers);
        (size_of::<f32>() * (round + lanes + sent + received)) as u64
    }

    /// Sums so many numbers over all lanes. Allocates nothing.
    pub fn sum(&mut self, mut ranks: Option<&mut Ranks>, count: usize, of: &mut dyn LaneNumbers) -> Result<()> {
        for start in (0..count).step_by(self.round.max(1)) {
            let numbers = start..count.min(start + self.round);
            let length = numbers.len();
            for place in 0..self.hosted {
                of.read(place, numbers.clone(), &mut self.lanes[place * self.round..][..length])?;
            }
            add_up(&mut self.lanes, &self.own_additions, |place| place * self.round, length);
            match &mut ranks {
                None => self.sums[..length].copy_from_slice(&self.lanes[..length]),
                Some(ranks) => self.meet(ranks, length)?,
            }
            of.write(numbers, &self.sums[..length])?;
        }
        Ok(())
    }

    /// Adds up the blocks of all ranks, so many numbers of each.
    fn meet(&mut self, ranks: &mut Ranks, length: usize) -> Result<()> {
        const BYTES: usize = size_of::<f32>();
        let own = share(length, self.place);
        let mut at = 0;
        for rank in 0..self.place.ranks {
            let share = share(length, Place { rank, ..self.place });
            for block in &self.own_blocks {
                let from = block * self.round;
                self.sent[at..at + share.len()].copy_from_slice(&self.lanes[from + share.start..from + share.end]);
                at += share.len();
            }
            self.sent_at[rank + 1] = at * BYTES;
            self.received_at[rank + 1] = self.received_at[rank] + self.blocks[rank] * own.len() * BYTES;
            self.sums_at[rank + 1] = share.end * BYTES;
        }
        let (sent, received) = (bytemuck::cast_slice(&self.sent), bytemuck::cast_slice_mut(&mut self.received));
        ranks.transport().all_to_all(sent, &self.sent_at, received, &self.received_at)?;
        // Blocks come in the order of the lanes, all of one size.
        add_up(&mut self.received, &self.additions, |block| block * own.len(), own.len());
        self.sums[own.clone()].copy_from_slice(&self.received[..own.len()]);
        Ok(ranks.transport().all_gather(bytemuck::cast_slice_mut(&mut self.sums), &self.sums_at)?)
    }
}

/// Adds pairs of stretches of numbers, of which the first gets the sum.
pub(super) fn add_up(numbers: &mut [f32], additions: &[(usize, usize)], at: impl Fn(usize) -> usize, length: usize) {
    for &(left, right) in additions {
        let (left, right) = (at(left), at(right));
        let (first, second) = numbers.split_at_mut(right);
        let pairs = first[left..left + length].iter_mut().zip(&second[..length]);
        pairs.for_each(|(sum, number)| *sum += number);
    }
}
