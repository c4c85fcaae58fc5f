//! Matrix products: packed, cut for the caches, started from a bias, and given its epilogue while still warm with whatever
//! element-wise program follows.
//!
//! A part is a tile of the result, or several small products of a batch. The depth is taken in blocks, in order:
//! for each, the columns of the tile are packed into scratch, where the second-level cache keeps them. Rows that
//! are dense are read where they lie; others are packed too. Each panel of rows is multiplied
//! with all columns while the first-level cache holds it.
//! Of few rows, as a model decodes, the time goes by how the columns are fetched. Vectors of x86 read them where they lie,
//! widened or paired as they are loaded: side by side, some steps of a long run at a time; one after another, transposed in registers.
//! Other columns are packed in blocks that stay in the first-level cache.
//! Every element is one sum in the order of the depth whatever the cut, so the number of workers may decide it; and a
//! product that accumulates goes on with the sums that it finds, so a depth that comes in pieces, one product after
//! another, gives the bits of the whole. (Pieces of whole words: an even number of steps where words are pairs.)
//!
//! If an operand is bf16 and the machine has dot products of bf16, both operands are rounded to bf16 as they are
//! packed; sums are always f32.

mod ahead;
mod cut;
mod microkernel;
mod pack;
#[cfg(test)]
mod tests;
mod tile;

use crate::elementwise::Epilogue;
use crate::streaming;
use crate::strided::{Axis, Reader, Writer};
use crate::{Element, In, Isa, Job, Out, bf16, chunk, f16, parts_of};
use cut::{Columns, Cut, Layout, Panel, Shares};
#[cfg(target_arch = "aarch64")]
use microkernel::Neon;
#[cfg(target_arch = "x86_64")]
use microkernel::{Amx, Avx2, Avx512, Avx512Bf16};
use microkernel::{Microkernel, Portable, STEPS_OF_DENSE};
#[cfg(target_arch = "x86_64")]
pub(crate) use microkernel::{OPERATIONS_IN_MATRIX_REGISTERS, multiply_in_matrix_registers};
use std::any::TypeId;

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

/// `c = a @ b + bias`, for each product of a batch, and what is made of it.
pub struct Gemm<A, B> {
    sizes: Sizes,
    a: Matrix<A>,
    b: Matrix<B>,
    /// Where the sums gather, if they can do so where they will lie.
    sums: Option<Out<f32>>,
    product: Writer,
    row_stride: usize,
    batch: Vec<BatchAxis>,
    bias: Option<Reader<f32>>,
    epilogue: Option<Epilogue>,
    /// Whether the product itself is wanted, besides what the epilogue makes of it.
    kept: bool,
    column_sums: Option<Out<f32>>,
    accumulate: bool,
    /// Further products with the same columns, which are packed once for all.
    beside: Vec<Gemm<A, B>>,
    isa: Isa,
    cut: Cut,
    body: Body<A, B>,
}

type Body<A, B> = unsafe fn(&Gemm<A, B>, usize, &mut [f32]);

impl<A: Element, B: Element> Gemm<A, B> {
    /// The product of two matrices.
    pub fn new<C: Element>(isa: Isa, sizes: Sizes, a: Matrix<A>, b: Matrix<B>, c: MatrixMut<C>) -> Gemm<A, B> {
        let pairs = (is::<A, bf16>() || is::<B, bf16>()) && !is::<A, f16>() && !is::<B, f16>();
        let (panel, body) = select(isa, pairs);
        Gemm {
            sizes,
            a,
            b,
            sums: is::<C, f32>().then(|| Out::new(c.elements.as_ptr().cast(), c.elements.len())),
            product: Writer::new(isa, c.elements),
            row_stride: c.row_stride,
            batch: vec![],
            bias: None,
            epilogue: None,
            kept: true,
            column_sums: None,
            accumulate: false,
            beside: vec![],
            isa,
            cut: Cut::new(sizes, Shares::default(), panel, layout(sizes, &a, &b, panel)),
            body,
        }
    }

    /// With both operands rounded to bf16, whatever they are, if the machine has dot products of it.
    pub fn in_bf16(self, rounded: bool) -> Gemm<A, B> {
        if !rounded {
            return self;
        }
        let (panel, body) = select(self.isa, true);
        let layout = layout(self.sizes, &self.a, &self.b, panel);
        let cut = Cut::new(self.sizes, self.cut.shares, panel, layout);
        let sums = self.column_sums;
        Gemm { cut, body, ..self }.column_sums(sums)
    }

    /// Cut for so many workers; one, unless told.
    pub fn workers(self, workers: usize) -> Gemm<A, B> {
        Gemm { cut: self.cut.again(Shares { workers, ..self.cut.shares }), ..self }
    }

    /// With columns of f32 multiplied where they lie, if rows are few: for columns that each product of a batch has for itself.
    pub fn columns_in_place(self) -> Gemm<A, B> {
        Gemm { cut: self.cut.with_columns_in_place(is::<B, f32>()), ..self }
    }

    /// Cut as one of so many products that share their columns.
    pub fn sharing(self, lefts: usize) -> Gemm<A, B> {
        Gemm { cut: self.cut.again(Shares { lefts, ..self.cut.shares }), ..self }
    }

    /// The same for every product along these axes, outermost first.
    pub fn batched(self, batch: &[BatchAxis]) -> Gemm<A, B> {
        let batch: Vec<BatchAxis> = batch.iter().copied().filter(|axis| axis.size != 1).collect();
        let products = batch.iter().map(|axis| axis.size).product();
        Gemm { cut: self.cut.again(Shares { products, ..self.cut.shares }), batch, ..self }
    }

    /// With a number added to each column: sums start from it.
    pub fn bias<T: Element>(self, bias: Option<In<T>>) -> Gemm<A, B> {
        assert!(bias.is_none() || !self.accumulate, "sums start from one thing");
        let columns = Axis { size: self.sizes.columns, stride: 1 };
        Gemm { bias: bias.map(|bias| Reader::widened(self.isa, bias, [columns])), ..self }
    }

    /// With a program run on the results, element by element; it takes at most [`Gemm::width`] of them at a time.
    /// Unless the product is `kept`, `c` is the program's own target, which takes the place of the product.
    pub fn with_epilogue(self, epilogue: Epilogue, kept: bool) -> Gemm<A, B> {
        let epilogue = if self.streams() { epilogue.streaming() } else { epilogue };
        Gemm { epilogue: Some(epilogue), kept, ..self }
    }

    /// With the sums of the columns of `b`, which are at hand when it is packed.
    pub fn column_sums(self, sums: Option<Out<f32>>) -> Gemm<A, B> {
        assert!(
            sums.is_none() || self.batch.is_empty() && self.sizes.rows > 0,
            "they are summed by the first rows of one product"
        );
        let cut = if sums.is_some() { self.cut.packing_columns() } else { self.cut };
        Gemm { column_sums: sums, cut, ..self }
    }

    /// `c += a @ b` instead, in f32, and the same for the column sums: sums go on from what is there.
    pub fn accumulating(self, accumulate: bool) -> Gemm<A, B> {
        assert!(!accumulate || self.sums.is_some(), "sums gather in f32");
        assert!(!accumulate || self.bias.is_none(), "sums start from one thing");
        Gemm { accumulate, ..self }
    }

    /// Whether another product has the same sizes and columns and is cut alike: so the columns can be packed for both at once.
    pub fn has_columns_of(&self, other: &Gemm<A, B>) -> bool {
        let columns = |gemm: &Gemm<A, B>| {
            let strides: Vec<_> = gemm.batch.iter().map(|axis| (axis.size, axis.b_stride)).collect();
            let Matrix { elements, row_stride, column_stride } = gemm.b;
            (elements.as_ptr(), [row_stride, column_stride], strides)
        };
        columns(self) == columns(other) && self.cut.is_like(&other.cut)
    }

    /// With another product, whose columns these are too. It has a result, a bias and an epilogue of its own, and the bits that it
    /// would have by itself. Both must have been told how many share them.
    pub fn beside(mut self, other: Gemm<A, B>) -> Gemm<A, B> {
        assert!(self.has_columns_of(&other), "products of the same columns");
        assert!(other.column_sums.is_none(), "columns are summed by the first product");
        self.beside.push(other);
        assert!(self.beside.len() < self.cut.shares.lefts, "more products than were told of");
        self
    }

    /// The product itself, and those beside it.
    fn lefts(&self) -> impl Iterator<Item = &Gemm<A, B>> {
        [self].into_iter().chain(&self.beside)
    }

    /// The most results that are finished at once.
    pub fn width(&self) -> usize {
        self.cut.tile_columns
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

    /// Whether results are written past the caches: they are large, and each is written once.
    fn streams(&self) -> bool {
        self.cut.depth_blocks == 1 && !self.accumulate && self.product.should_stream()
    }

    /// Where the sums gather, if they do so in the result itself.
    fn sums_in_place(&self) -> Option<Out<f32>> {
        self.sums.filter(|_| !self.streams())
    }

    /// Rows of sums that are kept in scratch: none where they gather in place, those of a panel where the depth is
    /// one block, else those of the tile.
    fn rows_in_scratch(&self) -> usize {
        match (self.sums_in_place(), self.cut.depth_blocks) {
            (Some(_), _) => 0,
            (None, 1) => self.cut.panel.rows.min(self.cut.tile_rows),
            (None, _) => self.cut.tile_rows,
        }
    }

    /// Numbers of a worker's scratch that are one product's own.
    fn own_scratch(&self) -> usize {
        let Cut { tile_columns, .. } = self.cut;
        let registers = self.epilogue.as_ref().map_or(0, Epilogue::scratch);
        let bias = if self.bias.is_some() { tile_columns } else { 0 };
        self.rows_in_scratch() * tile_columns + bias + registers
    }
}

impl<A: Element, B: Element> Job for Gemm<A, B> {
    fn parts(&self) -> usize {
        parts_of(self.cut.tiles(), self.cut.tiles_per_part)
    }

    fn worker_scratch(&self) -> usize {
        let own: usize = self.lefts().map(Gemm::own_scratch).sum();
        (self.cut.column_block() + self.cut.row_block() + own) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = bytemuck::cast_slice_mut(scratch);
        // SAFETY: the caller's promise; parts are disjoint tiles of the result, and the machine has the level,
        // since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) };
        if self.lefts().any(Gemm::streams) {
            streaming::fence();
        }
    }
}

/// How operands lie. They can be read there if they are dense, of what words are made of, and in whole words.
fn layout<A: Element, B: Element>(sizes: Sizes, a: &Matrix<A>, b: &Matrix<B>, panel: Panel) -> Layout {
    let whole = sizes.depth.is_multiple_of(panel.steps * panel.words);
    let rows_are_words = if panel.steps == 1 { is::<A, f32>() } else { is::<A, bf16>() };
    let columns_are_words = panel.steps == 1 && is::<B, f32>();
    let columns_become_words = panel.in_place && (panel.steps == 1 || is::<B, bf16>());
    let (columns, columns_in_place) = match (b.column_stride, b.row_stride) {
        (1, _) => (Columns::Beside, whole && (columns_are_words || columns_become_words)),
        (_, 1) => (Columns::Apart, columns_become_words && sizes.depth.is_multiple_of(STEPS_OF_DENSE)),
        _ => (Columns::Apart, false),
    };
    let rows_are_dense = a.column_stride == 1;
    Layout {
        rows_are_dense,
        rows_in_place: rows_are_dense && rows_are_words && whole,
        columns,
        columns_in_place,
        columns_stay: false,
        column_bytes: size_of::<B>(),
    }
}

fn is<T: 'static, U: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<U>()
}

/// The panels and the body for a level. With `pairs`, words are two bf16 where a machine multiplies those; else f32.
fn select<A: Element, B: Element>(isa: Isa, pairs: bool) -> (Panel, Body<A, B>) {
    match (isa, pairs) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, true) => (Panel::of::<Amx>(), part_amx),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, true) => (Panel::of::<Avx512Bf16>(), part_avx512_bf16),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, _) => (Panel::of::<Avx512>(), part_avx512),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, _) => (Panel::of::<Avx2>(), part_avx2),
        #[cfg(target_arch = "aarch64")]
        (Isa::Neon, _) => (Panel::of::<Neon>(), part_neon),
        _ => (Panel::of::<Portable>(), part_portable),
    }
}

unsafe fn part_portable<A: Element, B: Element>(job: &Gemm<A, B>, part: usize, scratch: &mut [f32]) {
    // SAFETY: the caller's promise is the body's, word for word.
    unsafe { tiles_of::<A, B, Portable, 4, 8>(job, part, scratch) }
}

/// The body for a level, compiled with its features.
macro_rules! part {
    ($name:ident, $level:ident, $machine:literal, $features:literal, $rows:literal x $columns:literal) => {
        #[cfg(target_arch = $machine)]
        #[target_feature(enable = $features)]
        unsafe fn $name<A: Element, B: Element>(job: &Gemm<A, B>, part: usize, scratch: &mut [f32]) {
            // SAFETY: the caller's promise; the machine has the features, since `select` was given the level.
            unsafe { tiles_of::<A, B, $level, $rows, $columns>(job, part, scratch) }
        }
    };
}
part!(part_neon, Neon, "aarch64", "neon", 8 x 8);
part!(part_avx2, Avx2, "x86_64", "avx2,fma,f16c", 6 x 16);
part!(part_avx512, Avx512, "x86_64", "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 12 x 32);
part!(part_avx512_bf16, Avx512Bf16, "x86_64", "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 8 x 32);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn part_amx<A: Element, B: Element>(job: &Gemm<A, B>, part: usize, scratch: &mut [f32]) {
    // SAFETY: the caller's promise; the machine has the features, since `select` was given the level.
    unsafe { Amx::with_registers(|| tiles_of::<A, B, Amx, 32, 32>(job, part, scratch)) }
}

/// The tiles of a part. `ROWS` and `COLUMNS` are the level's own; a type cannot lend them to an array.
#[inline(always)]
unsafe fn tiles_of<A: Element, B: Element, L: Microkernel, const ROWS: usize, const COLUMNS: usize>(
    job: &Gemm<A, B>,
    part: usize,
    scratch: &mut [f32],
) {
    for index in chunk(part, job.cut.tiles_per_part, job.cut.tiles()) {
        // SAFETY: the caller's promise; the tiles of this number are this part's own.
        unsafe { tile::compute::<A, B, L, ROWS, COLUMNS>(job, index, scratch) };
    }
}
