//! The innermost product: a panel of rows times a panel of columns, accumulated in registers.
//!
//! A level names the panel sizes that fill its registers: the accumulators take most of them, one column panel's
//! vectors and one repeated word of the row panel take the rest.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use amx::Amx;
#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{OPERATIONS_IN_MATRIX_REGISTERS, multiply_in_matrix_registers};
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Avx512Bf16};

use crate::Element;
use crate::vectors::ColumnsInPlace;

/// What the inner product takes at once of each line: the bits of one f32, or of two bf16 of neighbouring steps.
pub(super) type Word = u32;

/// Lines and words that are transposed at once when they are packed.
pub(super) const TRANSPOSE_SIDE: usize = 8;

/// Words of lines that are transposed at once where they are words already.
pub(super) const TRANSPOSED_WORDS: usize = 4;

/// Steps of dense columns that are read at once where they lie: those of words of two.
pub(super) const STEPS_OF_DENSE: usize = 2 * TRANSPOSED_WORDS;

/// A panel of rows and a panel of columns, `depth` long.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// How many words each line has.
    pub depth: usize,
    pub a: Rows,
    /// At least `COLUMNS` words for each step of the depth.
    pub b: *const Word,
    /// How far apart the steps of `b` lie.
    pub b_stride: usize,
}

/// A panel of rows and a panel of columns where they lie, `depth` long: of columns that are dense, a multiple of
/// [`STEPS_OF_DENSE`].
#[derive(Clone, Copy)]
pub(super) struct PanelsInPlace<T> {
    pub depth: usize,
    pub a: Rows,
    pub b: ColumnsInPlace<T>,
}

/// A panel of rows.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    /// Packed: `ROWS` words for each step of the depth, or `depth` words for each row where a level is line-major.
    Packed(*const Word),
    /// Where they lie: dense rows, this far apart in bytes.
    InPlace(*const Word, usize),
}

/// Where a block of results goes.
#[derive(Clone, Copy)]
pub(super) struct Results {
    /// The first number.
    pub first: *mut f32,
    /// How far apart the rows lie.
    pub stride: usize,
    /// What the sums start from.
    pub start: Start,
}

/// What the sums of a block start from.
#[derive(Clone, Copy)]
pub(super) enum Start {
    Zero,
    /// Numbers, whose rows lie so far apart.
    At(*const f32, usize),
}

/// The most numbers that a block of results has at any level.
pub(super) const BLOCK_MAX: usize = 32 * 32;

/// An instruction-set level's panel sizes and inner product.
pub(super) trait Microkernel {
    /// Rows of a panel.
    const ROWS: usize;
    /// Columns of a panel.
    const COLUMNS: usize;
    /// Steps of the depth that a word holds: 1 for f32, 2 for bf16.
    const STEPS: usize;
    /// The depth is padded with zeros to a multiple of so many words.
    const WORDS: usize;
    /// Whether packed rows lie one after another, rather than side by side.
    const LINE_MAJOR: bool;
    /// Lines that are transposed at once where they are words already: a vector, of which a panel has whole ones.
    const LINES: usize;
    /// Whether columns are multiplied where they lie, besides words side by side: of any type, or of bf16 where words are two
    /// steps.
    const IN_PLACE: bool = false;

    /// `results = start + a @ b` for so many rows, at most a panel of them, and a panel of columns. Each sum is one chain
    /// in the order of the depth, and one that starts from earlier results is the same chain: neither a cut of the depth
    /// between words nor the number of rows changes a bit.
    ///
    /// # Safety
    /// The panels must hold `depth` words a line, `results` must have room for so many rows of `COLUMNS` numbers that
    /// nothing else touches, there must be as many to start from, the machine must have the level, and its registers
    /// the shape for so many rows.
    unsafe fn multiply(panels: Panels, results: Results, rows: usize);

    /// As [`Microkernel::multiply`], with columns where they lie; at levels that have it ([`Microkernel::IN_PLACE`]).
    ///
    /// # Safety
    /// As there.
    unsafe fn multiply_in_place<T: Element>(_panels: PanelsInPlace<T>, _results: Results, _rows: usize) {
        unreachable!("columns are packed at this level")
    }

    /// Gives the registers the shape for so many rows, where they have one; that for `ROWS` is there before.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn shape(rows: usize);

    /// Lines of words, transposed: the first of each line, then the second of each, and so on.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE];

    /// Four words of `LINES` dense lines, which lie so far apart in bytes, transposed: the first of all lines go to `to`, the
    /// second so far behind them, and so on.
    ///
    /// # Safety
    /// The words must be there, and `LINES` of them four times to be written; the machine must have the level.
    unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize);

    /// Words of two steps: the nearest bf16 of each number, and of the next step's. `N` is in whole [`TRANSPOSE_SIDE`]s.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N];

    /// Words of a line: the nearest bf16 of each number and of the one after it.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE];

    /// Asks the cache for what lies at an address, which need not be there.
    fn prefetch(address: *const u8);

    /// Asks the second-level cache for it, since it will not be needed at once.
    fn prefetch_far(address: *const u8);
}

/// Plain loops that every machine runs.
pub(super) struct Portable;

impl Microkernel for Portable {
    const ROWS: usize = 4;
    const COLUMNS: usize = 8;
    const STEPS: usize = 1;
    const WORDS: usize = 1;
    const LINE_MAJOR: bool = false;
    const LINES: usize = 8;

    #[inline(always)]
    unsafe fn multiply(panels: Panels, results: Results, rows: usize) {
        // SAFETY: the caller's promise, word for word.
        unsafe {
            match rows {
                1 => multiply::<1>(panels, results),
                2 => multiply::<2>(panels, results),
                3 => multiply::<3>(panels, results),
                _ => multiply::<{ Self::ROWS }>(panels, results),
            }
        }
    }

    #[inline(always)]
    unsafe fn shape(_rows: usize) {}

    #[inline(always)]
    unsafe fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
        std::array::from_fn(|step| std::array::from_fn(|line| lines[line][step]))
    }

    #[inline(always)]
    unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize) {
        for line in 0..Self::LINES {
            for word in 0..TRANSPOSED_WORDS {
                // SAFETY: the caller's promise.
                unsafe { *to.add(word * to_stride + line) = *from.byte_add(line * line_bytes).add(word) };
            }
        }
    }

    #[inline(always)]
    unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
        std::array::from_fn(|line| pair(steps[line], next[line]))
    }

    #[inline(always)]
    unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
        std::array::from_fn(|word| pair(numbers[2 * word], numbers[2 * word + 1]))
    }

    #[inline(always)]
    fn prefetch(_address: *const u8) {}

    #[inline(always)]
    fn prefetch_far(_address: *const u8) {}
}

#[inline(always)]
unsafe fn multiply<const ROWS: usize>(panels: Panels, results: Results) {
    const COLUMNS: usize = Portable::COLUMNS;
    let mut sums = [[0.0f32; COLUMNS]; ROWS];
    if let Start::At(first, stride) = results.start {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: there are whole rows to start from, by the caller's promise.
            *sums = unsafe { first.add(row * stride).cast::<[f32; COLUMNS]>().read() };
        }
    }
    let (first, row_bytes, step_words) = match panels.a {
        Rows::Packed(first) => (first, size_of::<Word>(), Portable::ROWS),
        Rows::InPlace(first, row_bytes) => (first, row_bytes, 1),
    };
    for step in 0..panels.depth {
        // SAFETY: the panels hold `depth` steps, by the caller's promise.
        let b = unsafe { panels.b.add(step * panels.b_stride).cast::<[f32; COLUMNS]>().read_unaligned() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let a = unsafe { first.byte_add(row * row_bytes).add(step * step_words).cast::<f32>().read() };
            for (sum, b) in sums.iter_mut().zip(&b) {
                *sum += a * b;
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: there is room for whole rows, by the caller's promise.
        unsafe { results.first.add(row * results.stride).cast::<[f32; COLUMNS]>().write(*sums) };
    }
}

/// A word of two steps.
#[inline(always)]
pub(super) fn pair<T: Element>(step: T, next: T) -> Word {
    step.to_bf16().to_bits() as Word | (next.to_bf16().to_bits() as Word) << 16
}
