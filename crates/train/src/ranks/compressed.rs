//! Sums over lanes that are compressed, each with what it left out before; the same bits on any number of ranks, one included.

use super::Ranks;
use super::by_number::ByNumber;
use super::coded::{Format, coded_bytes, message_bytes};
use super::low_rank::{LowRank, low_rank_bytes, thin_bytes};
use super::states::{copy_from, numbers_of, with_numbers};
use super::tree::{LaneNumbers, TreeSum};
use crate::Result;
use crate::config::Compression;
use crate::lanes::Lanes;
use crate::step::{Kept, KeptLanes, Summing};
use gradus_comm::compression::Thin;
use gradus_engine::{Program, Shape};
use std::ops::Range;

/// How lanes are summed that are kept apart.
pub(crate) struct Compressed {
    /// What is always sent as it is, and everything.
    plain: Flat,
    all: Flat,
    coded: Option<ByNumber>,
    thin: Option<LowRank>,
    tree: TreeSum,
    /// Steps in which all is sent as it is.
    warmup: u64,
}

/// Tensors one after another.
struct Flat {
    kept: Vec<Kept>,
    /// Where each begins, and the end of the last.
    starts: Vec<usize>,
}

impl Flat {
    fn new(kept: Vec<Kept>) -> Flat {
        let mut starts = vec![0];
        kept.iter().for_each(|kept| starts.push(starts[starts.len() - 1] + kept.numbers));
        Flat { kept, starts }
    }

    fn numbers(&self) -> usize {
        self.starts[self.kept.len()]
    }

    /// The tensors that some numbers are of, with which of their own and which of the stretch these are.
    fn pieces(&self, numbers: Range<usize>) -> impl Iterator<Item = (&Kept, Range<usize>, Range<usize>)> {
        let first = self.starts.partition_point(|start| *start <= numbers.start) - 1;
        let tensors = (first..self.kept.len()).take_while(move |tensor| self.starts[*tensor] < numbers.end);
        tensors.map(move |tensor| {
            let begin = self.starts[tensor];
            let start = numbers.start.max(begin);
            let end = numbers.end.min(self.starts[tensor + 1]);
            (&self.kept[tensor], start - begin..end - begin, start - numbers.start..end - numbers.start)
        })
    }
}

/// What a program has of tensors one after another.
struct InProgram<'a> {
    program: &'a mut Program,
    flat: &'a Flat,
}

impl LaneNumbers for InProgram<'_> {
    fn read(&self, place: usize, numbers: Range<usize>, to: &mut [f32]) -> Result<()> {
        for (kept, own, within) in self.flat.pieces(numbers) {
            to[within].copy_from_slice(&numbers_of(self.program, &kept.lanes[place])?[own]);
        }
        Ok(())
    }

    fn write(&mut self, numbers: Range<usize>, sums: &[f32]) -> Result<()> {
        for (kept, own, within) in self.flat.pieces(numbers) {
            copy_from(self.program, &kept.sums[0], own.start, &sums[within])?;
        }
        Ok(())
    }
}

/// Bytes that it takes besides the arena to sum weights of these shapes, and so many other numbers.
pub(crate) fn compressed_bytes(compression: Compression, lanes: &Lanes, shapes: &[Shape], others: usize) -> u64 {
    let all = shapes.iter().map(|shape| shape.elements()).sum::<usize>() + others;
    let (mut coded, mut thin): (Vec<Format>, Vec<Thin>) = (vec![], vec![]);
    for shape in shapes {
        match Summing::of(compression, shape) {
            Summing::Plain => {}
            Summing::Coded(method) => coded.push((shape.elements(), method)),
            Summing::Thin(matrix) => thin.push(matrix),
        }
    }
    TreeSum::bytes(lanes, all) + coded_bytes(lanes, &coded) + low_rank_bytes(lanes, &thin)
}

/// Bytes that the first rank sends in a step to sum weights of these shapes, where messages are of a fixed size.
pub fn bytes_of_step(compression: Compression, lanes: &Lanes, shapes: &[Shape]) -> f64 {
    let others = lanes.place().ranks as f64 - 1.0;
    let share = others / (others + 1.0);
    let (blocks, hosted) = (lanes.blocks().len() as f64, lanes.hosted().len() as f64);
    // Lanes that are sent as they are, are added up before; then everyone has the sums.
    let plain = |numbers: usize| (size_of::<f32>() * numbers) as f64 * share * (blocks + 1.0);
    let coded = |bytes: usize| bytes as f64 * share * (hosted + 1.0);
    let of_shape = |shape: &Shape| match Summing::of(compression, shape) {
        Summing::Plain => plain(shape.elements()),
        Summing::Thin(thin) => coded(thin_bytes(thin)),
        Summing::Coded(method) => coded(message_bytes((shape.elements(), method))),
    };
    shapes.iter().map(of_shape).sum()
}

impl Compressed {
    pub fn new(warmup: u64, lanes: &Lanes, kept: &KeptLanes) -> Compressed {
        let coded = kept.coded.iter().map(|tensor| &tensor.kept);
        let thin = kept.thin.iter().map(|tensor| &tensor.kept);
        let all = Flat::new(kept.plain.iter().chain(coded).chain(thin).cloned().collect());
        Compressed {
            tree: TreeSum::new(lanes, all.numbers()),
            plain: Flat::new(kept.plain.clone()),
            all,
            coded: (!kept.coded.is_empty()).then(|| ByNumber::new(lanes, kept.coded.clone())),
            thin: (!kept.thin.is_empty()).then(|| LowRank::new(lanes, kept.thin.clone())),
            warmup,
        }
    }

    /// Adds up the lanes of all ranks in a step, whose loss was scaled so. Allocates nothing.
    pub fn sum(&mut self, mut ranks: Option<&mut Ranks>, program: &mut Program, step: u64, scale: f32) -> Result<()> {
        let Compressed { plain, all, coded, thin, tree, warmup } = self;
        let flat = if step < *warmup { &*all } else { &*plain };
        tree.sum(ranks.as_deref_mut(), flat.numbers(), &mut InProgram { program, flat })?;
        if let Some(coded) = coded {
            match step < *warmup {
                true => coded.forget(program)?,
                false => coded.sum(ranks.as_deref_mut(), program, scale)?,
            }
        }
        if let Some(thin) = thin {
            match step < *warmup {
                true => thin.forget(program)?,
                false => thin.sum(ranks, program, scale)?,
            }
        }
        for state in all.kept.iter().flat_map(|kept| &kept.sums[1..]) {
            with_numbers(program, state, |numbers| numbers.fill(0.0))?;
        }
        Ok(())
    }

    /// Makes the lanes such that the step is refused by all.
    pub fn spoil(&self, program: &mut Program) -> Result<()> {
        // Whatever is no weight does not count for the norm.
        for kept in &self.all.kept {
            with_numbers(program, &kept.lanes[0], |numbers| {
                numbers.iter_mut().take(1).for_each(|number| *number = f32::NAN)
            })?;
        }
        Ok(())
    }
}
