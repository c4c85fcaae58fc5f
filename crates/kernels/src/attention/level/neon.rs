//! Tiles in the vectors of 64-bit Arm.

use super::*;
use crate::vectors::{prefetch, transposed};
use std::arch::aarch64::*;

/// Four lanes to a register: 16 of 32 registers accumulate, which hides the latency of the multiply-add. It takes its
/// factor from a lane, which spares repeating it over a register.
pub struct Neon;

const ROWS: usize = 4;
const LANES: usize = 4;
const VECTORS: usize = COLUMN_MULTIPLE / LANES;
const _: () = assert!(ROW_MULTIPLE.is_multiple_of(ROWS) && LANES * VECTORS == COLUMN_MULTIPLE);

impl Level for Neon {
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMN_MULTIPLE;
    const PAIRED: bool = false;

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    unsafe fn wide_tile(tile: Tile) {
        // SAFETY: the caller's promise, word for word.
        unsafe { multiply(tile) }
    }

    #[inline(always)]
    unsafe fn narrow_tile(tile: Tile) {
        // SAFETY: the caller's promise, word for word.
        unsafe { multiply(tile) }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise, word for word.
        unsafe { transpose(from, from_stride, to, to_stride) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        prefetch(address)
    }

    #[inline(always)]
    unsafe fn pairs(_first: [f32; 16], _second: [f32; 16]) -> [f32; 16] {
        unreachable!("words are single numbers at this level")
    }
}

#[target_feature(enable = "neon")]
unsafe fn multiply(tile: Tile) {
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; ROWS];
    let (mut left, mut right) = (tile.left, tile.right);
    for _ in 0..tile.steps {
        // SAFETY: all that the tile covers is valid, by the caller's promise.
        unsafe {
            let vectors: [_; VECTORS] = std::array::from_fn(|vector| vld1q_f32(right.add(vector * LANES)));
            for row in 0..ROWS {
                let factor = *left.add(row * tile.left_row);
                for vector in 0..VECTORS {
                    sums[row][vector] = vfmaq_n_f32(sums[row][vector], vectors[vector], factor);
                }
            }
        }
        left = left.wrapping_add(tile.left_step);
        right = right.wrapping_add(tile.right_step);
    }
    for row in 0..ROWS {
        for vector in 0..VECTORS {
            // SAFETY: as above.
            unsafe {
                let to = tile.target.add(row * tile.target_row + vector * LANES);
                let sum = sums[row][vector];
                vst1q_f32(to, if tile.add { vaddq_f32(vld1q_f32(to), sum) } else { sum });
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    let lines = std::array::from_fn(|row| {
        let line = from.wrapping_add(row * from_stride);
        // SAFETY: the caller's promise.
        unsafe { [vld1q_f32(line), vld1q_f32(line.add(LANES))] }
    });
    for (row, [near, far]) in transposed(lines).into_iter().enumerate() {
        let line = to.wrapping_add(row * to_stride);
        // SAFETY: the caller's promise.
        unsafe {
            vst1q_f32(line, near);
            vst1q_f32(line.add(LANES), far);
        }
    }
}
