//! Matrix products: packed, cut for the caches, and finished with a bias and an activation while still warm.
//!
//! A part is a tile of the result, or several small products of a batch. The depth is taken in blocks, in order:
//! for each, the columns of the tile are packed into scratch, where the second-level cache keeps them, and row
//! panels are packed a few at a time, each multiplied with all columns while the first-level cache holds it.
//! Every element is summed in the order of the depth whatever the cut, and the cut follows from the sizes alone.

mod cut;
mod epilogue;
mod microkernel;
mod pack;
#[cfg(test)]
mod tests;

pub use epilogue::Activation;

use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use cut::{Cut, ROW_PANELS};
use microkernel::{BLOCK_MAX, Level, Panels, Portable, Results};
use pack::Lines;
use std::any::TypeId;
use std::ops::Range;

/// The sizes of a product: `[rows, depth] @ [depth, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the first operand and of the result.
    pub rows: usize,
    /// Columns of the second operand and of the result.
    pub columns: usize,
    /// Columns of the first operand and rows of the second.
    pub depth: usize,
}

/// A matrix that is read, in any layout.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<T> {
    /// The elements, from the first on.
    pub elements: In<T>,
    /// How far apart rows lie.
    pub row_stride: usize,
    /// How far apart columns lie.
    pub column_stride: usize,
}

/// A matrix that is written; its rows are dense.
#[derive(Clone, Copy, Debug)]
pub struct MatrixMut<T> {
    /// The elements, from the first on.
    pub elements: Out<T>,
    /// How far apart rows lie.
    pub row_stride: usize,
}

impl<T> Matrix<T> {
    /// The rows from this one on.
    pub fn rows_from(&self, row: usize) -> Matrix<T> {
        let start = (row * self.row_stride).min(self.elements.len());
        let elements = In::new(self.elements.as_ptr().wrapping_add(start), self.elements.len() - start);
        Matrix { elements, ..*self }
    }

    /// Rows taken for columns.
    pub fn transposed(&self) -> Matrix<T> {
        Matrix { elements: self.elements, row_stride: self.column_stride, column_stride: self.row_stride }
    }
}

impl<T> MatrixMut<T> {
    /// The rows from this one on.
    pub fn rows_from(&self, row: usize) -> MatrixMut<T> {
        MatrixMut { elements: self.elements.offset(row * self.row_stride), row_stride: self.row_stride }
    }

    /// The same matrix, to be read.
    pub fn as_matrix(&self) -> Matrix<T> {
        Matrix { elements: self.elements.as_in(), row_stride: self.row_stride, column_stride: 1 }
    }
}

/// An axis along which products are repeated, and how far apart the matrices lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAxis {
    /// How many products.
    pub size: usize,
    /// The step in the first operand; 0 uses the same matrix again.
    pub a_stride: usize,
    /// The step in the second operand.
    pub b_stride: usize,
    /// The step in the result.
    pub c_stride: usize,
}

/// `c = activation(a @ b + bias)`, for each product of a batch.
pub struct Gemm<A, B, C> {
    sizes: Sizes,
    a: Matrix<A>,
    b: Matrix<B>,
    c: MatrixMut<C>,
    batch: Vec<BatchAxis>,
    bias: Option<In<C>>,
    activation: Activation,
    accumulate: bool,
    isa: Isa,
    cut: Cut,
    body: unsafe fn(&Gemm<A, B, C>, usize, &mut [f32]),
}

impl<A: Element, B: Element, C: Element> Gemm<A, B, C> {
    /// The product of two matrices.
    pub fn new(isa: Isa, sizes: Sizes, a: Matrix<A>, b: Matrix<B>, c: MatrixMut<C>) -> Gemm<A, B, C> {
        Gemm {
            sizes,
            a,
            b,
            c,
            batch: vec![],
            bias: None,
            activation: Activation::None,
            accumulate: false,
            isa,
            cut: Cut::new(sizes, 1, panel_sizes(isa)),
            body: select(isa),
        }
    }

    /// The same for every product along these axes, outermost first.
    pub fn batched(self, batch: &[BatchAxis]) -> Gemm<A, B, C> {
        let batch: Vec<BatchAxis> = batch.iter().copied().filter(|axis| axis.size != 1).collect();
        let products = batch.iter().map(|axis| axis.size).product();
        Gemm { cut: Cut::new(self.sizes, products, panel_sizes(self.isa)), batch, ..self }
    }

    /// With a number added to each column.
    pub fn bias(self, bias: Option<In<C>>) -> Gemm<A, B, C> {
        Gemm { bias, ..self }
    }

    /// With a function applied to each result, after the bias.
    pub fn activation(self, activation: Activation) -> Gemm<A, B, C> {
        Gemm { activation, ..self }
    }

    /// How far the operands of a product lie from those of the first.
    fn offsets(&self, mut product: usize) -> (usize, usize, usize) {
        let (mut a, mut b, mut c) = (0, 0, 0);
        for axis in self.batch.iter().rev() {
            let index = product % axis.size;
            product /= axis.size;
            a += index * axis.a_stride;
            b += index * axis.b_stride;
            c += index * axis.c_stride;
        }
        (a, b, c)
    }
}

impl<A: Element, B: Element> Gemm<A, B, f32> {
    /// `c += a @ b` instead.
    pub fn accumulating(self, accumulate: bool) -> Gemm<A, B, f32> {
        Gemm { accumulate, ..self }
    }
}

impl<A: Element, B: Element, C: Element> Job for Gemm<A, B, C> {
    fn parts(&self) -> usize {
        parts_of(self.cut.tiles(), self.cut.tiles_per_part)
    }

    fn worker_scratch(&self) -> usize {
        let results = if is_f32::<C>() { 0 } else { self.cut.tile_rows * self.cut.tile_columns };
        (self.cut.column_block() + self.cut.row_block() + results) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = bytemuck::cast_slice_mut(scratch);
        // SAFETY: the caller's promise; parts are disjoint tiles of the result, and the machine has the level,
        // since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) }
    }
}

fn is_f32<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<f32>()
}

/// Rows and columns of the panels at a level.
fn panel_sizes(isa: Isa) -> (usize, usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => (microkernel::Avx512::ROWS, microkernel::Avx512::COLUMNS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => (microkernel::Avx2::ROWS, microkernel::Avx2::COLUMNS),
        _ => (Portable::ROWS, Portable::COLUMNS),
    }
}

/// The body for a level.
#[allow(clippy::type_complexity)]
fn select<A: Element, B: Element, C: Element>(isa: Isa) -> unsafe fn(&Gemm<A, B, C>, usize, &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => part_avx512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => part_avx2,
        _ => part_portable,
    }
}

unsafe fn part_portable<A: Element, B: Element, C: Element>(job: &Gemm<A, B, C>, part: usize, scratch: &mut [f32]) {
    // SAFETY: the caller's promise is the body's, word for word.
    unsafe { tiles_of::<A, B, C, Portable, 4, 8>(job, part, scratch) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn part_avx2<A: Element, B: Element, C: Element>(job: &Gemm<A, B, C>, part: usize, scratch: &mut [f32]) {
    // SAFETY: as above; the machine has the features, since `select` was given the level.
    unsafe { tiles_of::<A, B, C, microkernel::Avx2, 6, 16>(job, part, scratch) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn part_avx512<A: Element, B: Element, C: Element>(job: &Gemm<A, B, C>, part: usize, scratch: &mut [f32]) {
    // SAFETY: as above; the machine has the features, since `select` was given the level.
    unsafe { tiles_of::<A, B, C, microkernel::Avx512, 8, 32>(job, part, scratch) }
}

/// The tiles of a part. `ROWS` and `COLUMNS` are the level's own; a type cannot lend them to an array.
#[inline(always)]
unsafe fn tiles_of<A: Element, B: Element, C: Element, L: Level, const ROWS: usize, const COLUMNS: usize>(
    job: &Gemm<A, B, C>,
    part: usize,
    scratch: &mut [f32],
) {
    const { assert!(ROWS == L::ROWS && COLUMNS == L::COLUMNS && ROWS * COLUMNS <= BLOCK_MAX) };
    for index in chunk(part, job.cut.tiles_per_part, job.cut.tiles()) {
        let (product, rows, columns) = job.cut.tile(index);
        let (a, b, c) = job.offsets(product);
        let tile = Tile {
            job,
            a: job.a.elements.as_ptr().wrapping_add(a),
            b: job.b.elements.as_ptr().wrapping_add(b),
            c,
            rows,
            columns,
        };
        // SAFETY: the caller's promise; the tile is this part's own.
        unsafe { tile.multiply::<L, ROWS, COLUMNS>(scratch) };
    }
}

/// A tile of one product's result.
struct Tile<'a, A, B, C> {
    job: &'a Gemm<A, B, C>,
    a: *const A,
    b: *const B,
    /// Where the product's result begins.
    c: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<A: Element, B: Element, C: Element> Tile<'_, A, B, C> {
    #[inline(always)]
    unsafe fn multiply<L: Level, const ROWS: usize, const COLUMNS: usize>(&self, scratch: &mut [f32]) {
        let cut = &self.job.cut;
        let (column_block, rest) = scratch.split_at_mut(cut.column_block());
        let (row_block, results) = rest.split_at_mut(cut.row_block());
        // The sums gather in the result itself where it is f32, else in scratch, so that they are rounded once.
        let (first, stride) = match is_f32::<C>() {
            true => (
                self.job.c.elements.as_ptr().wrapping_add(self.position(self.rows.start)).cast(),
                self.job.c.row_stride,
            ),
            false => (results.as_mut_ptr(), cut.tile_columns),
        };
        let columns_lie_ready = self.columns_lie_ready(ROWS);
        for block in 0..cut.depth_blocks {
            let depth = chunk(block, cut.depth_block, self.job.sizes.depth);
            let add = block > 0 || self.job.accumulate;
            // SAFETY: the tile's columns lie inside the operand.
            unsafe { self.pack_columns::<L, COLUMNS>(&depth, columns_lie_ready, column_block) };
            for row in self.rows.clone().step_by(ROWS) {
                let band = row..(row + ROWS).min(self.rows.end);
                let group_row = (row - self.rows.start) % (ROWS * ROW_PANELS);
                if group_row == 0 {
                    // SAFETY: the tile's rows lie inside the operand.
                    unsafe { self.pack_rows::<L, ROWS>(row, &depth, row_block) };
                }
                let a = row_block[group_row * depth.len()..].as_ptr();
                let to = first.wrapping_add((row - self.rows.start) * stride);
                for column in self.columns.clone().step_by(COLUMNS) {
                    let width = COLUMNS.min(self.columns.end - column);
                    let (b, b_stride) = match columns_lie_ready && width == COLUMNS {
                        true => (self.b_at(depth.start, column).cast(), self.job.b.row_stride),
                        false => (column_block[(column - self.columns.start) * depth.len()..].as_ptr(), COLUMNS),
                    };
                    let panels = Panels { depth: depth.len(), a, b, b_stride };
                    let to = Results { first: to.wrapping_add(column - self.columns.start), stride, add };
                    // SAFETY: the panels were packed, or lie ready, and the results are this tile's own.
                    unsafe { multiply_block::<L>(panels, to, band.len(), width) };
                }
                if block + 1 == cut.depth_blocks {
                    // SAFETY: the sums of the band are complete, and its rows are this tile's own.
                    unsafe { self.finish(band, to, stride) };
                }
            }
        }
    }

    /// Whether the columns are read where they are: dense f32 rows that few row panels will read again.
    #[inline(always)]
    fn columns_lie_ready(&self, panel_rows: usize) -> bool {
        is_f32::<B>() && self.job.b.column_stride == 1 && self.rows.len() <= 2 * panel_rows
    }

    #[inline(always)]
    fn b_at(&self, step: usize, column: usize) -> *const B {
        self.b.wrapping_add(step * self.job.b.row_stride + column * self.job.b.column_stride)
    }

    /// The place of a row of the tile in the result.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.c + row * self.job.c.row_stride + self.columns.start
    }

    /// Packs the columns of the tile; where they lie ready, only those of the last panel, if it is not full.
    #[inline(always)]
    unsafe fn pack_columns<L: Level, const COLUMNS: usize>(
        &self,
        depth: &Range<usize>,
        lie_ready: bool,
        to: &mut [f32],
    ) {
        let ready = if lie_ready { self.columns.len() / COLUMNS * COLUMNS } else { 0 };
        let lines = Lines {
            first: self.b_at(depth.start, self.columns.start + ready),
            count: self.columns.len() - ready,
            line_stride: self.job.b.column_stride,
            depth: depth.len(),
            step_stride: self.job.b.row_stride,
        };
        // SAFETY: the lines are inside the operand, which nothing writes while the job runs.
        unsafe { pack::pack::<B, L, COLUMNS>(lines, &mut to[ready * depth.len()..]) };
    }

    /// Packs some panels of rows, from this one on.
    #[inline(always)]
    unsafe fn pack_rows<L: Level, const ROWS: usize>(&self, row: usize, depth: &Range<usize>, to: &mut [f32]) {
        let Matrix { row_stride, column_stride, .. } = self.job.a;
        let lines = Lines {
            first: self.a.wrapping_add(row * row_stride + depth.start * column_stride),
            count: (self.rows.end - row).min(ROWS * ROW_PANELS),
            line_stride: row_stride,
            depth: depth.len(),
            step_stride: column_stride,
        };
        // SAFETY: as for the columns.
        unsafe { pack::pack::<A, L, ROWS>(lines, to) };
    }

    /// Finishes a band of rows whose sums are complete, and rounds them where the result is not f32.
    #[inline(always)]
    unsafe fn finish(&self, band: Range<usize>, sums: *mut f32, stride: usize) {
        let job = self.job;
        if job.bias.is_none() && job.activation == Activation::None && is_f32::<C>() {
            return;
        }
        // SAFETY: the bias has a number for each column, and nothing writes it.
        let bias = job.bias.map(|bias| unsafe { bias.slice(self.columns.clone()) });
        for (index, row) in band.enumerate() {
            // SAFETY: the sums are this tile's own.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.add(index * stride), self.columns.len()) };
            epilogue::finish(sums, bias, job.activation);
            if !is_f32::<C>() {
                let start = self.position(row);
                // SAFETY: the row of the tile is this part's own, and the sums lie in scratch.
                let to = unsafe { job.c.elements.slice(start..start + self.columns.len()) };
                for (to, sum) in to.iter_mut().zip(sums) {
                    *to = C::from_f32(*sum);
                }
            }
        }
    }
}

/// A block of results; one at the edge goes through a whole block beside it.
#[inline(always)]
unsafe fn multiply_block<L: Level>(panels: Panels, to: Results, rows: usize, columns: usize) {
    if rows == L::ROWS && columns == L::COLUMNS {
        // SAFETY: the caller's promise.
        return unsafe { L::multiply(panels, to) };
    }
    let mut block = [0.0f32; BLOCK_MAX];
    // SAFETY: the panels are whole, padded with zeros, and the block has room for them.
    unsafe { L::multiply(panels, Results { first: block.as_mut_ptr(), stride: L::COLUMNS, add: false }) };
    for row in 0..rows {
        // SAFETY: so many rows and columns are the tile's own.
        let target = unsafe { std::slice::from_raw_parts_mut(to.first.add(row * to.stride), columns) };
        for (target, sum) in target.iter_mut().zip(&block[row * L::COLUMNS..]) {
            *target = if to.add { *target + sum } else { *sum };
        }
    }
}
