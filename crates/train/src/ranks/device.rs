//! What devices exchange whose memory the host does not see, as meetings that are made once: messages go from where numbers lie to
//! where they belong or are added up, by the same tree.

use super::carrier::Task;
use super::rounds::{ON_DEVICE, Rounds, States};
use super::shards::{Piece, Shards};
use crate::lanes::Lanes;
use crate::{Error, Result};
use gradus_engine::backend::{Meeting, Message, Peers, TreeSum};
use std::time::Duration;

const NUMBER: u64 = size_of::<f32>() as u64;

/// The tasks of a step for every bucket.
pub(super) struct DeviceCarrier {
    rounds: Rounds,
    peers: Box<dyn Peers>,
    patience: Duration,
    /// Where messages come to, if there is room for them yet.
    room: Option<u64>,
    /// Whether what is called by a number lies where it did when that was made ready.
    ready: Vec<bool>,
    /// Where sums and weights lie; nothing as long as that is not known.
    pub sums: States<u64>,
    pub weights: States<u64>,
}

impl DeviceCarrier {
    /// For sums of these lanes and shards, so many of each tensor.
    pub fn new(
        lanes: &Lanes,
        shards: Shards,
        sums: &[usize],
        (peers, patience): (Box<dyn Peers>, Duration),
    ) -> Result<DeviceCarrier> {
        let rounds = Rounds::new(lanes, shards, sums, ON_DEVICE);
        if rounds.owners.len() > TreeSum::MOST_BLOCKS {
            return Err(Error::Config(format!(
                "{} ranks have too many parts of the batch to be added up on GPUs, which take {}; start fewer",
                rounds.place.ranks,
                TreeSum::MOST_BLOCKS
            )));
        }
        Ok(DeviceCarrier { rounds, peers, patience, room: None, ready: vec![], sums: vec![], weights: vec![] })
    }

    /// From now on everything lies elsewhere.
    pub fn forget(&mut self) {
        (self.sums, self.weights) = (vec![], vec![]);
        self.ready.fill(false);
    }

    /// Begins a task for a bucket.
    pub fn carry_out(&mut self, task: Task, bucket: usize) -> Result<()> {
        let number = task as usize * (self.rounds.shards.of_weights() + 1) + bucket;
        if !self.is_ready(number) {
            let room = self.room()?;
            let meetings = (0..self.rounds.count(bucket)).map(|round| match task {
                Task::Scatter => scattering(&self.rounds, &self.sums, room, (bucket, round)),
                Task::GatherSums => gathering(&self.rounds, &self.sums, (bucket, round)),
                Task::GatherWeights => gathering(&self.rounds, &self.weights, (bucket, round)),
            });
            self.prepare(number, meetings.collect())?;
        }
        Ok(self.peers.meet(number)?)
    }

    /// Begins to copy numbers from one place on the device to another; these are found the first time.
    pub fn copy(&mut self, find: impl FnOnce() -> Result<Vec<TreeSum>>) -> Result<()> {
        let number = Task::ALL.len() * (self.rounds.shards.of_weights() + 1);
        if !self.is_ready(number) {
            self.prepare(number, vec![Meeting { messages: vec![], sums: find()? }])?;
        }
        Ok(self.peers.meet(number)?)
    }

    /// Waits until all is done that was begun.
    pub fn wait(&mut self) -> Result<()> {
        // Who does not come is another rank.
        let waited = self.peers.wait(self.patience);
        waited.map_err(|error| gradus_comm::Error::Devices { reason: error.to_string() }.into())
    }

    fn is_ready(&self, number: usize) -> bool {
        self.ready.get(number).copied().unwrap_or(false)
    }

    fn prepare(&mut self, number: usize, meetings: Vec<Meeting>) -> Result<()> {
        // SAFETY: states and outputs lie where the program says, as large as they are, until another plan is linked, after which
        // `forget` is called; and what came is within the room, of which there is as much as a round can have.
        unsafe { self.peers.prepare(number, meetings) }?;
        self.ready.resize(self.ready.len().max(number + 1), false);
        self.ready[number] = true;
        Ok(())
    }

    fn room(&mut self) -> Result<u64> {
        if let Some(room) = self.room {
            return Ok(room);
        }
        let room = self.peers.room(self.rounds.most * self.rounds.owners.len())?;
        Ok(*self.room.insert(room))
    }
}

/// Every rank gets the sums of its part in a round: it is sent the blocks of all others, and adds them up with its own.
fn scattering(rounds: &Rounds, sums: &States<u64>, room: u64, (bucket, round): (usize, usize)) -> Meeting {
    let own = rounds.place.rank;
    let mut meeting = Meeting::default();
    // Where the blocks of each rank come to.
    let mut came = vec![room; rounds.place.ranks];
    let mut end = room;
    for peer in rounds.others() {
        rounds.each_sum(sums, rounds.chunk(bucket, peer, round), |piece, states| {
            let block = |state: &u64| message(peer, true, part(*state, piece), piece);
            meeting.messages.extend(states.iter().map(block));
        });
        came[peer] = end;
        rounds.each_sum(sums, rounds.chunk(bucket, own, round), |piece, _| {
            for _ in 0..rounds.blocks[peer] {
                meeting.messages.push(message(peer, false, end, piece));
                end += bytes(piece);
            }
        });
    }
    rounds.each_sum(sums, rounds.chunk(bucket, own, round), |piece, states| {
        let address = |&(rank, block): &(usize, usize)| match rank == own {
            true => part(states[block], piece),
            false => came[rank] + block as u64 * bytes(piece),
        };
        meeting.sums.push(TreeSum {
            blocks: rounds.owners.iter().map(address).collect(),
            additions: rounds.additions.clone(),
            target: part(last(states), piece),
            numbers: piece.numbers.len(),
        });
        came.iter_mut().zip(&rounds.blocks).for_each(|(came, blocks)| *came += *blocks as u64 * bytes(piece));
    });
    meeting
}

/// Every rank gets all of a bucket in a round, of which it has its own part.
fn gathering(rounds: &Rounds, states: &States<u64>, (bucket, round): (usize, usize)) -> Meeting {
    let own = rounds.place.rank;
    let mut meeting = Meeting::default();
    for peer in rounds.others() {
        for (rank, is_sent) in [(own, true), (peer, false)] {
            rounds.each_sum(states, rounds.chunk(bucket, rank, round), |piece, states| {
                meeting.messages.push(message(peer, is_sent, part(last(states), piece), piece));
            });
        }
    }
    meeting
}

fn message(peer: usize, is_sent: bool, address: u64, piece: &Piece) -> Message {
    Message { peer, is_sent, address, numbers: piece.numbers.len() }
}

fn bytes(piece: &Piece) -> u64 {
    piece.numbers.len() as u64 * NUMBER
}

/// Where a piece of a state lies.
fn part(state: u64, piece: &Piece) -> u64 {
    state + piece.numbers.start as u64 * NUMBER
}

fn last(states: &[u64]) -> u64 {
    *states.last().expect("a sum has a state")
}
