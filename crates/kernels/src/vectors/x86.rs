//! The vectors of x86-64.

use std::arch::x86_64::*;

/// Eight lines of eight numbers, turned: neighbours, then pairs, then halves change places.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) fn turned(x: [__m256; 8]) -> [__m256; 8] {
    let low = |i: usize| _mm256_unpacklo_ps(x[i], x[i + 1]);
    let high = |i: usize| _mm256_unpackhi_ps(x[i], x[i + 1]);
    let x = [low(0), high(0), low(2), high(2), low(4), high(4), low(6), high(6)];
    let first = |i: usize, j: usize| _mm256_shuffle_ps::<0x44>(x[i], x[j]);
    let second = |i: usize, j: usize| _mm256_shuffle_ps::<0xee>(x[i], x[j]);
    let near = [first(0, 2), second(0, 2), first(1, 3), second(1, 3)];
    let far = [first(4, 6), second(4, 6), first(5, 7), second(5, 7)];
    let left = |i: usize| _mm256_permute2f128_ps::<0x20>(near[i], far[i]);
    let right = |i: usize| _mm256_permute2f128_ps::<0x31>(near[i], far[i]);
    [left(0), left(1), left(2), left(3), right(0), right(1), right(2), right(3)]
}

/// Words of two numbers each: the nearest bf16 of a first one, and of a second one.
#[inline]
#[target_feature(enable = "avx512bf16,avx512bw,avx512f")]
pub(crate) fn rounded_pairs(first: __m512, second: __m512) -> __m512i {
    /// All first numbers come before all second ones; each word takes one of either.
    const BESIDE: [u16; 32] = {
        let mut places = [0; 32];
        let mut half = 0;
        while half < 32 {
            places[half] = half as u16 / 2 + half as u16 % 2 * 16;
            half += 1;
        }
        places
    };
    // SAFETY: 32 halves of words, in whatever vector or array, are the same bits.
    unsafe {
        let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
        _mm512_permutexvar_epi16(std::mem::transmute::<[u16; 32], __m512i>(BESIDE), halves)
    }
}
