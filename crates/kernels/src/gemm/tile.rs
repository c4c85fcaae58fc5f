//! A tile of a product's result: packing, multiplying, finishing.

use super::ahead::{Ahead, CACHE_LINE};
use super::microkernel::{BLOCK_MAX, Microkernel, Panels, PanelsInPlace, Results, Rows, Start, Word};
use super::pack::{self, Lines};
use super::{Gemm, Matrix, is};
use crate::vectors::ColumnsInPlace;
use crate::{Element, chunk};
use std::ops::Range;

/// A tile of one product's result.
struct Tile<'a, A, B> {
    job: &'a Gemm<A, B>,
    /// Its number.
    index: usize,
    a: *const A,
    b: *const B,
    /// Where the product's result begins.
    c: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// A worker's scratch, divided.
struct Scratch<'a> {
    columns: &'a mut [Word],
    rows: &'a mut [Word],
    sums: &'a mut [f32],
    bias: &'a mut [f32],
    registers: &'a mut [f32],
}

/// A block of the depth.
struct Block {
    /// Its number.
    index: usize,
    depth: Range<usize>,
    /// Words of a line.
    words: usize,
    /// Whether the sums are complete after it.
    last: bool,
}

/// Where the sums of a tile gather.
#[derive(Clone, Copy)]
struct Sums {
    first: *mut f32,
    /// How far apart rows lie.
    stride: usize,
    /// Rows after which the place is used again.
    rows: usize,
}

impl Sums {
    #[inline(always)]
    fn row(&self, row: usize) -> *mut f32 {
        self.first.wrapping_add(row % self.rows * self.stride)
    }
}

/// Computes the tiles of one number, of a product and of those beside it: each block of their columns is packed for all of them.
#[inline(always)]
pub(super) unsafe fn compute<A: Element, B: Element, L: Microkernel, const ROWS: usize, const COLUMNS: usize>(
    job: &Gemm<A, B>,
    index: usize,
    scratch: &mut [f32],
) {
    const { assert!(ROWS == L::ROWS && COLUMNS == L::COLUMNS && ROWS * COLUMNS <= BLOCK_MAX) };
    let (cut, lefts) = (&job.cut, 1 + job.beside.len());
    let mut shape = ROWS;
    for block in 0..cut.depth_blocks {
        let depth = chunk(block, cut.depth_block, job.sizes.depth);
        let words = pack::words_of::<L>(depth.len());
        let block = Block { index: block, depth, words, last: block + 1 == cut.depth_blocks };
        let mut own_start = cut.column_block() + cut.row_block();
        let mut ahead = Ahead::NOTHING;
        for (at, job) in job.lefts().enumerate() {
            let tile = Tile::of(job, index);
            let mut scratch = tile.divided(scratch, own_start);
            own_start += job.own_scratch();
            // SAFETY: the caller's promise; columns and rows lie inside the operands, and of the tiles of a number the first comes
            // first.
            unsafe {
                if at == 0 {
                    tile.pack_columns::<L, COLUMNS>(&block, scratch.columns);
                    tile.sum_columns::<L, COLUMNS>(&block, scratch.columns);
                    ahead = tile.columns_ahead(block.index + 1, lefts, ROWS, COLUMNS);
                }
                tile.multiply::<L, ROWS, COLUMNS>(&block, &mut scratch, &mut shape, &mut ahead);
            }
        }
    }
    // SAFETY: the machine has the level, by the caller's promise.
    unsafe { reshape::<L>(&mut shape, ROWS) };
}

impl<'a, A: Element, B: Element> Tile<'a, A, B> {
    #[inline(always)]
    fn of(job: &'a Gemm<A, B>, index: usize) -> Tile<'a, A, B> {
        let (product, rows, columns) = job.cut.tile(index);
        let (a, b, c) = job.offsets(product);
        let (a, b) = (job.a.elements.as_ptr().wrapping_add(a), job.b.elements.as_ptr().wrapping_add(b));
        Tile { job, index, a, b, c, rows, columns }
    }

    /// The tile's rows times the packed columns of a block.
    #[inline(always)]
    unsafe fn multiply<L: Microkernel, const ROWS: usize, const COLUMNS: usize>(
        &self,
        block: &Block,
        scratch: &mut Scratch<'_>,
        shape: &mut usize,
        ahead: &mut Ahead,
    ) {
        let sums = self.sums(scratch.sums);
        // SAFETY: bias and operands of the epilogue are alive, and nothing writes them; the rows lie inside the operand.
        unsafe {
            if block.index == 0 {
                self.prepare(scratch);
            }
            self.pack_rows::<L, ROWS>(block, scratch.rows);
        }
        for row in self.rows.clone().step_by(ROWS) {
            let band = row..(row + ROWS).min(self.rows.end);
            // SAFETY: the block is packed, the sums are this tile's own, and the machine has the level.
            unsafe {
                reshape::<L>(shape, band.len());
                self.multiply_band::<L, COLUMNS>(band, block, sums, scratch, ahead);
            }
        }
    }

    /// Whether there are sums already, from which those of a block go on.
    #[inline(always)]
    fn continues(&self, block: &Block) -> bool {
        block.index > 0 || self.job.accumulate
    }

    /// A panel of rows times all columns; finished with the last block of the depth.
    #[inline(always)]
    unsafe fn multiply_band<L: Microkernel, const COLUMNS: usize>(
        &self,
        band: Range<usize>,
        block: &Block,
        sums: Sums,
        scratch: &mut Scratch<'_>,
        ahead: &mut Ahead,
    ) {
        let row = band.start - self.rows.start;
        let a = match self.job.cut.rows_in_place {
            true => self.rows_at(band.start, &block.depth),
            false => Rows::Packed(scratch.rows[row * block.words..].as_ptr()),
        };
        let to = sums.row(row);
        if block.last {
            self.ask_for_operands::<L>(band.clone());
        }
        for column in self.columns.clone().step_by(COLUMNS) {
            let width = COLUMNS.min(self.columns.end - column);
            ahead.ask::<L>();
            let first = to.wrapping_add(column - self.columns.start);
            let start = match (self.continues(block), &self.job.bias) {
                (true, _) => Start::At(first, sums.stride),
                (false, Some(_)) => Start::At(scratch.bias[column - self.columns.start..].as_ptr(), 0),
                (false, None) => Start::Zero,
            };
            let results = Results { first, stride: sums.stride, start };
            let depth = block.words;
            let packed = (column - self.columns.start).checked_sub(self.columns_in_place::<COLUMNS>());
            let (b, b_stride) = match packed {
                None if L::IN_PLACE && !self.columns_are_words() => {
                    let b = self.columns_at(block.depth.start, column);
                    // SAFETY: the columns are a whole panel, in whole steps, and the results are this tile's own.
                    unsafe { L::multiply_in_place(PanelsInPlace { depth, a, b }, results, band.len()) };
                    continue;
                }
                None => (self.b_at(block.depth.start, column).cast(), self.job.b.row_stride),
                Some(packed) => (scratch.columns[packed * depth..].as_ptr(), COLUMNS),
            };
            // SAFETY: the panels were packed, or are read in place, and the results are this tile's own.
            unsafe { multiply_block::<L>(Panels { depth, a, b, b_stride }, results, band.len(), width) };
        }
        if block.last {
            // SAFETY: the sums of the band are complete, and its rows are this tile's own.
            unsafe { self.finish(band, to, sums.stride, scratch.registers) };
        }
    }

    /// The columns of a block, to be asked for in even portions while all panels of the tile are multiplied.
    #[inline(always)]
    fn columns_ahead(&self, block: usize, lefts: usize, panel_rows: usize, panel_columns: usize) -> Ahead {
        let (cut, b) = (&self.job.cut, &self.job.b);
        // After the last block comes the first of another tile: the one that this worker takes next, or its neighbour.
        let (block, columns) = match block < cut.depth_blocks {
            true => (block, self.columns.clone()),
            false => (0, cut.tile(self.index + cut.shares.workers).2),
        };
        if !cut.columns_ahead || columns.is_empty() {
            return Ahead::NOTHING;
        }
        let depth = chunk(block, cut.depth_block, self.job.sizes.depth);
        let first = self.b_at(depth.start, columns.start);
        let calls = lefts * self.rows.len().div_ceil(panel_rows) * self.columns.len().div_ceil(panel_columns);
        Ahead::of(first, (depth.len(), b.row_stride), (columns.len(), b.column_stride), calls)
    }

    #[inline(always)]
    fn divided<'s>(&self, scratch: &'s mut [f32], own_start: usize) -> Scratch<'s> {
        let cut = &self.job.cut;
        let (shared, own) = scratch.split_at_mut(own_start);
        let (columns, rest) = shared.split_at_mut(cut.column_block());
        let (rows, _) = rest.split_at_mut(cut.row_block());
        let (sums, rest) = own.split_at_mut(self.job.rows_in_scratch() * cut.tile_columns);
        let (bias, registers) = rest.split_at_mut(if self.job.bias.is_some() { cut.tile_columns } else { 0 });
        let words = |numbers: &'s mut [f32]| bytemuck::cast_slice_mut(numbers);
        Scratch { columns: words(columns), rows: words(rows), sums, bias, registers }
    }

    /// In the result itself where it is f32, else in scratch, so that they are rounded once.
    #[inline(always)]
    fn sums(&self, scratch: &mut [f32]) -> Sums {
        match self.job.sums_in_place() {
            Some(result) => {
                let first = result.as_ptr().wrapping_add(self.position(self.rows.start));
                Sums { first, stride: self.job.row_stride, rows: usize::MAX }
            }
            None => {
                let rows = self.job.rows_in_scratch();
                Sums { first: scratch.as_mut_ptr(), stride: self.job.cut.tile_columns, rows }
            }
        }
    }

    #[inline(always)]
    unsafe fn prepare(&self, scratch: &mut Scratch<'_>) {
        if let Some(bias) = &self.job.bias {
            // SAFETY: the bias has a number for each column.
            unsafe { bias.read(self.columns.start, &mut scratch.bias[..self.columns.len()]) };
        }
        if let Some(epilogue) = &self.job.epilogue {
            // SAFETY: its operands are alive, by the caller's promise.
            unsafe { epilogue.prepare(scratch.registers) };
        }
    }

    /// How many columns of the tile are read where they lie: whole panels.
    #[inline(always)]
    fn columns_in_place<const COLUMNS: usize>(&self) -> usize {
        if self.job.cut.columns_in_place { self.columns.len() / COLUMNS * COLUMNS } else { 0 }
    }

    #[inline(always)]
    fn rows_at(&self, row: usize, depth: &Range<usize>) -> Rows {
        let first = self.a.wrapping_add(row * self.job.a.row_stride + depth.start);
        Rows::InPlace(first.cast(), self.job.a.row_stride * size_of::<A>())
    }

    /// Whether columns that are read where they lie are words side by side.
    #[inline(always)]
    fn columns_are_words(&self) -> bool {
        self.job.b.column_stride == 1 && is::<B, f32>()
    }

    #[inline(always)]
    fn columns_at(&self, step: usize, column: usize) -> ColumnsInPlace<B> {
        let (first, Matrix { row_stride, column_stride, .. }) = (self.b_at(step, column), self.job.b);
        match column_stride {
            1 => ColumnsInPlace::SideBySide(first, row_stride * size_of::<B>()),
            _ => ColumnsInPlace::Dense(first, column_stride * size_of::<B>()),
        }
    }

    #[inline(always)]
    fn b_at(&self, step: usize, column: usize) -> *const B {
        self.b.wrapping_add(step * self.job.b.row_stride + column * self.job.b.column_stride)
    }

    /// The place of a row of the tile in the result.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.c + row * self.job.row_stride + self.columns.start
    }

    /// Packs the columns of the tile; where they are read in place, only those of the last panel, if it is not full.
    #[inline(always)]
    unsafe fn pack_columns<L: Microkernel, const COLUMNS: usize>(&self, block: &Block, to: &mut [Word]) {
        let depth = &block.depth;
        let ready = self.columns_in_place::<COLUMNS>();
        let lines = Lines {
            first: self.b_at(depth.start, self.columns.start + ready),
            count: self.columns.len() - ready,
            line_stride: self.job.b.column_stride,
            depth: depth.len(),
            step_stride: self.job.b.row_stride,
        };
        // SAFETY: the lines are inside the operand, which nothing writes while the job runs.
        unsafe { pack::pack::<B, L, COLUMNS>(lines, to) };
    }

    /// Sums the columns of the tile, if that is asked for: with the first rows.
    #[inline(always)]
    unsafe fn sum_columns<L: Microkernel, const COLUMNS: usize>(&self, block: &Block, packed: &[Word]) {
        if let Some(to) = self.job.column_sums.filter(|_| self.rows.start == 0) {
            // SAFETY: these columns' sums belong to the first tile of rows, which this is.
            let to = unsafe { to.slice(self.columns.clone()) };
            sum_packed::<L, COLUMNS>(packed, block.words, to, self.continues(block));
        }
    }

    /// Packs the rows of the tile, unless they are read where they lie.
    #[inline(always)]
    unsafe fn pack_rows<L: Microkernel, const ROWS: usize>(&self, block: &Block, to: &mut [Word]) {
        if self.job.cut.rows_in_place {
            return;
        }
        let depth = &block.depth;
        let Matrix { row_stride, column_stride, .. } = self.job.a;
        let lines = Lines {
            first: self.a.wrapping_add(self.rows.start * row_stride + depth.start * column_stride),
            count: self.rows.len(),
            line_stride: row_stride,
            depth: depth.len(),
            step_stride: column_stride,
        };
        // SAFETY: the lines are inside the operand, which nothing writes while the job runs.
        unsafe {
            match L::LINE_MAJOR {
                true => pack::pack_line_major::<A, L>(lines, to),
                false => pack::pack::<A, L, ROWS>(lines, to),
            }
        };
    }

    /// Asks for what a band of rows will be finished with when its sums are complete.
    #[inline(always)]
    fn ask_for_operands<L: Microkernel>(&self, band: Range<usize>) {
        let Some(epilogue) = &self.job.epilogue else { return };
        for row in band {
            for Range { start, end } in epilogue.operands(self.position(row), self.columns.len()) {
                for offset in (0..end as usize - start as usize).step_by(CACHE_LINE) {
                    L::prefetch_far(start.wrapping_add(offset));
                }
            }
        }
    }

    /// Finishes a band of rows whose sums are complete, and stores them where they did not gather in place.
    #[inline(always)]
    unsafe fn finish(&self, band: Range<usize>, sums: *mut f32, stride: usize, registers: &mut [f32]) {
        let job = self.job;
        let stored = job.kept && job.sums_in_place().is_none();
        let streams = job.streams();
        if !stored && job.epilogue.is_none() {
            return;
        }
        for (index, row) in band.enumerate() {
            let position = self.position(row);
            let sums = sums.wrapping_add(index * stride);
            if stored {
                // SAFETY: the row of the tile is this part's own; the sums lie in scratch, and nothing writes them.
                unsafe {
                    let sums = std::slice::from_raw_parts(sums, self.columns.len());
                    match streams {
                        true => job.product.stream(position, sums),
                        false => job.product.write(position, sums),
                    }
                };
            }
            if let Some(epilogue) = &job.epilogue {
                // SAFETY: the elements at these places are this tile's own, and the registers are prepared.
                unsafe { epilogue.run(position, sums, self.columns.len(), registers) };
            }
        }
    }
}

/// Adds up packed columns, each in the order of the depth.
#[inline(always)]
fn sum_packed<L: Microkernel, const COLUMNS: usize>(packed: &[Word], words: usize, to: &mut [f32], continued: bool) {
    for (panel, to) in to.chunks_mut(COLUMNS).enumerate() {
        let (steps, _) = packed[panel * words * COLUMNS..][..words * COLUMNS].as_chunks::<COLUMNS>();
        let mut sums = [0.0f32; COLUMNS];
        if continued {
            sums[..to.len()].copy_from_slice(to);
        }
        for step in steps {
            for (sum, &word) in sums.iter_mut().zip(step) {
                *sum += match L::STEPS {
                    1 => f32::from_bits(word),
                    // Of a pair, the bits of a bf16 are the upper half of the f32's.
                    _ => f32::from_bits(word << 16) + f32::from_bits(word & 0xffff_0000),
                };
            }
        }
        to.copy_from_slice(&sums[..to.len()]);
    }
}

/// Gives the registers the shape for so many rows, if they have another.
#[inline(always)]
unsafe fn reshape<L: Microkernel>(shape: &mut usize, rows: usize) {
    if *shape != rows {
        // SAFETY: the caller's promise.
        unsafe { L::shape(rows) };
        *shape = rows;
    }
}

/// A block of results; one with too few columns goes through a whole block beside it.
#[inline(always)]
unsafe fn multiply_block<L: Microkernel>(panels: Panels, to: Results, rows: usize, columns: usize) {
    if columns == L::COLUMNS {
        // SAFETY: the caller's promise.
        return unsafe { L::multiply(panels, to, rows) };
    }
    let mut block = [0.0f32; BLOCK_MAX];
    // SAFETY: so many rows and columns are the tile's own.
    let target = |row: usize| unsafe { std::slice::from_raw_parts_mut(to.first.add(row * to.stride), columns) };
    if let Start::At(from, stride) = to.start {
        for (row, sums) in block.chunks_exact_mut(L::COLUMNS).enumerate().take(rows) {
            // SAFETY: there are so many rows and columns to start from.
            sums[..columns].copy_from_slice(unsafe { std::slice::from_raw_parts(from.add(row * stride), columns) });
        }
    }
    let first = block.as_mut_ptr();
    let start = match to.start {
        Start::Zero => Start::Zero,
        Start::At(..) => Start::At(first, L::COLUMNS),
    };
    // SAFETY: the panels are whole, padded with zeros, and the block has room for them.
    unsafe { L::multiply(panels, Results { first, stride: L::COLUMNS, start }, rows) };
    for (row, sums) in block.chunks_exact(L::COLUMNS).enumerate().take(rows) {
        target(row).copy_from_slice(&sums[..columns]);
    }
}
