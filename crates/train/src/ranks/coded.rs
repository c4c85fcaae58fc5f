//! Sums over lanes whose numbers are compressed, units of 1024 at a time.
//!
//! A unit's messages of all lanes go to the rank that has the unit; it adds up what they stand for, by the tree that lanes
//! have, and compresses the sum again for all ranks. So a rank sends about two messages' bytes a unit, and nothing depends on
//! who has which unit.

use super::Ranks;
use super::tree::{add_up, of_ranks};
use super::units::{Unit, Units};
use crate::Result;
use crate::config::Compression;
use crate::lanes::{Block, Lanes, Place, SQUARES_TOGETHER as UNIT, additions};
use gradus_comm::compression::{Blocks, Compressor, Threshold, TopK};
use std::ops::Range;

/// Numbers of all ranks that are under way at once.
const ROUND: usize = 1 << 18;
/// What says how long a message is, where that is not fixed.
const LENGTH: usize = size_of::<u32>();

/// Numbers of each lane that is computed here, what messages leave out of them, and where their sums go.
pub(super) trait CodedNumbers {
    /// Gives a unit of a lane, by its place among those computed here, and what was left out of it before.
    fn read(&self, place: usize, unit: &Unit, numbers: &mut [f32], error: &mut [f32]) -> Result<()>;

    /// Takes what is left out of it now.
    fn leave(&mut self, place: usize, unit: &Unit, error: &[f32]) -> Result<()>;

    /// Gives what was left out before of a sum that is added up here.
    fn read_error_of_sum(&self, unit: &Unit, error: &mut [f32]) -> Result<()>;

    /// Takes what is left out of it now. The lane that has the unit, wherever lanes are, is at this place here.
    fn leave_of_sum(&mut self, place: usize, unit: &Unit, error: &[f32]) -> Result<()>;

    /// Takes the sums over all lanes.
    fn write(&mut self, unit: &Unit, sums: &[f32]) -> Result<()>;
}

/// How many numbers a tensor has, and how they are compressed.
pub(super) type Format = (usize, Compression);

/// What compresses units, by how many numbers they have and how.
struct Codec(Vec<(Format, Box<dyn Compressor>)>);

impl Codec {
    fn new(tensors: &[Format]) -> Codec {
        let mut codec = Codec(vec![]);
        for (numbers, compression) in tensors {
            for size in [UNIT, *numbers % UNIT].into_iter().filter(|size| (1..=*numbers).contains(size)) {
                if codec.place((size, *compression)).is_none() {
                    codec.0.push(((size, *compression), compressor(*compression, size)));
                }
            }
        }
        codec
    }

    fn place(&self, unit: Format) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == unit)
    }

    fn of(&mut self, unit: Format) -> &mut dyn Compressor {
        let place = self.place(unit).expect("a unit is whole or the last of a tensor");
        &mut *self.0[place].1
    }

    /// Writes the message of a gradient, and says how many bytes that are; what it leaves out stays in the error.
    fn write(&mut self, compression: Compression, gradient: &[f32], error: &mut [f32], to: &mut [u8]) -> usize {
        let codec = self.of((gradient.len(), compression));
        if codec.is_of_fixed_size() {
            return codec.compress(gradient, error, to);
        }
        let (length, message) = to.split_at_mut(LENGTH);
        let bytes = codec.compress(gradient, error, message);
        length.copy_from_slice(&(bytes as u32).to_le_bytes());
        LENGTH + bytes
    }

    /// Reads a message, and says how many bytes it has.
    fn read(&mut self, compression: Compression, from: &[u8], gradient: &mut [f32]) -> usize {
        let codec = self.of((gradient.len(), compression));
        if codec.is_of_fixed_size() {
            let bytes = codec.most_bytes();
            codec.decompress(&from[..bytes], gradient);
            return bytes;
        }
        let (length, message) = from.split_at(LENGTH);
        let bytes = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        codec.decompress(&message[..bytes], gradient);
        LENGTH + bytes
    }

    fn is_of_fixed_size(&self) -> bool {
        self.0.iter().all(|(_, codec)| codec.is_of_fixed_size())
    }

    /// Bytes of the message of so many numbers, where that is fixed.
    fn bytes(&mut self, unit: Format) -> usize {
        self.of(unit).most_bytes()
    }
}

/// What compresses so many numbers.
fn compressor(compression: Compression, numbers: usize) -> Box<dyn Compressor> {
    match compression {
        Compression::TopK(share) => Box::new(TopK::new(numbers, (numbers as f64 * share).round() as usize)),
        Compression::Threshold(threshold) => Box::new(Threshold::new(numbers, threshold as f32)),
        Compression::Bits8 => Box::new(Blocks::of_8_bits(numbers)),
        Compression::Bits4 => Box::new(Blocks::of_4_bits(numbers)),
        Compression::None | Compression::PowerSgd(_) => unreachable!("it does not compress number by number"),
    }
}

/// Bytes of the longest message of a unit.
fn longest(tensors: &[Format]) -> usize {
    let bytes = |(numbers, compression): &Format| {
        let codec = compressor(*compression, UNIT.min(*numbers));
        codec.most_bytes() + if codec.is_of_fixed_size() { 0 } else { LENGTH }
    };
    tensors.iter().map(bytes).max().unwrap_or(0)
}

/// Bytes of the messages of so many numbers.
pub(super) fn message_bytes((numbers, compression): Format) -> usize {
    let rest = if numbers.is_multiple_of(UNIT) { 0 } else { compressor(compression, numbers % UNIT).most_bytes() };
    numbers / UNIT * compressor(compression, UNIT).most_bytes() + rest
}

/// Messages to or from each rank, one after another.
struct Messages {
    bytes: Vec<u8>,
    at: Vec<usize>,
}

impl Messages {
    fn new(ranks: usize, bytes: usize) -> Messages {
        Messages { bytes: vec![0; bytes], at: vec![0; ranks + 1] }
    }
}

/// Sums of compressed lanes.
pub(super) struct CodedSum {
    compressions: Vec<Compression>,
    all: Units,
    place: Place,
    /// The first lane that is computed here.
    first: usize,
    codec: Codec,
    /// Lanes of each rank, and how all are added up.
    lanes: Vec<usize>,
    additions: Vec<(usize, usize)>,
    /// Units that a rank has in a round.
    units: usize,
    sent: Messages,
    received: Messages,
    sums: Messages,
    /// A unit of each lane.
    decoded: Vec<f32>,
    gradient: Vec<f32>,
    error: Vec<f32>,
    /// Bytes that go to each rank, and come from it, where that is to be told.
    lengths: [Vec<u64>; 2],
    lengths_at: Vec<usize>,
}

fn units_of_round(all: &Units, ranks: usize) -> usize {
    (ROUND / (UNIT * ranks)).min(all.most()).max(1)
}

/// Bytes that sums of these tensors take.
pub(super) fn coded_bytes(lanes: &Lanes, tensors: &[Format]) -> u64 {
    if tensors.is_empty() {
        return 0;
    }
    let ranks = lanes.place().ranks;
    let messages = units_of_round(&units(lanes, tensors), ranks) * longest(tensors);
    let is_sparse = |(_, compression): &Format| matches!(compression, Compression::TopK(_));
    let places = if tensors.iter().any(is_sparse) { 2 * UNIT * size_of::<u32>() } else { 0 };
    let bytes = messages * (ranks * lanes.hosted().len() + lanes.count() + ranks);
    (bytes + (lanes.count() + 2) * UNIT * size_of::<f32>() + places) as u64
}

fn units(lanes: &Lanes, tensors: &[Format]) -> Units {
    Units::new(tensors.iter().map(|(numbers, _)| *numbers).collect(), lanes)
}

impl CodedSum {
    pub fn new(lanes: &Lanes, tensors: &[Format]) -> CodedSum {
        let place = lanes.place();
        let all = units(lanes, tensors);
        let apart: Vec<Block> = (0..lanes.count()).map(|lane| Block { first: lane, size: 1 }).collect();
        let units = units_of_round(&all, place.ranks);
        let messages = units * longest(tensors);
        CodedSum {
            codec: Codec::new(tensors),
            compressions: tensors.iter().map(|(_, compression)| *compression).collect(),
            place,
            first: lanes.hosted().start,
            lanes: of_ranks(lanes).map(|lanes| lanes.hosted().len()).collect(),
            additions: additions(&apart),
            units,
            sent: Messages::new(place.ranks, messages * place.ranks * lanes.hosted().len()),
            received: Messages::new(place.ranks, messages * lanes.count()),
            sums: Messages::new(place.ranks, messages * place.ranks),
            decoded: vec![0.0; lanes.count() * UNIT],
            gradient: vec![0.0; UNIT],
            error: vec![0.0; UNIT],
            lengths: [vec![0; place.ranks], vec![0; place.ranks]],
            lengths_at: (0..=place.ranks).map(|rank| rank * size_of::<u64>()).collect(),
            all,
        }
    }

    /// Sums the lanes of all ranks. Allocates nothing.
    pub fn sum(&mut self, mut ranks: Option<&mut Ranks>, of: &mut dyn CodedNumbers) -> Result<()> {
        for round in 0..self.all.most().div_ceil(self.units) {
            self.compress(of, round)?;
            self.exchange(ranks.as_deref_mut(), round)?;
            self.add_up(of, round)?;
            self.gather(ranks.as_deref_mut(), round)?;
            self.decompress(of, round)?;
        }
        Ok(())
    }

    /// The units that a rank has in a round.
    fn chunk(&self, rank: usize, round: usize) -> Range<usize> {
        self.all.in_round(rank, self.units, round)
    }

    /// Writes the messages of the lanes that are computed here, for each rank.
    fn compress(&mut self, of: &mut dyn CodedNumbers, round: usize) -> Result<()> {
        let hosted = self.lanes[self.place.rank];
        let mut at = 0;
        for rank in 0..self.place.ranks {
            let chunk = self.chunk(rank, round);
            let CodedSum { all, compressions, codec, sent, gradient, error, .. } = self;
            for unit in chunk.map(|unit| all.unit(unit)) {
                let (gradient, error) = (&mut gradient[..unit.numbers.len()], &mut error[..unit.numbers.len()]);
                for place in 0..hosted {
                    of.read(place, &unit, gradient, error)?;
                    at += codec.write(compressions[unit.tensor], gradient, error, &mut sent.bytes[at..]);
                    of.leave(place, &unit, error)?;
                }
            }
            sent.at[rank + 1] = at;
        }
        Ok(())
    }

    /// The bytes of messages of a chunk, one each, where that is fixed.
    fn fixed_bytes(&mut self, chunk: Range<usize>) -> usize {
        let CodedSum { all, compressions, codec, .. } = self;
        let bytes = |unit: Unit| codec.bytes((unit.numbers.len(), compressions[unit.tensor]));
        chunk.map(|unit| all.unit(unit)).map(bytes).sum()
    }

    /// Brings every message to the rank that has its unit.
    fn exchange(&mut self, ranks: Option<&mut Ranks>, round: usize) -> Result<()> {
        let Some(ranks) = ranks else {
            std::mem::swap(&mut self.sent.bytes, &mut self.received.bytes);
            return Ok(());
        };
        if self.codec.is_of_fixed_size() {
            let bytes = self.fixed_bytes(self.chunk(self.place.rank, round));
            for rank in 0..self.place.ranks {
                self.received.at[rank + 1] = self.received.at[rank] + bytes * self.lanes[rank];
            }
        } else {
            let [to, from] = &mut self.lengths;
            let sent = self.sent.at.windows(2).map(|pair| (pair[1] - pair[0]) as u64);
            to.iter_mut().zip(sent).for_each(|(to, bytes)| *to = bytes);
            let at = &self.lengths_at;
            ranks.transport().all_to_all(bytemuck::cast_slice(to), at, bytemuck::cast_slice_mut(from), at)?;
            for rank in 0..self.place.ranks {
                self.received.at[rank + 1] = self.received.at[rank] + from[rank] as usize;
            }
        }
        let CodedSum { sent, received, .. } = self;
        Ok(ranks.transport().all_to_all(&sent.bytes, &sent.at, &mut received.bytes, &received.at)?)
    }

    /// Adds up the lanes of the units that are here, and writes the messages of the sums.
    fn add_up(&mut self, of: &mut dyn CodedNumbers, round: usize) -> Result<()> {
        let (chunk, count) = (self.chunk(self.place.rank, round), self.decoded.len() / UNIT);
        let CodedSum { all, compressions, first, codec, received, additions, decoded, error, sums, lanes, .. } = self;
        // Where the next message of each rank begins: those of one rank's lanes stand together for each unit.
        let mut next = std::mem::take(&mut received.at);
        // Written from the start, and moved to this rank's place once that is known.
        let mut at = 0;
        for (place, unit) in chunk.map(|unit| (all.lane(unit) - *first, all.unit(unit))) {
            let (compression, length) = (compressions[unit.tensor], unit.numbers.len());
            let mut lane = 0;
            for (rank, hosted) in lanes.iter().enumerate() {
                for _ in 0..*hosted {
                    let numbers = &mut decoded[lane * UNIT..][..length];
                    next[rank] += codec.read(compression, &received.bytes[next[rank]..], numbers);
                    lane += 1;
                }
            }
            debug_assert_eq!(lane, count);
            add_up(decoded, additions, |lane| lane * UNIT, length);
            let error = &mut error[..length];
            of.read_error_of_sum(&unit, error)?;
            at += codec.write(compression, &decoded[..length], error, &mut sums.bytes[at..]);
            of.leave_of_sum(place, &unit, error)?;
        }
        next.fill(0);
        received.at = next;
        sums.at[0] = at;
        Ok(())
    }

    /// Gives every rank the messages of all sums.
    fn gather(&mut self, ranks: Option<&mut Ranks>, round: usize) -> Result<()> {
        let own = self.sums.at[0];
        self.sums.at[0] = 0;
        let Some(ranks) = ranks else { return Ok(()) };
        let Place { rank: here, ranks: count } = self.place;
        if self.codec.is_of_fixed_size() {
            for rank in 0..count {
                self.sums.at[rank + 1] = self.sums.at[rank] + self.fixed_bytes(self.chunk(rank, round));
            }
        } else {
            let bytes = ranks.numbers(own as u64)?;
            for rank in 0..count {
                self.sums.at[rank + 1] = self.sums.at[rank] + bytes[rank] as usize;
            }
        }
        let Messages { bytes, at } = &mut self.sums;
        bytes.copy_within(..own, at[here]);
        Ok(ranks.transport().all_gather(bytes, at)?)
    }

    /// Writes what the messages of all sums stand for to where sums belong.
    fn decompress(&mut self, of: &mut dyn CodedNumbers, round: usize) -> Result<()> {
        let mut at = 0;
        for rank in 0..self.place.ranks {
            let chunk = self.chunk(rank, round);
            let CodedSum { all, compressions, codec, sums, gradient, .. } = self;
            for unit in chunk.map(|unit| all.unit(unit)) {
                let gradient = &mut gradient[..unit.numbers.len()];
                at += codec.read(compressions[unit.tensor], &sums.bytes[at..], gradient);
                of.write(&unit, gradient)?;
            }
        }
        Ok(())
    }
}
