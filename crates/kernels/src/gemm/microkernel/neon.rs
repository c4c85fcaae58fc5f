//! Inner products in the vectors of 64-bit Arm, every machine of which has NEON.

use super::{Level, Panels, Results, Rows, TURN, Word};
use std::arch::aarch64::*;
use std::arch::asm;

/// 128-bit vectors: 24 of 32 registers accumulate. Tall panels, because rows of tokens are many, while eight columns
/// divide the widths of models and are turned at once when they are packed.
pub struct Neon;

const ROWS: usize = 12;
const COLUMNS: usize = 8;

/// Numbers in a vector.
const LANES: usize = 4;

/// The vectors of a row of results.
type Row = [float32x4_t; COLUMNS / LANES];

impl Level for Neon {
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMNS;
    const STEPS: usize = 1;
    const WORDS: usize = 1;
    const LINE_MAJOR: bool = false;

    #[inline(always)]
    unsafe fn multiply(panels: Panels, results: Results) {
        // SAFETY: the caller's promise, word for word.
        unsafe {
            match panels.a {
                Rows::Packed(a) => multiply::<true>(panels, a, size_of::<Word>(), results),
                Rows::InPlace(a, row_bytes) => multiply::<false>(panels, a, row_bytes, results),
            }
        }
    }

    #[inline(always)]
    unsafe fn turn(lines: [[Word; TURN]; TURN]) -> [[Word; TURN]; TURN] {
        // SAFETY: the machine has the level, by the caller's promise.
        unsafe { turn(lines) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: asking for an address that is not there does nothing.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
    }
}

#[target_feature(enable = "neon")]
unsafe fn multiply<const PACKED: bool>(panels: Panels, a: *const Word, row_bytes: usize, results: Results) {
    for row in 0..ROWS {
        prefetch_to_write(results.first.wrapping_add(row * results.stride));
    }
    let mut sums: [Row; ROWS] = [[vdupq_n_f32(0.0); COLUMNS / LANES]; ROWS];
    let (mut a, mut b) = (a.cast::<f32>(), panels.b.cast::<f32>());
    for _ in 0..panels.depth {
        // SAFETY: the panels hold `depth` words a line, by the caller's promise.
        let columns = unsafe { load(b) };
        for (group, sums) in sums.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            // SAFETY: as above.
            let factors = unsafe {
                match PACKED {
                    true => spread(vld1q_f32(a.add(group * LANES))),
                    false => std::array::from_fn(|row| vld1q_dup_f32(a.byte_add((group * LANES + row) * row_bytes))),
                }
            };
            for (row, sums) in sums.iter_mut().enumerate() {
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = vfmaq_f32(*sum, column, factors[row]);
                }
            }
        }
        a = a.wrapping_add(if PACKED { ROWS } else { 1 });
        b = b.wrapping_add(panels.b_stride);
    }
    for (row, sums) in sums.into_iter().enumerate() {
        // SAFETY: there is room for whole panels, by the caller's promise.
        unsafe { store(results.first.add(row * results.stride), sums, results.add) };
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
unsafe fn store(to: *mut f32, sums: Row, add: bool) {
    for (at, sum) in sums.into_iter().enumerate() {
        // SAFETY: the caller promises room for so many numbers.
        unsafe {
            let to = to.add(at * LANES);
            vst1q_f32(to, if add { vaddq_f32(vld1q_f32(to), sum) } else { sum });
        }
    }
}

/// Each number in all lanes of a vector of its own; the multiply-add takes it from the lane where it lies.
#[inline]
#[target_feature(enable = "neon")]
fn spread(numbers: float32x4_t) -> [float32x4_t; LANES] {
    [
        vdupq_laneq_f32::<0>(numbers),
        vdupq_laneq_f32::<1>(numbers),
        vdupq_laneq_f32::<2>(numbers),
        vdupq_laneq_f32::<3>(numbers),
    ]
}

/// The results are stored long after this: by then the cache has their lines for writing.
#[inline(always)]
fn prefetch_to_write(address: *const f32) {
    // SAFETY: asking for an address that is not there does nothing.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
}

/// The quarters are turned, and two of them change places.
#[inline]
#[target_feature(enable = "neon")]
fn turn(lines: [[Word; TURN]; TURN]) -> [[Word; TURN]; TURN] {
    // SAFETY: eight words and two vectors of four are the same bits.
    let x: [[uint32x4_t; 2]; TURN] = unsafe { std::mem::transmute(lines) };
    let quarter = |first: usize, half: usize| turn_quarter(std::array::from_fn(|line| x[first + line][half]));
    let (upper_left, upper_right) = (quarter(0, 0), quarter(0, 1));
    let (lower_left, lower_right) = (quarter(LANES, 0), quarter(LANES, 1));
    let y: [[uint32x4_t; 2]; TURN] = std::array::from_fn(|line| match line.checked_sub(LANES) {
        None => [upper_left[line], lower_left[line]],
        Some(line) => [upper_right[line], lower_right[line]],
    });
    // SAFETY: as above.
    unsafe { std::mem::transmute(y) }
}

/// Neighbours, then pairs change places.
#[inline]
#[target_feature(enable = "neon")]
fn turn_quarter([a, b, c, d]: [uint32x4_t; LANES]) -> [uint32x4_t; LANES] {
    let pairs = |x, y| (vreinterpretq_u64_u32(vtrn1q_u32(x, y)), vreinterpretq_u64_u32(vtrn2q_u32(x, y)));
    let ((even, odd), (even_below, odd_below)) = (pairs(a, b), pairs(c, d));
    [vtrn1q_u64(even, even_below), vtrn1q_u64(odd, odd_below), vtrn2q_u64(even, even_below), vtrn2q_u64(odd, odd_below)]
        .map(|pairs| vreinterpretq_u32_u64(pairs))
}
