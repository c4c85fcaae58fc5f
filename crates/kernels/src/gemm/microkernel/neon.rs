//! Inner products in the vectors of 64-bit Arm, every machine of which has NEON.

use super::{Microkernel, Panels, Results, Rows, Start, TRANSPOSE_SIDE, Word};
use crate::vectors::{prefetch, transposed, transposed_quarter};
use std::arch::aarch64::*;
use std::arch::asm;

/// 128-bit vectors: 16 of 32 registers accumulate, which hides the latency of the multiply-add. Eight hold four steps
/// of each row, since the multiply-add takes its factor from any lane: rows are read where they lie, and no number is
/// repeated over the lanes, which would take time of the units that multiply.
pub struct Neon;

const ROWS: usize = 8;
const COLUMNS: usize = 8;

/// Numbers in a vector.
const LANES: usize = 4;

/// The vectors of a row of results.
type Row = [float32x4_t; COLUMNS / LANES];

impl Microkernel for Neon {
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMNS;
    const STEPS: usize = 1;
    const WORDS: usize = LANES;
    const LINE_MAJOR: bool = true;
    const LINES: usize = LANES;

    #[inline(always)]
    unsafe fn multiply(panels: Panels, results: Results, rows: usize) {
        let (a, row_bytes) = match panels.a {
            Rows::Packed(first) => (first, panels.depth * size_of::<Word>()),
            Rows::InPlace(first, row_bytes) => (first, row_bytes),
        };
        // SAFETY: the caller's promise, word for word.
        unsafe {
            match rows {
                1 => multiply::<1>(panels, a.cast(), row_bytes, results),
                2 => multiply::<2>(panels, a.cast(), row_bytes, results),
                3 => multiply::<3>(panels, a.cast(), row_bytes, results),
                4 => multiply::<4>(panels, a.cast(), row_bytes, results),
                5 => multiply::<5>(panels, a.cast(), row_bytes, results),
                6 => multiply::<6>(panels, a.cast(), row_bytes, results),
                7 => multiply::<7>(panels, a.cast(), row_bytes, results),
                _ => multiply::<ROWS>(panels, a.cast(), row_bytes, results),
            }
        }
    }

    #[inline(always)]
    unsafe fn shape(_rows: usize) {}

    #[inline(always)]
    unsafe fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
        // SAFETY: the machine has the level, by the caller's promise.
        unsafe { transpose(lines) }
    }

    #[inline(always)]
    unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let lines = std::array::from_fn(|line| vld1q_f32(from.byte_add(line * line_bytes).cast()));
            for (word, words) in transposed_quarter(lines).into_iter().enumerate() {
                vst1q_f32(to.add(word * to_stride).cast(), words);
            }
        }
    }

    #[inline(always)]
    unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
        // SAFETY: every machine has the portable level.
        unsafe { super::Portable::pairs(steps, next) }
    }

    #[inline(always)]
    unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
        // SAFETY: as above.
        unsafe { super::Portable::line(numbers) }
    }

    #[inline(always)]
    fn prefetch_far(address: *const u8) {
        // SAFETY: asking for an address that is not there does nothing.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        prefetch(address)
    }
}

#[target_feature(enable = "neon")]
unsafe fn multiply<const ROWS: usize>(panels: Panels, a: *const f32, row_bytes: usize, results: Results) {
    for row in 0..ROWS {
        prefetch_to_write(results.first.wrapping_add(row * results.stride));
    }
    let mut sums = [[vdupq_n_f32(0.0); COLUMNS / LANES]; ROWS];
    if let Start::At(first, stride) = results.start {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: there are whole rows to start from, by the caller's promise.
            *sums = unsafe { load(first.add(row * stride)) };
        }
    }
    let (mut a, mut b) = (a, panels.b.cast::<f32>());
    for _ in 0..panels.depth / LANES {
        // SAFETY: the panels hold `depth` words a line, which is a multiple of `WORDS`: the caller's promise.
        unsafe {
            let rows = std::array::from_fn(|row| vld1q_f32(a.byte_add(row * row_bytes)));
            add_step::<0, ROWS>(&mut sums, &rows, load(b));
            add_step::<1, ROWS>(&mut sums, &rows, load(b.add(panels.b_stride)));
            add_step::<2, ROWS>(&mut sums, &rows, load(b.add(2 * panels.b_stride)));
            add_step::<3, ROWS>(&mut sums, &rows, load(b.add(3 * panels.b_stride)));
        }
        a = a.wrapping_add(LANES);
        b = b.wrapping_add(LANES * panels.b_stride);
    }
    for (row, sums) in sums.into_iter().enumerate() {
        // SAFETY: there is room for whole rows, by the caller's promise.
        unsafe { store(results.first.add(row * results.stride), sums) };
    }
}

/// Adds the products of one step, which is a lane of the rows.
#[inline]
#[target_feature(enable = "neon")]
fn add_step<const LANE: i32, const ROWS: usize>(sums: &mut [Row; ROWS], rows: &[float32x4_t; ROWS], columns: Row) {
    for (sums, row) in sums.iter_mut().zip(rows) {
        for (sum, column) in sums.iter_mut().zip(columns) {
            *sum = vfmaq_laneq_f32::<LANE>(*sum, column, *row);
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(from: *const f32) -> Row {
    // SAFETY: the caller promises so many numbers.
    std::array::from_fn(|at| unsafe { vld1q_f32(from.add(at * LANES)) })
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(to: *mut f32, sums: Row) {
    for (at, sum) in sums.into_iter().enumerate() {
        // SAFETY: the caller promises room for so many numbers.
        unsafe { vst1q_f32(to.add(at * LANES), sum) };
    }
}

/// The results are stored long after this: by then the cache has their lines for writing.
#[inline(always)]
fn prefetch_to_write(address: *const f32) {
    // SAFETY: asking for an address that is not there does nothing.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
}

#[inline]
#[target_feature(enable = "neon")]
fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
    // SAFETY: eight words and two vectors of four are the same bits.
    unsafe {
        std::mem::transmute(transposed(std::mem::transmute::<
            [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE],
            [Row; TRANSPOSE_SIDE],
        >(lines)))
    }
}
