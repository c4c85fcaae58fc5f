//! The vectors of x86-64.

use std::arch::x86_64::*;

/// Rows of words, from the first word on.
#[derive(Clone, Copy)]
pub(crate) enum WordRows {
    /// Each is dense, and they lie this far apart, in bytes.
    Dense(*const u32, usize),
    /// They lie side by side, and their steps this far apart, in bytes.
    SideBySide(*const u32, usize),
}

/// Some rows of words, times two vectors of words for each step.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub steps: usize,
    pub rows: WordRows,
    pub columns: *const u32,
    /// How far apart, in bytes, the steps of the columns lie.
    pub column_stride: usize,
}

/// The sums, with the products of the operands added.
///
/// # Safety
/// All steps of the operands must be there.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn accumulate_avx2<const ROWS: usize>(
    operands: Operands,
    sums: [[__m256; 2]; ROWS],
) -> [[__m256; 2]; ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        match operands.rows {
            WordRows::Dense(rows, stride) => steps_avx2::<true, ROWS>(rows, stride, operands, sums),
            WordRows::SideBySide(rows, stride) => steps_avx2::<false, ROWS>(rows, stride, operands, sums),
        }
    }
}

/// [`accumulate_avx2`] for rows that lie so.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn steps_avx2<const DENSE: bool, const ROWS: usize>(
    rows: *const u32,
    stride: usize,
    operands: Operands,
    mut sums: [[__m256; 2]; ROWS],
) -> [[__m256; 2]; ROWS] {
    const WORD: usize = size_of::<f32>();
    let (row_bytes, step_bytes) = if DENSE { (stride, WORD) } else { (WORD, stride) };
    let (mut rows, mut columns) = (rows.cast::<f32>(), operands.columns.cast::<f32>());
    for _ in 0..operands.steps {
        // SAFETY: the caller's promise.
        unsafe {
            let vectors = [_mm256_loadu_ps(columns), _mm256_loadu_ps(columns.add(8))];
            for row in 0..ROWS {
                let word = _mm256_set1_ps(rows.byte_add(row * row_bytes).read_unaligned());
                for half in 0..2 {
                    sums[row][half] = _mm256_fmadd_ps(word, vectors[half], sums[row][half]);
                }
            }
        }
        rows = rows.wrapping_byte_add(step_bytes);
        columns = columns.wrapping_byte_add(operands.column_stride);
    }
    sums
}

/// Eight lines of eight numbers, transposed: neighbours, then pairs, then halves change places.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) fn transposed(x: [__m256; 8]) -> [__m256; 8] {
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
