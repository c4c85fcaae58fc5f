//! Reductions of strided operands.
//!
//! The operand is seen as `outer x reduced x columns` elements, of which the middle axis is reduced: with one
//! column where reduced elements lie together (rows), with many where kept elements do (columns). Numbers are
//! joined in f32 within short fixed blocks, and the blocks in f64, so that long sums stay accurate. A long
//! reduction with few results is cut along the reduced axis too; its partial results are joined by a second job.

mod ordered;

pub use ordered::OrderedSum;

use crate::isa::multiversion;
use crate::lanes;
use crate::strided::{Axis, BlockReader, Writer, joined};
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use std::ops::Range;

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * 1024;
/// Columns reduced together: their running values stay in the first cache, and memory is read in long stretches. Sums
/// over the rows of 4096 x 1024 numbers from memory were measured at 25 to 28 GB/s, and at 20 with 256 columns.
const COLUMNS: usize = 1024;
/// Numbers of a row that are joined in f32, and results that are written together.
const BLOCK: usize = 1024;
/// Numbers of a column that are joined in f32.
const ROWS: usize = 64;
/// With so many units of independent results or more, there is work enough without cutting the reduced axis.
const ENOUGH_UNITS: usize = 64;
/// The most pieces the reduced axis is cut into: the second job joins them in one go.
const CHUNKS_MAX: usize = 256;
/// With fewer neighbouring columns than this, reading each column by itself is no slower.
const COLUMNS_MIN: usize = 8;

/// What is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum of squares.
    SumOfSquares,
    /// The sum of absolute values.
    SumOfAbs,
    /// How many numbers are zero.
    Zeros,
    /// The largest number; NaN if there is one.
    Max,
}

/// How a reduction is cut up: fixed by the problem.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The operand's axes in the order it is read: outer, reduced, columns.
    axes: Vec<Axis>,
    outer: usize,
    reduced: usize,
    columns: usize,
    /// Reduced positions of one part, and into how many such pieces the axis is cut.
    chunk: usize,
    chunks: usize,
}

impl Shape {
    /// Kept and reduced axes as (size, stride), outermost first.
    pub fn new(kept: &[(usize, usize)], reduced: &[(usize, usize)]) -> Shape {
        let mut shape = Shape::uncut(kept, reduced);
        let rows = PART_ELEMENTS / shape.columns.clamp(1, COLUMNS);
        if shape.reduced > rows && shape.units() < ENOUGH_UNITS {
            let chunks = parts_of(shape.reduced, rows).min(CHUNKS_MAX);
            shape.chunk = shape.reduced.div_ceil(chunks);
            shape.chunks = parts_of(shape.reduced, shape.chunk);
        }
        shape
    }

    fn uncut(kept: &[(usize, usize)], reduced: &[(usize, usize)]) -> Shape {
        let axes = |pairs: &[(usize, usize)]| joined(pairs.iter().map(|&(size, stride)| Axis { size, stride }));
        let count = |axes: &[Axis]| axes.iter().map(|axis| axis.size).product::<usize>();
        let mut kept = axes(kept);
        // The order of the reduced elements is free: theirs in memory is the fastest, repeated ones outermost.
        let mut reduced = reduced.to_vec();
        reduced.sort_by_key(|&(_, stride)| std::cmp::Reverse(if stride == 0 { usize::MAX } else { stride }));
        let reduced = axes(&reduced);
        let columns = kept.pop_if(|last| last.stride == 1 && last.size >= COLUMNS_MIN);
        let rows = count(&reduced);
        Shape {
            outer: count(&kept),
            reduced: rows,
            columns: columns.map_or(1, |axis| axis.size),
            axes: kept.into_iter().chain(reduced).chain(columns).collect(),
            chunk: rows,
            chunks: 1,
        }
    }

    /// Elements of scratch for partial results.
    pub fn partials(&self) -> usize {
        if self.chunks == 1 { 0 } else { self.chunks * self.results() }
    }

    fn results(&self) -> usize {
        self.outer * self.columns
    }

    /// What is reduced as one: a block of columns, or a row.
    fn units(&self) -> usize {
        self.outer * parts_of(self.columns, COLUMNS)
    }
}

/// The jobs of a reduction, in order. `partials` must have [`Shape::partials`] elements. The results are rounded to
/// their type once; it may be wider than the operand's.
pub fn jobs<T: Element, Y: Element>(
    isa: Isa,
    reduction: Reduction,
    shape: Shape,
    x: In<T>,
    partials: Out<f32>,
    y: Out<Y>,
) -> Vec<Reduce> {
    let result = Writer::new(isa, y);
    if shape.chunks == 1 {
        return vec![Reduce::new(isa, reduction, shape, x, result)];
    }
    // What is summed is made of the numbers once.
    let join = if reduction == Reduction::Max { Reduction::Max } else { Reduction::Sum };
    let pieces = Shape::uncut(&[(shape.results(), 1)], &[(shape.chunks, shape.results())]);
    let first = Reduce::new(isa, reduction, shape, x, Writer::new(isa, partials));
    vec![first, Reduce::new(isa, join, pieces, partials.as_in(), result)]
}

/// One job of a reduction.
pub struct Reduce {
    shape: Shape,
    reader: BlockReader,
    writer: Writer,
    units_per_part: usize,
    body: unsafe fn(&Reduce, Range<usize>, Range<usize>, usize, Room<'_>),
}

impl Reduce {
    fn new<T: Element>(isa: Isa, reduction: Reduction, shape: Shape, x: In<T>, writer: Writer) -> Reduce {
        let reader = BlockReader::new(isa, x, shape.axes.iter().copied());
        let unit_elements = shape.chunk * shape.columns.min(COLUMNS);
        let units_per_part = if shape.chunks == 1 { (PART_ELEMENTS / unit_elements.max(1)).max(1) } else { 1 };
        let body = match (reduction, shape.columns) {
            (Reduction::Sum, 1) => rows::select::<Sum>(isa),
            (Reduction::SumOfSquares, 1) => rows::select::<SumOfSquares>(isa),
            (Reduction::SumOfAbs, 1) => rows::select::<SumOfAbs>(isa),
            (Reduction::Zeros, 1) => rows::select::<Zeros>(isa),
            (Reduction::Max, 1) => rows::select::<Max>(isa),
            (Reduction::Sum, _) => columns::select::<Sum>(isa),
            (Reduction::SumOfSquares, _) => columns::select::<SumOfSquares>(isa),
            (Reduction::SumOfAbs, _) => columns::select::<SumOfAbs>(isa),
            (Reduction::Zeros, _) => columns::select::<Zeros>(isa),
            (Reduction::Max, _) => columns::select::<Max>(isa),
        };
        Reduce { shape, reader, writer, units_per_part, body }
    }
}

impl Job for Reduce {
    fn parts(&self) -> usize {
        parts_of(self.shape.units(), self.units_per_part) * self.shape.chunks
    }

    fn worker_scratch(&self) -> usize {
        Room::BYTES
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let (units, piece) = (part / self.shape.chunks, part % self.shape.chunks);
        let units = chunk(units, self.units_per_part, self.shape.units());
        let reduced = chunk(piece, self.shape.chunk, self.shape.reduced);
        // SAFETY: the caller's promise; parts write disjoint results, and the machine has the level, since whoever
        // built the job took it from `Isa::available`.
        unsafe { (self.body)(self, units, reduced, piece * self.shape.results(), Room::new(scratch)) }
    }
}

/// What a part works in.
struct Room<'a> {
    totals: &'a mut [f64],
    running: &'a mut [f32],
    results: &'a mut [f32],
    block: &'a mut [f32],
}

impl<'a> Room<'a> {
    const BYTES: usize = COLUMNS * size_of::<f64>() + (COLUMNS + 2 * BLOCK) * size_of::<f32>();

    fn new(scratch: &'a mut [u8]) -> Room<'a> {
        let (totals, rest) = scratch[..Room::BYTES].split_at_mut(COLUMNS * size_of::<f64>());
        let (running, rest) = bytemuck::cast_slice_mut(rest).split_at_mut(COLUMNS);
        let (results, block) = rest.split_at_mut(BLOCK);
        Room { totals: bytemuck::cast_slice_mut(totals), running, results, block }
    }
}

/// The arithmetic of a reduction, known when the loop around it is compiled.
trait Rule {
    const START: f32;
    fn of(x: f32) -> f32;
    fn join(a: f32, b: f32) -> f32;
    fn join_wide(a: f64, b: f64) -> f64;
}

/// Rules that add what they make of each number.
macro_rules! sums {
    ($($rule:ident of $x:ident => $of:expr;)*) => {$(
        struct $rule;

        impl Rule for $rule {
            const START: f32 = 0.0;
            #[inline(always)]
            fn of($x: f32) -> f32 {
                $of
            }
            #[inline(always)]
            fn join(a: f32, b: f32) -> f32 {
                a + b
            }
            #[inline(always)]
            fn join_wide(a: f64, b: f64) -> f64 {
                a + b
            }
        }
    )*};
}

sums! {
    Sum of x => x;
    SumOfSquares of x => x * x;
    SumOfAbs of x => x.abs();
    Zeros of x => (x == 0.0) as u8 as f32;
}

struct Max;

impl Rule for Max {
    const START: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn join(a: f32, b: f32) -> f32 {
        // As `lanes::larger`. Written so, no outcome is `a` untouched, which would make the loop over columns
        // store under a mask: several times slower on some machines.
        let larger = if a > b { a } else { b };
        if a.is_nan() { a + b } else { larger }
    }
    #[inline(always)]
    fn join_wide(a: f64, b: f64) -> f64 {
        if a > b || a.is_nan() { a } else { b }
    }
}

multiversion! {
    /// Reduces rows: each unit is a row, and gives one result.
    fn rows<R: Rule>(job: &Reduce, units: Range<usize>, reduced: Range<usize>, first_result: usize, room: Room<'_>) {
        for batch in units.clone().step_by(BLOCK) {
            let batch = batch..units.end.min(batch + BLOCK);
            for (result, unit) in room.results.iter_mut().zip(batch.clone()) {
                let mut total = R::START as f64;
                for start in reduced.clone().step_by(BLOCK) {
                    let length = BLOCK.min(reduced.end - start);
                    // SAFETY: the row lies inside the operand, which nothing writes to.
                    let x = unsafe { job.reader.block(unit * job.shape.reduced + start, length, room.block) };
                    total = R::join_wide(total, lanes::fold(x, R::START, R::of, R::join) as f64);
                }
                *result = total as f32;
            }
            // SAFETY: these results are this part's own.
            unsafe { job.writer.write(first_result + batch.start, &room.results[..batch.len()]) };
        }
    }
}

multiversion! {
    /// Reduces columns: each unit is a block of neighbouring columns, and gives as many results.
    fn columns<R: Rule>(job: &Reduce, units: Range<usize>, reduced: Range<usize>, first_result: usize, room: Room<'_>) {
        let Shape { columns, reduced: rows, .. } = job.shape;
        let blocks = parts_of(columns, COLUMNS);
        for unit in units {
            let outer = unit / blocks;
            let Range { start: column, end } = chunk(unit % blocks, COLUMNS, columns);
            let width = end - column;
            let (totals, running) = (&mut room.totals[..width], &mut room.running[..width]);
            totals.fill(R::START as f64);
            for first in reduced.clone().step_by(ROWS) {
                running.fill(R::START);
                for row in first..reduced.end.min(first + ROWS) {
                    // SAFETY: the row lies inside the operand, which nothing writes to.
                    let x = unsafe { job.reader.block((outer * rows + row) * columns + column, width, room.block) };
                    running.iter_mut().zip(x).for_each(|(running, &x)| *running = R::join(*running, R::of(x)));
                }
                totals.iter_mut().zip(&*running).for_each(|(total, &x)| *total = R::join_wide(*total, x as f64));
            }
            let results = &mut room.results[..width];
            results.iter_mut().zip(totals).for_each(|(result, total)| *result = *total as f32);
            // SAFETY: these results are this part's own.
            unsafe { job.writer.write(first_result + outer * columns + column, results) };
        }
    }
}

#[cfg(test)]
mod tests;
