//! Sums over the lanes of all ranks, a bucket of weights at a time, beside what is computed.
//!
//! A bucket is scattered as soon as its gradients are there: each rank then has the sums of its part of it. What is left is
//! gathered: all sums, or where each rank updates its part, the new weights. Some sums are gathered between scatters, while the
//! backward pass leaves the link idle, and the others while the next step computes, in the order in which that needs them. All ranks
//! post the same in the same order: how many are gathered early is what the first of them says. Devices do the same one after another,
//! in turns with what they compute.

use super::Ranks;
use super::carrier::{Carrier, Errand, Lying, Numbers, Task};
use super::device::DeviceCarrier;
use super::given::{Giving, Room, Rooms};
use super::rounds::States;
use super::shards::Shards;
use crate::accumulation::{Summed, waiting_name};
use crate::lanes::{Lanes, Place};
use crate::parameters::Parameter;
use crate::step::{ALL_SQUARES, Parts};
use crate::{Error, Result};
use gradus_comm::{Collective, Ticket, patience};
use gradus_engine::Program;
use gradus_engine::backend::TreeSum;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bits of a number that say how many losses count; those above say how many buckets are gathered early.
const COUNTED_BITS: u32 = 48;

/// What ranks exchange in a step.
pub(crate) struct Exchange {
    /// First, so that its thread has ended before what it works on goes.
    ranks: Ranks,
    way: Way,
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

/// What carries sums and weights, by where they lie.
enum Way {
    /// With what is posted, by task and bucket.
    Host {
        carrier: Box<Carrier>,
        errands: Box<[Errand]>,
        /// Where gradients are packed that are given away, if they are.
        rooms: Option<Rooms>,
    },
    Device(Box<DeviceCarrier>),
}

impl Way {
    fn on_host(carrier: Carrier, parts: &Parts, sums: &[usize]) -> Way {
        let mut carrier = Box::new(carrier);
        let place: *mut Carrier = &mut *carrier;
        let rooms = parts.gives.then(|| {
            let starts = carrier.starts.iter_mut().zip(&parts.numbers);
            starts.for_each(|(start, numbers)| *start = numbers.start);
            Rooms::new(place, carrier.rounds.clone(), sums)
        });
        let errand = |task| move |bucket| Errand { carrier: place, task, bucket, took: Duration::ZERO };
        let buckets = 0..=parts.shards().of_weights();
        let errands = Task::ALL.into_iter().flat_map(|task| buckets.clone().map(errand(task))).collect();
        Way::Host { carrier, errands, rooms }
    }
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
    pub fn new(
        mut ranks: Ranks,
        lanes: &Lanes,
        summed: &[Summed],
        parts: &Parts,
        weights: &[Parameter],
    ) -> Result<Exchange> {
        let Place { ranks: count, .. } = ranks.place();
        let shards = parts.shards().clone();
        let own = lanes.blocks().len();
        let of_sum = |sum: &String| (0..own - 1).map(|place| waiting_name(place, sum)).chain([sum.clone()]).collect();
        let of_tensor = |(tensor, summed): (usize, &Summed)| match parts.gives && parts.has_none(tensor) {
            true => vec![vec![]; summed.sums.len()],
            false => summed.sums.iter().map(of_sum).collect(),
        };
        let sums = summed.iter().enumerate().map(of_tensor).collect();
        let counts: Vec<usize> = summed.iter().map(|summed| summed.sums.len()).collect();
        let buckets = shards.of_weights() + 1;
        let way = match ranks.take_peers() {
            None => Way::on_host(Carrier::new(lanes, shards.clone(), &counts), parts, &counts),
            Some(peers) => {
                Way::Device(Box::new(DeviceCarrier::new(lanes, shards.clone(), &counts, (peers, patience()?))?))
            }
        };
        let now = Instant::now();
        let at = parts.squares_at(count);
        let numbers = vec![0.0; at[count]];
        Ok(Exchange {
            ranks,
            way,
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
        })
    }

    /// Whether it is done beside what is computed.
    pub fn is_beside(&self) -> bool {
        matches!(self.way, Way::Host { .. })
    }

    /// Another plan was linked: everything lies elsewhere.
    pub fn moved(&mut self) {
        if let Way::Device(carrier) = &mut self.way {
            carrier.forget();
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
        let Way::Host { errands, .. } = &self.way else { return 0 };
        let took = |task: Task, buckets: Range<usize>| -> Duration {
            let errands = errands.iter().filter(|errand| errand.task == task && buckets.contains(&errand.bucket));
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
        match &mut self.way {
            Way::Host { carrier, .. } => {
                find(&self.sums, &mut carrier.sums, &mut |state| lying(program, state))?;
                find(&self.weights, &mut carrier.weights, &mut |state| lying(program, state))
            }
            Way::Device(carrier) if carrier.sums.is_empty() => {
                find(&self.sums, &mut carrier.sums, &mut |state| address(program, state))?;
                find(&self.weights, &mut carrier.weights, &mut |state| address(program, state))
            }
            Way::Device(_) => Ok(()),
        }
    }

    /// The gradients of a bucket are there: it is scattered, if all those are that come before it. The sums are then in flight.
    pub fn ready(&mut self, bucket: usize, program: &mut Program) -> Result<()> {
        self.begin(bucket, program, true)
    }

    /// Waits until all is exchanged that was begun.
    pub fn wait_for_last(&mut self) -> Result<()> {
        self.wait(self.step.last)
    }

    /// As [`Exchange::ready`]; or what would be given of the bucket is lost to a fault.
    fn begin(&mut self, bucket: usize, program: &mut Program, is_there: bool) -> Result<()> {
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
            self.step.last = match self.gives() && next < weights {
                true => {
                    assert_eq!(next, bucket, "buckets are given in order");
                    self.give(next, program, is_there)?
                }
                false => self.post(Task::Scatter, next)?,
            };
            self.step.scattered += 1;
            if next == weights {
                self.step.tickets[next] = self.post(Task::GatherSums, next)?;
                self.step.last = self.step.tickets[next];
            } else if !self.parts.is_sharded() && is_gathered_early(self.step.scattered, weights, self.early) {
                self.gather_bucket(Task::GatherSums, next)?;
            }
        }
        Ok(())
    }

    /// All gradients are there. Waits until this rank has the sums of its parts, and all that is of no weight.
    pub fn scattered(&mut self, program: &mut Program) -> Result<()> {
        let weights = self.shards.of_weights();
        for bucket in (0..weights).rev().chain([weights]) {
            if !self.step.ready[bucket] {
                self.begin(bucket, program, false)?;
            }
        }
        self.step.ready.fill(false);
        self.wait(self.step.last)?;
        self.wait_for_device()
    }

    /// Gathers what is left: sums, or weights whose parts are new.
    pub fn gather(&mut self) -> Result<()> {
        let task = if self.parts.is_sharded() { Task::GatherWeights } else { Task::GatherSums };
        for bucket in 0..self.shards.of_weights() {
            if !self.step.gathered[bucket] {
                self.gather_bucket(task, bucket)?;
            }
        }
        Ok(())
    }

    fn gather_bucket(&mut self, task: Task, bucket: usize) -> Result<()> {
        self.step.tickets[bucket] = self.post(task, bucket)?;
        self.step.gathered[bucket] = true;
        Ok(())
    }

    /// Waits until a bucket is gathered.
    pub fn gathered(&mut self, bucket: usize) -> Result<()> {
        let ticket = self.step.tickets[bucket].take();
        self.wait(ticket)
    }

    /// Waits until all is gathered that is on its way.
    pub fn all_gathered(&mut self) -> Result<()> {
        (0..self.shards.of_weights()).try_for_each(|bucket| self.gathered(bucket))?;
        self.wait_for_device()
    }

    /// Has a task begun: a device does it after what it was given before, and nobody needs to wait for it but to hear of errors.
    fn post(&mut self, task: Task, bucket: usize) -> Result<Option<Ticket>> {
        let errands = match &mut self.way {
            Way::Host { errands, .. } => errands,
            Way::Device(carrier) => return carrier.carry_out(task, bucket).map(|()| None),
        };
        let place = task as usize * (self.shards.of_weights() + 1) + bucket;
        let work: *mut Errand = &mut errands[place];
        // SAFETY: errand, carrier and arena are there until the thread has ended: `ranks`, which has it, goes first of the
        // exchange, and the exchange before the program (`TrainingStep`). Steps touch nothing that is in flight, as the verifier
        // has seen of every routine with marks; any other is run only when nothing is.
        Ok(Some(unsafe { self.ranks.thread().post(Collective::Work(work)) }))
    }

    /// Whether gradients are given away.
    pub fn gives(&self) -> bool {
        self.parts.gives
    }

    /// Packs what a routine gives away for a bucket, which must be there now, and has it scattered.
    fn give(&mut self, bucket: usize, program: &Program, is_there: bool) -> Result<Option<Ticket>> {
        let Exchange { ranks, way: Way::Host { rooms: Some(rooms), .. }, sums, shards, .. } = self else {
            return Err(out_of_sight());
        };
        let first = shards.bucket(bucket).start;
        let given = |tensor: usize, sum: usize| -> Result<&[f32]> {
            let before = sums[first..tensor].iter().map(Vec::len).sum::<usize>();
            let bytes = program.given("first", bucket, before + sum)?.ok_or_else(out_of_sight)?;
            Ok(bytemuck::cast_slice(bytes))
        };
        let mut last = None;
        for round in 0..rooms.count(bucket) {
            if let Some(ticket) = rooms.occupied() {
                ranks.thread().wait(ticket)?;
            }
            let room: *mut Room = rooms.pack(bucket, round, is_there.then_some(&given as &Giving<'_>))?;
            // SAFETY: the room is there until the thread has ended, as errands are; nobody touches it before its ticket was awaited, and
            // no step the parts of sums that the carrier writes, which are in flight from the mark on.
            let ticket = unsafe { ranks.thread().post(Collective::Work(room)) };
            rooms.posted(ticket);
            last = Some(ticket);
        }
        Ok(last)
    }

    fn wait(&mut self, ticket: Option<Ticket>) -> Result<()> {
        ticket.map_or(Ok(()), |ticket| Ok(self.ranks.thread().wait(ticket)?))
    }

    /// Waits until devices are through with what they exchange, where it is they who do.
    fn wait_for_device(&mut self) -> Result<()> {
        match &mut self.way {
            Way::Host { .. } => Ok(()),
            Way::Device(carrier) => carrier.wait(),
        }
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

    /// After the update of the parts that are here: their new numbers become those of the weights. Allocates nothing but the first
    /// time.
    pub fn take_parts(&mut self, program: &mut Program) -> Result<()> {
        let Exchange { way, parts, weights, .. } = self;
        let own = parts.numbers.iter().enumerate().filter(|(_, numbers)| !numbers.is_empty());
        let mut own = own.map(|(weight, numbers)| (&parts.outputs[weight][..], &weights[weight][0][0][..], numbers));
        match way {
            Way::Host { carrier, .. } => {
                let room = &mut carrier.gathered.numbers;
                own.try_for_each(|(part, weight, numbers)| take_part(program, (part, weight), numbers.clone(), room))
            }
            Way::Device(carrier) => carrier.copy(|| {
                let copy = |(part, weight, numbers): (&str, &str, &Range<usize>)| {
                    let to = address(program, weight)? + (numbers.start * size_of::<f32>()) as u64;
                    Ok(TreeSum::copy(address(program, part)?, to, numbers.len()))
                };
                own.map(copy).collect()
            }),
        }
    }

    /// Makes the sums of all ranks such that the step is refused by all. Nothing of it may be under way.
    pub fn spoil(&mut self, program: &mut Program) -> Result<()> {
        if self.gives() {
            // What was not given is sent as not a number.
            return Ok(());
        }
        let sum = self.sums[0][0].last().expect("a sum has a state");
        program.fill(sum, |bytes| {
            bytes[..size_of::<f32>()].copy_from_slice(&f32::NAN.to_ne_bytes());
            Ok(())
        })
    }
}

/// The new numbers of a part of a weight become those of the weight, by way of some room, since either may lie anywhere.
fn take_part(
    program: &mut Program,
    (part, weight): (&str, &str),
    numbers: Range<usize>,
    room: &mut [f32],
) -> Result<()> {
    for first in numbers.clone().step_by(room.len()) {
        let end = numbers.end.min(first + room.len());
        let new = program.look(part)?.ok_or_else(out_of_sight)?;
        let new: &[f32] = &bytemuck::cast_slice(new)[first - numbers.start..end - numbers.start];
        room[..new.len()].copy_from_slice(new);
        program.fill(weight, |bytes| {
            bytemuck::cast_slice_mut(bytes)[first..end].copy_from_slice(&room[..end - first]);
            Ok::<(), Error>(())
        })?;
    }
    Ok(())
}

/// Finds where states lie. Allocates nothing but the first time.
fn find<T>(names: &States<String>, found: &mut States<T>, find: &mut dyn FnMut(&str) -> Result<T>) -> Result<()> {
    if found.is_empty() {
        let mut of_sum = |states: &Vec<String>| states.iter().map(|state| find(state)).collect::<Result<Vec<T>>>();
        *found = names.iter().map(|sums| sums.iter().map(&mut of_sum).collect()).collect::<Result<_>>()?;
        return Ok(());
    }
    let names = names.iter().flatten().flatten();
    for (name, found) in names.zip(found.iter_mut().flatten().flatten()) {
        *found = find(name)?;
    }
    Ok(())
}

/// Where the host sees a state.
fn lying(program: &mut Program, state: &str) -> Result<Lying> {
    let place = program.place(state)?.ok_or_else(out_of_sight)?;
    Ok(std::ptr::slice_from_raw_parts_mut(place.cast(), place.len() / size_of::<f32>()))
}

/// Where a device has a state, or what the routine that ran last gives.
fn address(program: &Program, name: &str) -> Result<u64> {
    program.address(name)?.ok_or_else(out_of_sight)
}

fn out_of_sight() -> Error {
    Error::Config(
        "neither hosts nor devices of ranks can reach what is to be exchanged; take `settings.device` cpu".into(),
    )
}
