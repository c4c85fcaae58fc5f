//! What the communication thread does with sums and weights where they lie: it adds the blocks of all ranks up, and gives every
//! rank the parts that others have.

use super::rounds::{ON_HOST, Rounds, States};
use super::shards::{Piece, Shards};
use crate::lanes::{Lanes, Place};
use gradus_comm::{Result, Transport, Work};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The numbers of a state where it lies, for as long as nothing else touches it.
pub(super) type Lying = *mut [f32];

/// Exchanges buckets, a round at a time: in a round every rank gives every other one a part of its blocks, and adds up what it gets.
pub(super) struct Carrier {
    pub rounds: Arc<Rounds>,
    sent: Numbers,
    received: Numbers,
    pub gathered: Numbers,
    /// Where sums and weights lie.
    pub sums: States<Lying>,
    pub weights: States<Lying>,
    /// By tensor, the number at which its sums begin: not the first where only a part of them is here.
    pub starts: Vec<usize>,
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

impl Task {
    pub const ALL: [Task; 3] = [Task::Scatter, Task::GatherSums, Task::GatherWeights];
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
    pub fn new(ranks: usize, numbers: usize) -> Numbers {
        Numbers { numbers: vec![0.0; numbers], at: vec![0; ranks + 1] }
    }

    /// Says how many numbers each rank has.
    pub fn cut(&mut self, numbers: impl Fn(usize) -> usize) {
        for rank in 0..self.at.len() - 1 {
            self.at[rank + 1] = self.at[rank] + size_of::<f32>() * numbers(rank);
        }
    }

    pub fn start(&self, rank: usize) -> usize {
        self.at[rank] / size_of::<f32>()
    }
}

impl Carrier {
    /// For sums of these lanes and shards, so many of each tensor. Where they lie is told before anything is posted.
    pub fn new(lanes: &Lanes, shards: Shards, sums: &[usize]) -> Carrier {
        let Place { ranks, .. } = lanes.place();
        let rounds = Arc::new(Rounds::new(lanes, shards, sums, ON_HOST));
        let own = lanes.blocks().len();
        // As much as a round can have at most. Of what goes, no page is touched where gradients are given from rooms.
        Carrier {
            sent: Numbers::new(ranks, rounds.most * (ranks - 1) * own),
            received: Numbers::new(ranks, rounds.most * (rounds.owners.len() - own)),
            gathered: Numbers::new(ranks, rounds.most * ranks),
            rounds,
            sums: vec![],
            weights: vec![],
            starts: vec![0; sums.len()],
        }
    }

    pub fn scatter(&mut self, bucket: usize, transport: &mut dyn Transport) -> Result<()> {
        for round in 0..self.rounds.count(bucket) {
            self.pack(bucket, round);
            let Carrier { sent, received, .. } = self;
            let (bytes, room) = (bytemuck::cast_slice(&sent.numbers), bytemuck::cast_slice_mut(&mut received.numbers));
            transport.all_to_all(bytes, &sent.at, room, &received.at)?;
            self.add_up(bucket, round);
        }
        Ok(())
    }

    /// As for a round of [`Carrier::scatter`], of what is packed: what others are to have, and what stays here, in the only block
    /// of this rank.
    pub fn scatter_given(
        &mut self,
        (bucket, round): (usize, usize),
        sent: &Numbers,
        own: &[f32],
        transport: &mut dyn Transport,
    ) -> Result<()> {
        let Carrier { rounds, sums, received, starts, .. } = self;
        let (rank, blocks) = (rounds.place.rank, &rounds.blocks);
        let chunk = rounds.chunk(bucket, rank, round);
        let of_own = rounds.sums_in(sums, chunk.clone());
        received.cut(|from| if from == rank { 0 } else { blocks[from] * of_own });
        let (bytes, room) = (bytemuck::cast_slice(&sent.numbers), bytemuck::cast_slice_mut(&mut received.numbers));
        transport.all_to_all(bytes, &sent.at, room, &received.at)?;
        let mut at = 0;
        rounds.each_sum(sums, chunk, |piece, states| {
            let length = piece.numbers.len();
            write(states, &piece.from(starts[piece.tensor]), &own[at..at + length]);
            at += length;
        });
        self.add_up(bucket, round);
        Ok(())
    }

    /// Puts together what every other rank is to have of the blocks that were computed here.
    fn pack(&mut self, bucket: usize, round: usize) {
        let Carrier { rounds, sums, sent, received, .. } = self;
        let (own, blocks) = (rounds.place.rank, &rounds.blocks);
        let chunk = |rank: usize| rounds.chunk(bucket, rank, round);
        let of_own = rounds.sums_in(sums, chunk(own));
        sent.cut(|rank| if rank == own { 0 } else { blocks[own] * rounds.sums_in(sums, chunk(rank)) });
        received.cut(|rank| if rank == own { 0 } else { blocks[rank] * of_own });
        let mut at = 0;
        for rank in rounds.others() {
            rounds.each_sum(sums, chunk(rank), |piece, states| {
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
        let Carrier { rounds, sums, received, starts, .. } = self;
        let (own, blocks) = (rounds.place.rank, &rounds.blocks);
        let Numbers { numbers, at } = received;
        let came: Lying = &mut numbers[..];
        let mut before = 0;
        rounds.each_sum(sums, rounds.chunk(bucket, own, round), |piece, states| {
            let (length, here) = (piece.numbers.len(), piece.from(starts[piece.tensor]));
            let lying = |block: usize| match rounds.owners[block] {
                (rank, block) if rank == own => part(states[block], &here),
                (rank, block) => {
                    let start = at[rank] / size_of::<f32>() + before * blocks[rank] + block * length;
                    part(came, &Piece { tensor: piece.tensor, numbers: start..start + length })
                }
            };
            for &(left, right) in &rounds.additions[..] {
                // SAFETY: blocks lie apart, those that came in one place each of this carrier's, and those of this rank in a state
                // each, which nothing else touches while it is in flight.
                let (sums, numbers) = unsafe { (&mut *lying(left), &*lying(right)) };
                sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            }
            let (first, sum) = (lying(0), part(last(states), &here));
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
        let mut gathered = std::mem::replace(&mut self.gathered, Numbers { numbers: vec![], at: vec![] });
        let (rounds, own) = (&self.rounds, self.rounds.place.rank);
        let mut exchanged = Ok(());
        for round in 0..rounds.count(bucket) {
            let states = of(self);
            let chunk = |rank: usize| rounds.chunk(bucket, rank, round);
            gathered.cut(|rank| rounds.sums_in(states, chunk(rank)));
            let mut at = gathered.start(own);
            rounds.each_sum(states, chunk(own), |piece, states| {
                let to = &mut gathered.numbers[at..at + piece.numbers.len()];
                // SAFETY: what is posted is in flight, so that nothing writes it.
                to.copy_from_slice(unsafe { &*part(last(states), piece) });
                at += to.len();
            });
            exchanged = transport.all_gather(bytemuck::cast_slice_mut(&mut gathered.numbers), &gathered.at);
            if exchanged.is_err() {
                break;
            }
            for rank in rounds.others() {
                let mut at = gathered.start(rank);
                rounds.each_sum(states, chunk(rank), |piece, states| {
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
