//! Sums over the lanes of all ranks.

use super::Ranks;
use super::shards::{Piece, Shards};
use crate::accumulation::{Summed, waiting_name};
use crate::lanes::{Block, Lanes, Place, SQUARES_TOGETHER, additions};
use crate::parameters::Parameter;
use crate::step::{ALL_SQUARES, Parts};
use crate::{Error, Result};
use gradus_engine::Program;
use std::borrow::Cow;
use std::ops::Range;

/// Numbers that are under way at once: those of all ranks, of one block each. So few stay in the cache from when they are packed
/// until they are where they belong.
const ROUND: usize = 1 << 18;

/// What ranks exchange, a round at a time: in a round every rank gives every other one a part of its blocks, and adds up what it
/// gets.
pub(crate) struct Exchange {
    ranks: Ranks,
    shards: Shards,
    /// By tensor, by sum: the states of the blocks that were computed here, the last of which is that of the sum.
    states: Vec<Vec<Vec<String>>>,
    /// Units that a rank has in a round.
    units: usize,
    /// Blocks of each rank.
    blocks: Vec<usize>,
    /// By which the blocks of all ranks are added up.
    additions: Vec<(usize, usize)>,
    sent: Numbers,
    received: Numbers,
    gathered: Numbers,
    /// The parts of weights that are updated here, if those are parts.
    updated: Option<Updated>,
}

/// Parts of weights that each rank updates.
struct Updated {
    parts: Parts,
    /// By weight, its state, in the form that sums have.
    weights: Vec<Vec<Vec<String>>>,
    /// The squares of all gradients.
    squares: Numbers,
}

/// Numbers of each rank, one after another.
struct Numbers {
    numbers: Vec<f32>,
    /// Where they stand, in bytes.
    at: Vec<usize>,
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

    fn start(&self, rank: usize) -> usize {
        self.at[rank] / size_of::<f32>()
    }
}

/// Bytes that an exchange takes besides the arena, if it is of tensors of these numbers, with so many sums each at most.
pub(crate) fn exchange_bytes(lanes: &Lanes, numbers: Vec<usize>, most_sums: usize) -> u64 {
    let Place { ranks, .. } = lanes.place();
    if ranks == 1 {
        return 0;
    }
    let round = units(&Shards::new(numbers, ranks), most_sums) * SQUARES_TOGETHER * most_sums;
    let all = all_blocks(lanes.count(), ranks).len();
    // What is sent, received and gathered.
    let numbers = round * (ranks * lanes.blocks().len() + all + ranks);
    (size_of::<f32>() * numbers) as u64
}

/// Units that a rank has in a round.
fn units(shards: &Shards, most_sums: usize) -> usize {
    let most = ROUND / (SQUARES_TOGETHER * shards.ranks() * most_sums);
    let all = 0..shards.tensors();
    let largest = (0..shards.ranks()).map(|rank| shards.units(&all, rank).len()).max();
    most.min(largest.unwrap_or(0)).max(1)
}

/// The blocks of all ranks, in the order of the lanes.
fn all_blocks(lanes: usize, ranks: usize) -> Vec<Block> {
    (0..ranks).flat_map(|rank| Lanes::at(lanes, Place { rank, ranks }).blocks()).collect()
}

impl Exchange {
    /// Of what is summed; `parts` are those of the weights of these names that are updated here, if those are parts.
    pub fn new(ranks: Ranks, lanes: &Lanes, summed: &[Summed], parts: Option<(&Parts, &[Parameter])>) -> Exchange {
        let Place { ranks: count, .. } = ranks.place();
        let shards = Shards::new(summed.iter().map(|summed| summed.numbers).collect(), count);
        let blocks: Vec<usize> =
            (0..count).map(|rank| Lanes::at(lanes.count(), Place { rank, ranks: count }).blocks().len()).collect();
        let own = lanes.blocks().len();
        let of_sum = |sum: &String| (0..own - 1).map(|place| waiting_name(place, sum)).chain([sum.clone()]).collect();
        let states = summed.iter().map(|summed| summed.sums.iter().map(of_sum).collect()).collect();
        let most_sums = summed.iter().map(|summed| summed.sums.len()).max().unwrap_or(1);
        let units = units(&shards, most_sums);
        let all: Vec<Block> = all_blocks(lanes.count(), count);
        // As much as a round can have at most.
        let round = units * SQUARES_TOGETHER * most_sums;
        Exchange {
            sent: Numbers::new(count, round * count * own),
            received: Numbers::new(count, round * all.len()),
            gathered: Numbers::new(count, round * count),
            updated: parts.map(|(parts, weights)| Updated::new(parts, weights, count)),
            additions: additions(&all),
            ranks,
            shards,
            states,
            units,
            blocks,
        }
    }

    pub fn ranks(&mut self) -> &mut Ranks {
        &mut self.ranks
    }

    /// Adds up the sums of all ranks. Every rank has all of them then, but for gradients of which it updates a part: of those it
    /// has that part. Allocates nothing.
    pub fn sum(&mut self, program: &mut Program) -> Result<()> {
        let tensors = 0..self.shards.tensors();
        for round in 0..rounds(&self.shards, self.units, &tensors) {
            self.pack(program, &tensors, round)?;
            let Exchange { ranks, sent, received, .. } = self;
            let (bytes, room) = (bytemuck::cast_slice(&sent.numbers), bytemuck::cast_slice_mut(&mut received.numbers));
            ranks.transport().all_to_all(bytes, &sent.at, room, &received.at)?;
            self.add_up(&tensors, round)?;
            self.spread(program, &tensors, round)?;
        }
        self.share_others(program)
    }

    /// Gives every rank the sums that are of no weight, if it has only its part of them.
    fn share_others(&mut self, program: &mut Program) -> Result<()> {
        let Exchange { ranks, shards, states, units, gathered, updated, .. } = self;
        let Some(Updated { weights, .. }) = updated else { return Ok(()) };
        let others = weights.len()..shards.tensors();
        let read = |program: &Program, piece: &Piece, sums: &[String], to: &mut [f32]| {
            to.copy_from_slice(numbers_of(program, sums, &piece.numbers)?);
            Ok(())
        };
        gather(ranks, (shards, *units, others), states, gathered, program, read)
    }

    /// After the routine that squares the parts of gradients that are here: those of all are written to the input that the
    /// update reads. Allocates nothing.
    pub fn share_squares(&mut self, program: &mut Program) -> Result<()> {
        let Some(Updated { parts, squares, .. }) = &mut self.updated else { return Ok(()) };
        let mut at = squares.start(self.ranks.place().rank);
        for (name, count) in &parts.squares {
            program.read_into(&name[..], &mut squares.numbers[at..at + count])?;
            at += count;
        }
        self.ranks.transport().all_gather(bytemuck::cast_slice_mut(&mut squares.numbers), &squares.at)?;
        Ok(program.write(ALL_SQUARES, &squares.numbers)?)
    }

    /// After the update: the new numbers of the parts of all ranks become the weights. Allocates nothing.
    pub fn share_weights(&mut self, program: &mut Program) -> Result<()> {
        let Exchange { ranks, shards, units, gathered, updated, .. } = self;
        let Some(Updated { parts, weights, .. }) = updated else { return Ok(()) };
        let read = |program: &Program, piece: &Piece, _: &[String], to: &mut [f32]| {
            let part = program.look(&parts.outputs[piece.tensor][..])?.ok_or_else(out_of_sight)?;
            let first = piece.numbers.start - parts.numbers[piece.tensor].start;
            to.copy_from_slice(&bytemuck::cast_slice(part)[first..first + to.len()]);
            Ok(())
        };
        gather(ranks, (shards, *units, 0..weights.len()), weights, gathered, program, read)
    }

    /// Makes the sums of all ranks such that the step is refused by all.
    pub fn spoil(&mut self, program: &mut Program) -> Result<()> {
        let sum = self.states[0][0].last().expect("a sum has a state");
        program.fill(sum, |bytes| {
            bytes[..size_of::<f32>()].copy_from_slice(&f32::NAN.to_ne_bytes());
            Ok(())
        })
    }

    /// Puts together what each rank is to have of the blocks that were computed here.
    fn pack(&mut self, program: &Program, tensors: &Range<usize>, round: usize) -> Result<()> {
        let own = self.ranks.place().rank;
        let Exchange { shards, states, units, blocks, sent, received, .. } = self;
        let chunk = |rank: usize| chunk(shards, *units, tensors, rank, round);
        sent.cut(|rank| blocks[own] * sums_in(shards, states, chunk(rank)));
        let of_own = sums_in(shards, states, chunk(own));
        received.cut(|rank| blocks[rank] * of_own);
        let mut at = 0;
        for rank in 0..blocks.len() {
            each_sum(shards, states, chunk(rank), |piece, sums| {
                for state in sums {
                    let block = numbers_of(program, std::slice::from_ref(state), &piece.numbers)?;
                    sent.numbers[at..at + block.len()].copy_from_slice(block);
                    at += block.len();
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adds up the blocks of all ranks, to what this one gives to be gathered.
    fn add_up(&mut self, tensors: &Range<usize>, round: usize) -> Result<()> {
        let own = self.ranks.place().rank;
        let Exchange { shards, states, units, blocks, additions, received, gathered, .. } = self;
        gathered.cut(|rank| sums_in(shards, states, chunk(shards, *units, tensors, rank, round)));
        let start = gathered.start(own);
        let Numbers { numbers, at } = received;
        let mut before = 0;
        each_sum(shards, states, chunk(shards, *units, tensors, own, round), |piece, _| {
            let length = piece.numbers.len();
            // Where a block of this sum begins, counted over all ranks.
            let place = |mut block: usize| {
                let rank = blocks.iter().position(|count| match block < *count {
                    true => true,
                    false => {
                        block -= count;
                        false
                    }
                });
                let rank = rank.expect("a block is a rank's");
                at[rank] / size_of::<f32>() + before * blocks[rank] + block * length
            };
            for &(left, right) in &*additions {
                let (left, right) = (place(left), place(right));
                let (first, second) = numbers.split_at_mut(right);
                let pairs = first[left..left + length].iter_mut().zip(&second[..length]);
                pairs.for_each(|(sum, number)| *sum += number);
            }
            let (first, to) = (place(0), start + before);
            before += length;
            gathered.numbers[to..to + length].copy_from_slice(&numbers[first..first + length]);
            Ok(())
        })
    }

    /// Puts sums where those of this rank were: all of them, or those of its part.
    fn spread(&mut self, program: &mut Program, tensors: &Range<usize>, round: usize) -> Result<()> {
        let Place { rank, ranks: count } = self.ranks.place();
        let Exchange { ranks, shards, states, units, gathered, updated, .. } = self;
        let known = if updated.is_none() {
            ranks.transport().all_gather(bytemuck::cast_slice_mut(&mut gathered.numbers), &gathered.at)?;
            0..count
        } else {
            rank..rank + 1
        };
        for rank in known {
            write_part(program, shards, states, chunk(shards, *units, tensors, rank, round), gathered, rank)?;
        }
        Ok(())
    }
}

impl Updated {
    fn new(parts: &Parts, weights: &[Parameter], ranks: usize) -> Updated {
        let at = parts.squares_at(ranks);
        let numbers = vec![0.0; at[ranks]];
        Updated {
            parts: parts.clone(),
            weights: weights.iter().map(|weight| vec![vec![weight.name.clone()]]).collect(),
            squares: Numbers { numbers, at: at.iter().map(|at| at * size_of::<f32>()).collect() },
        }
    }
}

/// Gives every rank all of some tensors, of which it has its own part: `read` gives a piece of that, and what comes is
/// written to the last of each tensor's states.
fn gather(
    ranks: &mut Ranks,
    (shards, units, tensors): (&Shards, usize, Range<usize>),
    states: &[Vec<Vec<String>>],
    gathered: &mut Numbers,
    program: &mut Program,
    read: impl Fn(&Program, &Piece, &[String], &mut [f32]) -> Result<()>,
) -> Result<()> {
    let Place { rank: own, ranks: count } = ranks.place();
    for round in 0..rounds(shards, units, &tensors) {
        let chunk = |rank: usize| chunk(shards, units, &tensors, rank, round);
        gathered.cut(|rank| sums_in(shards, states, chunk(rank)));
        let mut at = gathered.start(own);
        each_sum(shards, states, chunk(own), |piece, sums| {
            let length = piece.numbers.len();
            read(program, piece, sums, &mut gathered.numbers[at..at + length])?;
            at += length;
            Ok(())
        })?;
        ranks.transport().all_gather(bytemuck::cast_slice_mut(&mut gathered.numbers), &gathered.at)?;
        for rank in 0..count {
            write_part(program, shards, states, chunk(rank), gathered, rank)?;
        }
    }
    Ok(())
}

/// Writes what was gathered of a rank to where it belongs.
fn write_part(
    program: &mut Program,
    shards: &Shards,
    states: &[Vec<Vec<String>>],
    units: Range<usize>,
    gathered: &Numbers,
    rank: usize,
) -> Result<()> {
    let mut at = gathered.start(rank);
    each_sum(shards, states, units, |piece, sums| {
        let length = piece.numbers.len();
        write_to(program, sums, piece, &gathered.numbers[at..at + length])?;
        at += length;
        Ok(())
    })
}

/// How often parts of some tensors are exchanged.
fn rounds(shards: &Shards, units: usize, tensors: &Range<usize>) -> usize {
    let of_ranks = (0..shards.ranks()).map(|rank| shards.units(tensors, rank).len());
    of_ranks.max().unwrap_or(0).div_ceil(units)
}

fn out_of_sight() -> Error {
    Error::Config("ranks exchange what the host can see; take `settings.device` cpu".into())
}

/// The units of some tensors that a rank has in a round.
fn chunk(shards: &Shards, units: usize, tensors: &Range<usize>, rank: usize, round: usize) -> Range<usize> {
    let own = shards.units(tensors, rank);
    let start = (own.start + round * units).min(own.end);
    start..(start + units).min(own.end)
}

/// Does something for every sum in some units, given a piece of it and its states.
fn each_sum(
    shards: &Shards,
    states: &[Vec<Vec<String>>],
    units: Range<usize>,
    mut each: impl FnMut(&Piece, &[String]) -> Result<()>,
) -> Result<()> {
    for piece in shards.pieces(units) {
        states[piece.tensor].iter().try_for_each(|sums| each(&piece, sums))?;
    }
    Ok(())
}

/// How many numbers the sums in some units have.
fn sums_in(shards: &Shards, states: &[Vec<Vec<String>>], units: Range<usize>) -> usize {
    shards.pieces(units).map(|piece| piece.numbers.len() * states[piece.tensor].len()).sum()
}

/// The numbers of the last of some states.
fn numbers_of<'p>(program: &'p Program, states: &[String], numbers: &Range<usize>) -> Result<&'p [f32]> {
    let state = states.last().expect("a sum has a state");
    match program.bytes(&state[..])? {
        Cow::Borrowed(bytes) => Ok(&bytemuck::cast_slice(bytes)[numbers.clone()]),
        Cow::Owned(_) => Err(out_of_sight()),
    }
}

/// Writes a piece of the last of some states.
fn write_to(program: &mut Program, states: &[String], piece: &Piece, numbers: &[f32]) -> Result<()> {
    let state = states.last().expect("a sum has a state");
    let at = piece.numbers.start * size_of::<f32>();
    program.fill(&state[..], |bytes| {
        let numbers: &[u8] = bytemuck::cast_slice(numbers);
        bytes[at..at + numbers.len()].copy_from_slice(numbers);
        Ok(())
    })
}
