//! What the communication thread does with sums and weights where they lie: it adds the blocks of all ranks up, and gives every
//! rank the parts that others have.

use super::shards::{Piece, Shards};
use crate::lanes::{Block, Lanes, Place, SQUARES_TOGETHER, additions};
use gradus_comm::{Result, Transport, Work};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Numbers that are under way at once: those of all ranks, of one block each. So few stay in the cache from when they are packed
/// until they are where they belong.
const ROUND: usize = 1 << 18;

/// The numbers of a state where it lies, for as long as nothing else touches it.
pub(super) type Lying = *mut [f32];

/// By tensor, by sum: states of which the last has the sum, and the others hold blocks that are added to it.
pub(super) type States<T> = Vec<Vec<Vec<T>>>;

/// Exchanges buckets, a round at a time: in a round every rank gives every other one a part of its blocks, and adds up what it gets.
pub(super) struct Carrier {
    shards: Shards,
    place: Place,
    /// By bucket: units that a rank has in a round.
    units: Vec<usize>,
    /// Blocks of each rank.
    blocks: Vec<usize>,
    /// Of all blocks, in the order of the lanes: whose it is, and which of that rank's.
    owners: Vec<(usize, usize)>,
    /// By which the blocks of all ranks are added up.
    additions: Vec<(usize, usize)>,
    sent: Numbers,
    received: Numbers,
    pub gathered: Numbers,
    /// Where sums and weights lie.
    pub sums: States<Lying>,
    pub weights: States<Lying>,
}

// SAFETY: addresses are followed only by `Errand::carry_out`, under what those who post it promise.
unsafe impl Send for Carrier {}

/// What is done with a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Every rank gets the sums over all ranks of its own part.
    Scatter,
    /// Every rank gets the sums of all parts.
    GatherSums,
    /// Every rank gets the weights of all parts.
    GatherWeights,
}

/// A task for a bucket, as it is posted.
pub(super) struct Errand {
    pub carrier: *mut Carrier,
    pub task: Task,
    pub bucket: usize,
    /// How long it took the last time.
    pub took: Duration,
}

// SAFETY: as for the carrier.
unsafe impl Send for Errand {}

impl Work for Errand {
    fn carry_out(&mut self, transport: &mut dyn Transport) -> Result<()> {
        let start = Instant::now();
        // SAFETY: the carrier outlives the thread (`Exchange` has both), and while anything is posted only the thread, which does one
        // errand after another, touches it.
        let carrier = unsafe { &mut *self.carrier };
        let done = match self.task {
            Task::Scatter => carrier.scatter(self.bucket, transport),
            Task::GatherSums => carrier.gather_sums(self.bucket, transport),
            Task::GatherWeights => carrier.gather(self.bucket, transport, |carrier| &carrier.weights),
        };
        self.took = start.elapsed();
        done
    }
}

/// Numbers of each rank, one after another.
pub(super) struct Numbers {
    pub numbers: Vec<f32>,
    /// Where they stand, in bytes.
    pub at: Vec<usize>,
}

impl Numbers {
    fn new(ranks: usize, numbers: usize) -> Numbers {
        Numbers { numbers: vec![0.0; numbers], at: vec![0; ranks + 1] }
    }

    /// Says how many numbers each rank has.
    fn cut(&mut self, numbers: impl Fn(usize) -> usize) {
        for rank in 0..self.at.len() - 1 {
            self.at[rank + 1] = self.at[rank] + size_of::<f32>() * numbers(rank);
        }
    }

    pub fn start(&self, rank: usize) -> usize {
        self.at[rank] / size_of::<f32>()
    }
}

/// Bytes that an exchange takes besides the arena, if it is of tensors of these numbers, the first of which are so many weights,
/// with so many sums each at most.
pub(crate) fn exchange_bytes(lanes: &Lanes, numbers: Vec<usize>, weights: usize, most_sums: usize) -> u64 {
    let Place { ranks, .. } = lanes.place();
    if ranks == 1 {
        return 0;
    }
    let shards = Shards::new(numbers, weights, ranks);
    // Some buckets have as many sums, and others fewer.
    let round = (1..=most_sums).map(|sums| units(&shards, sums) * SQUARES_TOGETHER * sums).max().unwrap_or(0);
    let all = all_blocks(lanes.count(), ranks).len();
    // What is sent, received and gathered.
    let numbers = round * (ranks * lanes.blocks().len() + all + ranks);
    (size_of::<f32>() * numbers) as u64
}

/// Units that a rank has in a round, if a tensor of the bucket has so many sums at most.
fn units(shards: &Shards, sums: usize) -> usize {
    let most = ROUND / (SQUARES_TOGETHER * shards.ranks() * sums);
    most.min(shards.most_units()).max(1)
}

/// The most sums that a tensor of a bucket has.
fn most_sums(shards: &Shards, sums: &[usize], bucket: usize) -> usize {
    shards.bucket(bucket).map(|tensor| sums[tensor]).max().unwrap_or(1)
}

/// How often parts of a bucket are exchanged, if tensors have so many sums.
pub(super) fn rounds_of(shards: &Shards, sums: &[usize], bucket: usize) -> usize {
    rounds(shards, units(shards, most_sums(shards, sums, bucket)), bucket)
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

impl Carrier {
    /// For sums of these lanes and shards, so many of each tensor. Where they lie is told before anything is posted.
    pub fn new(lanes: &Lanes, shards: Shards, sums: &[usize]) -> Carrier {
        let place @ Place { ranks, .. } = lanes.place();
        let blocks = |rank: usize| Lanes::at(lanes.count(), Place { rank, ranks }).blocks().len();
        let blocks: Vec<usize> = (0..ranks).map(blocks).collect();
        let most_sums = (0..=shards.of_weights()).map(|bucket| most_sums(&shards, sums, bucket));
        let (units, rounds): (Vec<usize>, Vec<usize>) =
            most_sums.map(|sums| (units(&shards, sums), units(&shards, sums) * SQUARES_TOGETHER * sums)).unzip();
        let all = all_blocks(lanes.count(), ranks);
        // As much as a round can have at most.
        let round = rounds.into_iter().max().unwrap_or(0);
        Carrier {
            sent: Numbers::new(ranks, round * ranks * lanes.blocks().len()),
            received: Numbers::new(ranks, round * all.len()),
            gathered: Numbers::new(ranks, round * ranks),
            additions: additions(&all),
            owners: (0..ranks).flat_map(|rank| (0..blocks[rank]).map(move |block| (rank, block))).collect(),
            blocks,
            shards,
            place,
            units,
            sums: vec![],
            weights: vec![],
        }
    }

    fn rounds(&self, bucket: usize) -> usize {
        rounds(&self.shards, self.units[bucket], bucket)
    }

    pub fn scatter(&mut self, bucket: usize, transport: &mut dyn Transport) -> Result<()> {
        for round in 0..self.rounds(bucket) {
            self.pack(bucket, round);
            let Carrier { sent, received, .. } = self;
            let (bytes, room) = (bytemuck::cast_slice(&sent.numbers), bytemuck::cast_slice_mut(&mut received.numbers));
            transport.all_to_all(bytes, &sent.at, room, &received.at)?;
            self.add_up(bucket, round);
        }
        Ok(())
    }

    /// Puts together what every other rank is to have of the blocks that were computed here.
    fn pack(&mut self, bucket: usize, round: usize) {
        let own = self.place.rank;
        let Carrier { shards, sums, units, blocks, sent, received, .. } = self;
        let chunk = |rank: usize| chunk(shards, units[bucket], bucket, rank, round);
        let of_own = sums_in(shards, sums, chunk(own));
        sent.cut(|rank| if rank == own { 0 } else { blocks[own] * sums_in(shards, sums, chunk(rank)) });
        received.cut(|rank| if rank == own { 0 } else { blocks[rank] * of_own });
        let mut at = 0;
        for rank in (0..blocks.len()).filter(|rank| *rank != own) {
            each_sum(shards, sums, chunk(rank), |piece, states| {
                for state in states {
                    // SAFETY: what is posted is in flight, so that nothing writes it.
                    let block = unsafe { &*part(*state, piece) };
                    sent.numbers[at..at + block.len()].copy_from_slice(block);
                    at += block.len();
                }
            });
        }
    }

    /// Adds up the blocks of all ranks, those of this one where they lie, to where the sums of its part belong.
    fn add_up(&mut self, bucket: usize, round: usize) {
        let own = self.place.rank;
        let Carrier { shards, sums, units, blocks, owners, additions, received, .. } = self;
        let Numbers { numbers, at } = received;
        let came: Lying = &mut numbers[..];
        let mut before = 0;
        each_sum(shards, sums, chunk(shards, units[bucket], bucket, own, round), |piece, states| {
            let length = piece.numbers.len();
            let lying = |block: usize| match owners[block] {
                (rank, block) if rank == own => part(states[block], piece),
                (rank, block) => {
                    let start = at[rank] / size_of::<f32>() + before * blocks[rank] + block * length;
                    part(came, &Piece { tensor: piece.tensor, numbers: start..start + length })
                }
            };
            for &(left, right) in &*additions {
                // SAFETY: blocks lie apart, those that came in one place each of this carrier's, and those of this rank in a state
                // each, which nothing else touches while it is in flight.
                let (sums, numbers) = unsafe { (&mut *lying(left), &*lying(right)) };
                sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            }
            let (first, sum) = (lying(0), part(last(states), piece));
            if !std::ptr::eq(first, sum) {
                // SAFETY: as above.
                unsafe { (*sum).copy_from_slice(&*first) };
            }
            before += length;
        });
    }

    /// Gives every rank the sums of a bucket, of which it has those of its own part.
    pub fn gather_sums(&mut self, bucket: usize, transport: &mut dyn Transport) -> Result<()> {
        self.gather(bucket, transport, |carrier| &carrier.sums)
    }

    /// Gives every rank all of a bucket, of which it has its own part.
    fn gather(
        &mut self,
        bucket: usize,
        transport: &mut dyn Transport,
        of: fn(&Carrier) -> &States<Lying>,
    ) -> Result<()> {
        let Place { rank: own, ranks } = self.place;
        let mut gathered = std::mem::replace(&mut self.gathered, Numbers { numbers: vec![], at: vec![] });
        let mut exchanged = Ok(());
        for round in 0..self.rounds(bucket) {
            let (shards, states) = (&self.shards, of(self));
            let chunk = |rank: usize| chunk(shards, self.units[bucket], bucket, rank, round);
            gathered.cut(|rank| sums_in(shards, states, chunk(rank)));
            let mut at = gathered.start(own);
            each_sum(shards, states, chunk(own), |piece, states| {
                let to = &mut gathered.numbers[at..at + piece.numbers.len()];
                // SAFETY: what is posted is in flight, so that nothing writes it.
                to.copy_from_slice(unsafe { &*part(last(states), piece) });
                at += to.len();
            });
            exchanged = transport.all_gather(bytemuck::cast_slice_mut(&mut gathered.numbers), &gathered.at);
            if exchanged.is_err() {
                break;
            }
            for rank in (0..ranks).filter(|rank| *rank != own) {
                let mut at = gathered.start(rank);
                each_sum(shards, states, chunk(rank), |piece, states| {
                    let length = piece.numbers.len();
                    write(states, piece, &gathered.numbers[at..at + length]);
                    at += length;
                });
            }
        }
        self.gathered = gathered;
        exchanged
    }
}

/// The units of a bucket that a rank has in a round.
fn chunk(shards: &Shards, units: usize, bucket: usize, rank: usize, round: usize) -> Range<usize> {
    let own = shards.units(bucket, rank);
    let start = (own.start + round * units).min(own.end);
    start..(start + units).min(own.end)
}

/// Does something for every sum in some units, given a piece of it and its states.
fn each_sum<T>(shards: &Shards, states: &States<T>, units: Range<usize>, mut each: impl FnMut(&Piece, &[T])) {
    for piece in shards.pieces(units) {
        states[piece.tensor].iter().for_each(|sums| each(&piece, sums));
    }
}

/// How many numbers the sums in some units have.
fn sums_in<T>(shards: &Shards, states: &States<T>, units: Range<usize>) -> usize {
    shards.pieces(units).map(|piece| piece.numbers.len() * states[piece.tensor].len()).sum()
}

fn last(states: &[Lying]) -> Lying {
    *states.last().expect("a sum has a state")
}

/// Where a piece of a state lies.
fn part(state: Lying, piece: &Piece) -> Lying {
    let Range { start, end } = piece.numbers;
    assert!(start <= end && end <= state.len(), "a piece is of its state");
    std::ptr::slice_from_raw_parts_mut(state.cast::<f32>().wrapping_add(start), end - start)
}

/// Writes a piece of the last of some states.
fn write(states: &[Lying], piece: &Piece, numbers: &[f32]) {
    // SAFETY: what is posted is in flight, so that nothing else touches it; and the pieces of a bucket lie apart.
    unsafe { &mut *part(last(states), piece) }.copy_from_slice(numbers);
}
