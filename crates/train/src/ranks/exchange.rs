//! Sums over the lanes of all ranks, a bucket of weights at a time, beside what is computed.
//!
//! A bucket is scattered as soon as its gradients are there: each rank then has the sums of its part of it. What is left is
//! gathered: all sums, or where each rank updates its part, the new weights. Some sums are gathered between scatters, while the
//! backward pass leaves the link idle, and the others while the next step computes, in the order in which that needs them. All ranks
//! post the same in the same order: how many are gathered early is what the first of them says.

use super::Ranks;
use super::carrier::{Carrier, Errand, Lying, Numbers, States, Task};
use super::shards::Shards;
use crate::accumulation::{Summed, waiting_name};
use crate::lanes::{Lanes, Place};
use crate::parameters::Parameter;
use crate::step::{ALL_SQUARES, Parts};
use crate::{Error, Result};
use gradus_comm::{Collective, Ticket};
use gradus_engine::Program;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bits of a number that say how many losses count; those above say how many buckets are gathered early.
const COUNTED_BITS: u32 = 48;

/// What ranks exchange in a step.
pub(crate) struct Exchange {
    /// First, so that its thread has ended before what it works on goes.
    ranks: Ranks,
    carrier: Box<Carrier>,
    /// By task and bucket, what is posted.
    errands: Box<[Errand]>,
    shards: Shards,
    parts: Parts,
    /// The names of the states that the carrier is told of.
    sums: States<String>,
    weights: States<String>,
    /// The squares of all gradients, by rank, and in the order of the weights.
    squares: Numbers,
    all_squares: Vec<f32>,
    step: UnderWay,
    /// How many buckets are gathered while the backward pass computes.
    early: usize,
}

/// Where the exchange of a step stands.
struct UnderWay {
    /// By bucket: whether its gradients are there.
    ready: Vec<bool>,
    /// How many buckets were scattered, from the last of the weights to the first, and then what is of no weight.
    scattered: usize,
    /// By bucket of weights: whether it is being gathered, or was.
    gathered: Vec<bool>,
    /// By bucket, when it is gathered.
    tickets: Vec<Option<Ticket>>,
    last: Option<Ticket>,
    /// When the gradients of the last weights were there, and those of the first.
    begun: Instant,
    ended: Instant,
}

/// Whether the bucket of weights that is scattered at this place, counted from 1, is gathered at once, if so many are. Those lie evenly
/// among all: so the next forward pass meets one of them while others are still gathered, and the link is not idle once they are.
pub(super) fn is_gathered_early(place: usize, weights: usize, early: usize) -> bool {
    place < weights && place * early / weights > (place - 1) * early / weights
}

impl Exchange {
    /// Of what is summed, the first of which are the gradients of these weights.
    pub fn new(ranks: Ranks, lanes: &Lanes, summed: &[Summed], parts: &Parts, weights: &[Parameter]) -> Exchange {
        let Place { ranks: count, .. } = ranks.place();
        let shards = parts.shards().clone();
        let own = lanes.blocks().len();
        let of_sum = |sum: &String| (0..own - 1).map(|place| waiting_name(place, sum)).chain([sum.clone()]).collect();
        let sums = summed.iter().map(|summed| summed.sums.iter().map(of_sum).collect()).collect();
        let counts: Vec<usize> = summed.iter().map(|summed| summed.sums.len()).collect();
        let mut carrier = Box::new(Carrier::new(lanes, shards.clone(), &counts));
        let buckets = shards.of_weights() + 1;
        let place: *mut Carrier = &mut *carrier;
        let now = Instant::now();
        let tasks = [Task::Scatter, Task::GatherSums, Task::GatherWeights];
        let errand = |task| move |bucket| Errand { carrier: place, task, bucket, took: Duration::ZERO };
        let errands = tasks.into_iter().flat_map(|task| (0..buckets).map(errand(task))).collect();
        let at = parts.squares_at(count);
        let numbers = vec![0.0; at[count]];
        Exchange {
            ranks,
            carrier,
            errands,
            sums,
            weights: weights.iter().map(|weight| vec![vec![weight.name.clone()]]).collect(),
            all_squares: numbers.clone(),
            squares: Numbers { numbers, at: at.iter().map(|at| at * size_of::<f32>()).collect() },
            parts: parts.clone(),
            step: UnderWay {
                ready: vec![false; buckets],
                scattered: 0,
                gathered: vec![false; buckets - 1],
                // There is nothing to gather before the first step.
                tickets: vec![None; buckets],
                last: None,
                begun: now,
                ended: now,
            },
            early: 0,
            shards,
        }
    }

    pub fn ranks(&mut self) -> &mut Ranks {
        &mut self.ranks
    }

    /// How many losses of all ranks count, and how the next sums are gathered.
    pub fn agree(&mut self, counted: u64) -> Result<u64> {
        let most = (1 << COUNTED_BITS) - 1;
        let own = counted.min(most) | ((self.early + self.idle_buckets()).div_ceil(2) as u64) << COUNTED_BITS;
        let of_ranks = self.ranks.numbers(own)?;
        self.early = (of_ranks[0] >> COUNTED_BITS) as usize;
        Ok(of_ranks.iter().fold(0u64, |sum, of_rank| sum.saturating_add(of_rank & most)))
    }

    /// How many buckets could have been gathered in the last step while the link had nothing to scatter.
    fn idle_buckets(&self) -> usize {
        let weights = self.shards.of_weights();
        let took = |task: Task, buckets: Range<usize>| -> Duration {
            let errands = self.errands.iter().filter(|errand| errand.task == task && buckets.contains(&errand.bucket));
            errands.map(|errand| errand.took).sum()
        };
        let gather = took(Task::GatherSums, 0..weights) / weights as u32;
        // The first weights are scattered when all is computed.
        let idle = (self.step.ended - self.step.begun).saturating_sub(took(Task::Scatter, 1..weights));
        match gather.is_zero() {
            true => 0,
            false => (idle.as_secs_f64() / gather.as_secs_f64()).min(weights as f64 - 1.0) as usize,
        }
    }

    /// Tells the carrier where everything lies. Nothing may be under way.
    fn find(&mut self, program: &mut Program) -> Result<()> {
        find(&self.sums, &mut self.carrier.sums, program)?;
        find(&self.weights, &mut self.carrier.weights, program)
    }

    /// The gradients of a bucket are there: it is scattered, if all those are that come before it. The sums are then in flight.
    pub fn ready(&mut self, bucket: usize, program: &mut Program) -> Result<()> {
        let weights = self.shards.of_weights();
        if !self.step.ready.contains(&true) {
            // The first of a step: nothing is under way.
            self.find(program)?;
            self.step.scattered = 0;
            self.step.gathered.fill(false);
        }
        self.step.ready[bucket] = true;
        while self.step.scattered <= weights {
            let next = weights.checked_sub(self.step.scattered + 1).unwrap_or(weights);
            if !self.step.ready[next] {
                break;
            }
            match next {
                0 => self.step.ended = Instant::now(),
                next if next + 1 == weights => self.step.begun = Instant::now(),
                _ => {}
            }
            self.step.last = Some(self.post(Task::Scatter, next));
            self.step.scattered += 1;
            if next == weights {
                self.step.tickets[next] = Some(self.post(Task::GatherSums, next));
                self.step.last = self.step.tickets[next];
            } else if !self.parts.is_sharded() && is_gathered_early(self.step.scattered, weights, self.early) {
                self.gather_bucket(Task::GatherSums, next);
            }
        }
        Ok(())
    }

    /// All gradients are there. Waits until this rank has the sums of its parts, and all that is of no weight.
    pub fn scattered(&mut self, program: &mut Program) -> Result<()> {
        (0..=self.shards.of_weights()).try_for_each(|bucket| self.ready(bucket, program))?;
        self.step.ready.fill(false);
        self.wait(self.step.last)
    }

    /// Gathers what is left: sums, or weights whose parts are new.
    pub fn gather(&mut self) {
        let task = if self.parts.is_sharded() { Task::GatherWeights } else { Task::GatherSums };
        for bucket in 0..self.shards.of_weights() {
            if !self.step.gathered[bucket] {
                self.gather_bucket(task, bucket);
            }
        }
    }

    fn gather_bucket(&mut self, task: Task, bucket: usize) {
        self.step.tickets[bucket] = Some(self.post(task, bucket));
        self.step.gathered[bucket] = true;
    }

    /// Waits until a bucket is gathered.
    pub fn gathered(&mut self, bucket: usize) -> Result<()> {
        let ticket = self.step.tickets[bucket].take();
        self.wait(ticket)
    }

    /// Waits until all is gathered that is on its way.
    pub fn all_gathered(&mut self) -> Result<()> {
        (0..self.shards.of_weights()).try_for_each(|bucket| self.gathered(bucket))
    }

    fn post(&mut self, task: Task, bucket: usize) -> Ticket {
        let place = task as usize * (self.shards.of_weights() + 1) + bucket;
        let work: *mut Errand = &mut self.errands[place];
        // SAFETY: errand, carrier and arena are there until the thread has ended: `ranks`, which has it, goes first of the
        // exchange, and the exchange before the program (`TrainingStep`). Steps touch nothing that is in flight, as the verifier
        // has seen of every routine with marks; any other is run only when nothing is.
        unsafe { self.ranks.thread().post(Collective::Work(work)) }
    }

    fn wait(&mut self, ticket: Option<Ticket>) -> Result<()> {
        ticket.map_or(Ok(()), |ticket| Ok(self.ranks.thread().wait(ticket)?))
    }

    /// After the routine that squares the parts of gradients that are here: those of all are written to the input that the
    /// update reads. Allocates nothing.
    pub fn share_squares(&mut self, program: &mut Program) -> Result<()> {
        let Exchange { ranks, shards, parts, squares, all_squares, .. } = self;
        let Place { rank: own, ranks: count } = ranks.place();
        let mut at = squares.start(own);
        for (name, count) in &parts.squares {
            program.read_into(&name[..], &mut squares.numbers[at..at + count])?;
            at += count;
        }
        ranks.transport().all_gather(bytemuck::cast_slice_mut(&mut squares.numbers), &squares.at)?;
        for rank in 0..count {
            let mut at = squares.start(rank);
            for bucket in 0..shards.of_weights() {
                let units = shards.units(bucket, rank);
                let end = at + units.len();
                all_squares[units].copy_from_slice(&squares.numbers[at..end]);
                at = end;
            }
        }
        Ok(program.write(ALL_SQUARES, all_squares)?)
    }

    /// After the update of the parts that are here: their new numbers become those of the weights. Allocates nothing.
    pub fn take_parts(&mut self, program: &mut Program) -> Result<()> {
        let room = &mut self.carrier.gathered.numbers;
        for (weight, numbers) in self.parts.numbers.iter().enumerate() {
            for first in numbers.clone().step_by(room.len()) {
                let end = numbers.end.min(first + room.len());
                let part = program.look(&self.parts.outputs[weight][..])?.ok_or_else(out_of_sight)?;
                let part: &[f32] = &bytemuck::cast_slice(part)[first - numbers.start..end - numbers.start];
                room[..part.len()].copy_from_slice(part);
                program.fill(&self.weights[weight][0][0][..], |bytes| {
                    bytemuck::cast_slice_mut(bytes)[first..end].copy_from_slice(&room[..end - first]);
                    Ok::<(), Error>(())
                })?;
            }
        }
        Ok(())
    }

    /// Makes the sums of all ranks such that the step is refused by all. Nothing of it may be under way.
    pub fn spoil(&mut self, program: &mut Program) -> Result<()> {
        let sum = self.sums[0][0].last().expect("a sum has a state");
        program.fill(sum, |bytes| {
            bytes[..size_of::<f32>()].copy_from_slice(&f32::NAN.to_ne_bytes());
            Ok(())
        })
    }
}

/// Finds where states lie. Allocates nothing but the first time.
fn find(names: &States<String>, found: &mut States<Lying>, program: &mut Program) -> Result<()> {
    if found.is_empty() {
        let none = |_: &String| std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut::<f32>(), 0);
        let of_sum = |states: &Vec<String>| states.iter().map(none).collect();
        *found = names.iter().map(|sums| sums.iter().map(of_sum).collect()).collect();
    }
    let names = names.iter().flatten().flatten();
    for (name, lying) in names.zip(found.iter_mut().flatten().flatten()) {
        let place = program.place(name)?.ok_or_else(out_of_sight)?;
        *lying = std::ptr::slice_from_raw_parts_mut(place.cast(), place.len() / size_of::<f32>());
    }
    Ok(())
}

fn out_of_sight() -> Error {
    Error::Config("ranks exchange what the host can see; take `settings.device` cpu".into())
}
