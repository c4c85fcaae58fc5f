//! Gradients that are given away while others are computed, and whose bytes are then used again: they are packed at once, a round at a
//! time, into one of a few rooms, from which they are exchanged.

use super::carrier::{Carrier, Numbers};
use super::rounds::Rounds;
use crate::Result;
use gradus_comm::{Ticket, Transport, Work};
use std::sync::Arc;

/// Rounds that are packed and not exchanged yet, at most: when there are so many, whoever computes waits.
pub(super) const ROOMS: usize = 8;

/// The numbers of a gradient, by its tensor and its sum.
pub(super) type Giving<'a> = dyn Fn(usize, usize) -> Result<&'a [f32]> + 'a;

/// A round of a bucket, packed.
pub(super) struct Room {
    carrier: *mut Carrier,
    bucket: usize,
    round: usize,
    /// What others are to have, and what stays here.
    sent: Numbers,
    own: Vec<f32>,
}

// SAFETY: the address is followed only by `Room::carry_out`, under what those who post it promise.
unsafe impl Send for Room {}

impl Work for Room {
    fn carry_out(&mut self, transport: &mut dyn Transport) -> gradus_comm::Result<()> {
        let Room { carrier, bucket, round, sent, own, .. } = self;
        // SAFETY: as for an errand: the carrier outlives the thread, and only the thread touches it while anything is posted.
        unsafe { &mut **carrier }.scatter_given((*bucket, *round), sent, own, transport)
    }
}

/// The rooms, which are used in turn.
pub(super) struct Rooms {
    rounds: Arc<Rounds>,
    /// Sums of each tensor.
    sums: Vec<usize>,
    all: Box<[Room]>,
    /// When what is in each is exchanged.
    tickets: Box<[Option<Ticket>]>,
    next: usize,
}

impl Rooms {
    /// For what a carrier exchanges, so many sums of each tensor.
    pub fn new(carrier: *mut Carrier, rounds: Arc<Rounds>, sums: &[usize]) -> Rooms {
        let ranks = rounds.place.ranks;
        let room = |_| Room {
            carrier,
            bucket: 0,
            round: 0,
            sent: Numbers::new(ranks, rounds.most * (ranks - 1)),
            own: vec![0.0; rounds.most],
        };
        let count = ROOMS.min(rounds.of_weights());
        let (all, tickets) = ((0..count).map(room).collect(), vec![None; count].into());
        Rooms { sums: sums.to_vec(), all, tickets, next: 0, rounds }
    }

    /// How many rounds a bucket takes.
    pub fn count(&self, bucket: usize) -> usize {
        self.rounds.count(bucket)
    }

    /// What must be awaited before the next room is used.
    pub fn occupied(&mut self) -> Option<Ticket> {
        self.tickets[self.next].take()
    }

    /// What was packed last is posted.
    pub fn posted(&mut self, ticket: Ticket) {
        self.tickets[self.next] = Some(ticket);
        self.next = (self.next + 1) % self.all.len();
    }

    /// Packs a round of a bucket; where a fault left nothing to give, what is not a number. Gives the room, to be posted.
    pub fn pack(&mut self, bucket: usize, round: usize, given: Option<&Giving<'_>>) -> Result<&mut Room> {
        let Rooms { rounds, sums, all, next, .. } = self;
        let room = &mut all[*next];
        (room.bucket, room.round) = (bucket, round);
        let own = rounds.place.rank;
        let count = |rank: usize| -> usize {
            let pieces = rounds.shards.pieces(rounds.chunk(bucket, rank, round));
            pieces.map(|piece| piece.numbers.len() * sums[piece.tensor]).sum()
        };
        room.sent.cut(|rank| if rank == own { 0 } else { count(rank) });
        for rank in 0..rounds.place.ranks {
            let start = room.sent.start(rank);
            let to = if rank == own { &mut room.own[..] } else { &mut room.sent.numbers[start..] };
            let mut at = 0;
            for piece in rounds.shards.pieces(rounds.chunk(bucket, rank, round)) {
                for sum in 0..sums[piece.tensor] {
                    let to = &mut to[at..at + piece.numbers.len()];
                    match given {
                        Some(given) => to.copy_from_slice(&given(piece.tensor, sum)?[piece.numbers.clone()]),
                        None => to.fill(f32::NAN),
                    }
                    at += to.len();
                }
            }
        }
        Ok(room)
    }
}
