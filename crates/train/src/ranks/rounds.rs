//! How buckets are exchanged: in rounds of bounded size, in which every rank has a part.

use super::given::ROOMS;
use super::shards::{Piece, Shards};
use crate::config::Sharding;
use crate::lanes::{Block, Lanes, Place, SQUARES_TOGETHER, additions};
use std::ops::Range;
use std::sync::Arc;

/// Numbers that are under way at once: those of all ranks, of one block each. On the host so few stay in the cache from when they
/// are packed until they are where they belong; a device begins each round with a few microseconds in which it does nothing else.
pub(super) const ON_HOST: usize = 1 << 18;
pub(super) const ON_DEVICE: usize = 1 << 24;

/// By tensor, by sum: states of which the last has the sum, and the others hold blocks that are added to it.
pub(super) type States<T> = Vec<Vec<Vec<T>>>;

/// Who has what of a bucket in each round, and how the blocks of all ranks are added up.
pub(super) struct Rounds {
    pub shards: Shards,
    pub place: Place,
    /// By bucket: units that a rank has in a round.
    units: Vec<usize>,
    /// Numbers of a rank in a round, of one block, at most.
    pub most: usize,
    /// Blocks of each rank.
    pub blocks: Vec<usize>,
    /// Of all blocks, in the order of the lanes: whose it is, and which of that rank's.
    pub owners: Vec<(usize, usize)>,
    /// By which the blocks of all ranks are added up.
    pub additions: Arc<[(usize, usize)]>,
}

/// What is exchanged, and where that lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchanged {
    /// Sums, where hosts see them.
    Sums,
    /// Gradients that are given away.
    Given,
    /// Sums in the memory of devices.
    OnDevices,
}

/// Whether gradients may be given away as they come, if they are to be sharded: where a rank has one lane. It depends on the micro-batch
/// too whether they are.
pub(crate) fn may_give(shard: Sharding, lanes: &Lanes) -> bool {
    shard == Sharding::Gradients && lanes.place().ranks > 1 && lanes.hosted().len() == 1
}

/// Bytes that an exchange takes besides the arena, if it is of tensors of these numbers, the first of which are so many weights,
/// with so many sums each at most.
pub(crate) fn exchange_bytes(
    lanes: &Lanes,
    numbers: Vec<usize>,
    weights: usize,
    most_sums: usize,
    exchanged: Exchanged,
) -> u64 {
    let Place { ranks, .. } = lanes.place();
    if ranks == 1 {
        return 0;
    }
    let shards = Shards::new(numbers, weights, ranks);
    let at_once = if exchanged == Exchanged::OnDevices { ON_DEVICE } else { ON_HOST };
    // Some buckets have as many sums, and others fewer.
    let round = |sums: usize| units(&shards, sums, at_once) * SQUARES_TOGETHER * sums;
    let round = (1..=most_sums).map(round).max().unwrap_or(0);
    let (own, all) = (lanes.blocks().len(), all_blocks(lanes.count(), ranks).len());
    let parts = match exchanged {
        // A device sends from where numbers lie, and gathers to where they belong.
        Exchanged::OnDevices => all,
        // What comes, what goes, and what is gathered.
        Exchanged::Sums => (all - own) + (ranks - 1) * own + ranks,
        // What goes is packed in the rooms, with what stays here.
        Exchanged::Given => {
            let of_bucket = |bucket| rounds(&shards, units(&shards, most_sums, at_once), bucket);
            let rooms = ROOMS.min((0..shards.of_weights()).map(of_bucket).sum());
            (all - own) + ranks * rooms + ranks
        }
    };
    (size_of::<f32>() * round * parts) as u64
}

/// Units that a rank has in a round of so many numbers, if a tensor of the bucket has so many sums at most.
fn units(shards: &Shards, sums: usize, at_once: usize) -> usize {
    let most = at_once / (SQUARES_TOGETHER * shards.ranks() * sums);
    most.min(shards.most_units()).max(1)
}

/// The most sums that a tensor of a bucket has.
fn most_sums(shards: &Shards, sums: &[usize], bucket: usize) -> usize {
    shards.bucket(bucket).map(|tensor| sums[tensor]).max().unwrap_or(1)
}

/// How often parts of a bucket are exchanged by hosts, if tensors have so many sums.
pub(super) fn rounds_of(shards: &Shards, sums: &[usize], bucket: usize) -> usize {
    rounds(shards, units(shards, most_sums(shards, sums, bucket), ON_HOST), bucket)
}

/// How often parts of a bucket are exchanged, so many units of each rank at a time.
fn rounds(shards: &Shards, units: usize, bucket: usize) -> usize {
    let of_ranks = (0..shards.ranks()).map(|rank| shards.units(bucket, rank).len());
    of_ranks.max().unwrap_or(0).div_ceil(units)
}

/// The blocks of all ranks, in the order of the lanes.
fn all_blocks(lanes: usize, ranks: usize) -> Vec<Block> {
    (0..ranks).flat_map(|rank| Lanes::at(lanes, Place { rank, ranks }).blocks()).collect()
}

impl Rounds {
    /// Of sums of these lanes and shards, so many of each tensor, with so many numbers under way at once.
    pub fn new(lanes: &Lanes, shards: Shards, sums: &[usize], at_once: usize) -> Rounds {
        let place @ Place { ranks, .. } = lanes.place();
        let blocks = |rank: usize| Lanes::at(lanes.count(), Place { rank, ranks }).blocks().len();
        let blocks: Vec<usize> = (0..ranks).map(blocks).collect();
        let most_sums = (0..=shards.of_weights()).map(|bucket| most_sums(&shards, sums, bucket));
        let (units, numbers): (Vec<usize>, Vec<usize>) = most_sums
            .map(|sums| (units(&shards, sums, at_once), units(&shards, sums, at_once) * SQUARES_TOGETHER * sums))
            .unzip();
        Rounds {
            most: numbers.into_iter().max().unwrap_or(0),
            additions: additions(&all_blocks(lanes.count(), ranks)).into(),
            owners: (0..ranks).flat_map(|rank| (0..blocks[rank]).map(move |block| (rank, block))).collect(),
            blocks,
            shards,
            place,
            units,
        }
    }

    /// How many rounds a bucket takes.
    pub fn count(&self, bucket: usize) -> usize {
        rounds(&self.shards, self.units[bucket], bucket)
    }

    /// How many rounds the buckets of weights take.
    pub fn of_weights(&self) -> usize {
        (0..self.shards.of_weights()).map(|bucket| self.count(bucket)).sum()
    }

    /// The units of a bucket that a rank has in a round.
    pub fn chunk(&self, bucket: usize, rank: usize, round: usize) -> Range<usize> {
        let (own, units) = (self.shards.units(bucket, rank), self.units[bucket]);
        let start = (own.start + round * units).min(own.end);
        start..(start + units).min(own.end)
    }

    /// The ranks but for this one.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let Place { rank: own, ranks } = self.place;
        (0..ranks).filter(move |rank| *rank != own)
    }

    /// Does something for every sum in some units, given a piece of it and its states.
    pub fn each_sum<T>(&self, states: &States<T>, units: Range<usize>, mut each: impl FnMut(&Piece, &[T])) {
        for piece in self.shards.pieces(units) {
            states[piece.tensor].iter().for_each(|sums| each(&piece, sums));
        }
    }

    /// How many numbers the sums in some units have.
    pub fn sums_in<T>(&self, states: &States<T>, units: Range<usize>) -> usize {
        self.shards.pieces(units).map(|piece| piece.numbers.len() * states[piece.tensor].len()).sum()
    }
}
