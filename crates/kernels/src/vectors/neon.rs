//! The vectors of 64-bit Arm.

use std::arch::aarch64::*;
use std::arch::asm;

/// Numbers in a vector, and lines of a quarter that is transposed.
const LANES: usize = 4;

/// Eight lines of eight numbers, transposed: each quarter is, and two of them change places.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn transposed(x: [[float32x4_t; 2]; 2 * LANES]) -> [[float32x4_t; 2]; 2 * LANES] {
    let quarter = |first: usize, half: usize| transposed_quarter(std::array::from_fn(|line| x[first + line][half]));
    let (upper_left, upper_right) = (quarter(0, 0), quarter(0, 1));
    let (lower_left, lower_right) = (quarter(LANES, 0), quarter(LANES, 1));
    std::array::from_fn(|line| match line.checked_sub(LANES) {
        None => [upper_left[line], lower_left[line]],
        Some(line) => [upper_right[line], lower_right[line]],
    })
}

/// Four lines of four numbers, transposed: neighbours, then pairs change places.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn transposed_quarter([a, b, c, d]: [float32x4_t; LANES]) -> [float32x4_t; LANES] {
    let pairs = |x, y| (vreinterpretq_f64_f32(vtrn1q_f32(x, y)), vreinterpretq_f64_f32(vtrn2q_f32(x, y)));
    let ((even, odd), (even_below, odd_below)) = (pairs(a, b), pairs(c, d));
    [vtrn1q_f64(even, even_below), vtrn1q_f64(odd, odd_below), vtrn2q_f64(even, even_below), vtrn2q_f64(odd, odd_below)]
        .map(|pairs| vreinterpretq_f32_f64(pairs))
}

/// Asks the first-level cache for what lies at an address, which need not be there.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: asking for an address that is not there does nothing.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
}
