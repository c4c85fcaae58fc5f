//! The vectors of x86-64.

use super::{CACHE_LINE, ColumnsInPlace};
use crate::{Element, bf16, f16};
use std::any::TypeId;
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

/// A loop over the steps of any number of rows, which lie in any way.
macro_rules! accumulate_rows {
    ($name:ident, $feature:literal, $vector:ty, $width:literal, $load:ident, $repeat:ident, $multiply_add:ident) => {
        /// The sums, with the products of the operands added.
        ///
        /// # Safety
        /// All steps of the operands must be there.
        #[inline]
        #[target_feature(enable = $feature)]
        pub(crate) unsafe fn $name<const ROWS: usize>(
            operands: Operands,
            mut sums: [[$vector; 2]; ROWS],
        ) -> [[$vector; 2]; ROWS] {
            const WORD: usize = size_of::<f32>();
            let (rows, row_bytes, step_bytes) = match operands.rows {
                WordRows::Dense(rows, stride) => (rows, stride, WORD),
                WordRows::SideBySide(rows, stride) => (rows, WORD, stride),
            };
            let (mut rows, mut columns) = (rows.cast::<f32>(), operands.columns.cast::<f32>());
            for _ in 0..operands.steps {
                // SAFETY: the caller's promise.
                unsafe {
                    let vectors = [$load(columns), $load(columns.add($width))];
                    for row in 0..ROWS {
                        let word = $repeat(rows.byte_add(row * row_bytes).read_unaligned());
                        for half in 0..2 {
                            sums[row][half] = $multiply_add(word, vectors[half], sums[row][half]);
                        }
                    }
                }
                rows = rows.wrapping_byte_add(step_bytes);
                columns = columns.wrapping_byte_add(operands.column_stride);
            }
            sums
        }
    };
}
accumulate_rows!(accumulate_avx2, "avx2,fma", __m256, 8, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps);
accumulate_rows!(accumulate_rows_avx512, "avx512f", __m512, 16, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps);
accumulate_rows!(
    accumulate_rows_avx512_bf16,
    "avx512f,avx512bf16",
    __m512,
    16,
    _mm512_loadu_ps,
    _mm512_set1_ps,
    multiply_pairs
);

/// A loop over the words of some rows and of columns where they lie: words of so many steps each, of which those of columns
/// side by side are made by `$beside` and those of dense ones by `$of_word`. Vectors of dense columns are transposed as they are
/// read.
macro_rules! accumulate_in_place {
    ($name:ident, $feature:literal, $vector:ty, $width:literal, steps $steps:literal, $beside:ident, $of_word:ident,
     $lines:ident, $repeat:ident, $multiply_add:ident) => {
        /// The sums, with the products of so many words added.
        ///
        /// # Safety
        /// All steps of rows and columns must be there; of dense columns, whole groups of four words.
        #[inline]
        #[target_feature(enable = $feature)]
        pub(crate) unsafe fn $name<T: Element, const ROWS: usize>(
            words: usize,
            rows: WordRows,
            columns: ColumnsInPlace<T>,
            mut sums: [[$vector; 2]; ROWS],
        ) -> [[$vector; 2]; ROWS] {
            const WORD: usize = size_of::<f32>();
            let (rows, row_bytes, step_bytes) = match rows {
                WordRows::Dense(rows, stride) => (rows, stride, WORD),
                WordRows::SideBySide(rows, stride) => (rows, WORD, stride),
            };
            let mut rows = rows.cast::<f32>();
            let mut add = |vectors: [$vector; 2]| {
                for row in 0..ROWS {
                    // SAFETY: the caller's promise.
                    let word = $repeat(unsafe { rows.wrapping_byte_add(row * row_bytes).read_unaligned() });
                    for half in 0..2 {
                        sums[row][half] = $multiply_add(word, vectors[half], sums[row][half]);
                    }
                }
                rows = rows.wrapping_byte_add(step_bytes);
            };
            match columns {
                ColumnsInPlace::SideBySide(mut first, stride) => {
                    for _ in 0..words {
                        // SAFETY: the caller's promise.
                        add(unsafe { $beside(first, stride) });
                        first = first.wrapping_byte_add($steps * stride);
                    }
                }
                ColumnsInPlace::Dense(mut first, stride) => {
                    let numbers = WORD / size_of::<T>();
                    // How many words of the rows there are for one that is read.
                    let made = (numbers / $steps).max(1);
                    // The next columns are asked for meanwhile, in the order in which memory has them.
                    let mut ahead = first.wrapping_byte_add(2 * $width * stride).cast::<i8>();
                    for _ in 0..words / (4 * made) {
                        for _ in 0..2 * $width * 4 * WORD / CACHE_LINE {
                            _mm_prefetch::<_MM_HINT_T1>(ahead);
                            ahead = ahead.wrapping_add(CACHE_LINE);
                        }
                        // SAFETY: the caller's promise.
                        let read = unsafe {
                            [$lines(first.cast(), stride), $lines(first.byte_add($width * stride).cast(), stride)]
                        };
                        for word in 0..4 {
                            let [left, right] = [$of_word::<T>(read[0][word]), $of_word::<T>(read[1][word])];
                            for step in 0..made {
                                add([left[step], right[step]]);
                            }
                        }
                        first = first.wrapping_add(4 * numbers);
                    }
                }
            }
            sums
        }
    };
}
accumulate_in_place!(
    accumulate_in_place_avx2,
    "avx2,fma,f16c",
    __m256,
    8,
    steps 1,
    beside_avx2,
    numbers_avx2,
    transposed_lines_avx,
    _mm256_set1_ps,
    _mm256_fmadd_ps
);
accumulate_in_place!(
    accumulate_in_place_avx512,
    "avx512f",
    __m512,
    16,
    steps 1,
    beside_avx512,
    numbers_avx512,
    transposed_lines_avx512,
    _mm512_set1_ps,
    _mm512_fmadd_ps
);
// Of columns of bf16 alone: words are their bits.
accumulate_in_place!(
    accumulate_in_place_avx512_bf16,
    "avx512f,avx512bw,avx512bf16",
    __m512,
    16,
    steps 2,
    beside_bf16,
    pairs_of_word,
    transposed_lines_avx512,
    _mm512_set1_ps,
    multiply_pairs
);

fn is<T: 'static, U: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<U>()
}

/// A step of two vectors of columns, in f32; steps lie so far apart.
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn beside_avx2<T: Element>(first: *const T, _stride: usize) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    unsafe { [widened_avx2(first), widened_avx2(first.add(8))] }
}

/// As [`beside_avx2`].
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn beside_avx512<T: Element>(first: *const T, _stride: usize) -> [__m512; 2] {
    // SAFETY: the caller's promise.
    unsafe { [widened_avx512(first), widened_avx512(first.add(16))] }
}

/// Words of a step and the next of 32 columns of 16 bits; steps lie so many bytes apart.
///
/// # Safety
/// The numbers of both steps must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn beside_bf16<T: Element>(first: *const T, stride: usize) -> [__m512; 2] {
    /// From where the halves of 16 words come, of two vectors of 32: those from the first column on, those from the middle one.
    const PLACES: [[u16; 32]; 2] = {
        let mut places = [[0; 32]; 2];
        let mut half = 0;
        while half < 32 {
            let place = half as u16 / 2 + half as u16 % 2 * 32;
            places[0][half] = place;
            places[1][half] = place + 16;
            half += 1;
        }
        places
    };
    // SAFETY: the caller's promise; 32 halves of words, in whatever vector or array, are the same bits.
    unsafe {
        let [step, next] = [first, first.byte_add(stride)].map(|step| _mm512_loadu_si512(step.cast()));
        let words = |places| _mm512_permutex2var_epi16(step, std::mem::transmute::<[u16; 32], __m512i>(places), next);
        PLACES.map(|places| _mm512_castsi512_ps(words(places)))
    }
}

/// Eight neighbouring numbers, in f32.
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widened_avx2<T: Element>(from: *const T) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        if is::<T, bf16>() {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
        } else if is::<T, f16>() {
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))
        } else {
            _mm256_loadu_ps(from.cast())
        }
    }
}

/// Sixteen neighbouring numbers, in f32.
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn widened_avx512<T: Element>(from: *const T) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if is::<T, bf16>() {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
        } else if is::<T, f16>() {
            _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
        } else {
            _mm512_loadu_ps(from.cast())
        }
    }
}

/// The numbers of which words are made, in f32: all first ones, and all second ones where a word has two.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn numbers_avx2<T: Element>(words: __m256) -> [__m256; 2] {
    let bits = _mm256_castps_si256(words);
    if is::<T, bf16>() {
        let second = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        [_mm256_slli_epi32::<16>(bits), second].map(|bits| _mm256_castsi256_ps(bits))
    } else if is::<T, f16>() {
        let first = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
        // Halves of the vector hold four first numbers, then four second ones.
        let beside = _mm256_packus_epi32(first, _mm256_srli_epi32::<16>(bits));
        let beside = _mm256_permute4x64_epi64::<0b11_01_10_00>(beside);
        [_mm256_castsi256_si128(beside), _mm256_extracti128_si256::<1>(beside)].map(|half| _mm256_cvtph_ps(half))
    } else {
        [words; 2]
    }
}

/// As [`numbers_avx2`].
#[inline]
#[target_feature(enable = "avx512f")]
fn numbers_avx512<T: Element>(words: __m512) -> [__m512; 2] {
    let bits = _mm512_castps_si512(words);
    if is::<T, bf16>() {
        let second = _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        [_mm512_slli_epi32::<16>(bits), second].map(|bits| _mm512_castsi512_ps(bits))
    } else if is::<T, f16>() {
        [bits, _mm512_srli_epi32::<16>(bits)].map(|bits| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)))
    } else {
        [words; 2]
    }
}

/// Words as they are: both of their numbers are multiplied at once.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs_of_word<T: Element>(words: __m512) -> [__m512; 1] {
    [words]
}

/// `sum + first * second` of both numbers of each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn multiply_pairs(first: __m512, second: __m512, sum: __m512) -> __m512 {
    // SAFETY: sixteen words and thirty-two halves of words are the same bits.
    let (first, second) =
        unsafe { (std::mem::transmute::<__m512, __m512bh>(first), std::mem::transmute::<__m512, __m512bh>(second)) };
    _mm512_dpbf16_ps(sum, first, second)
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

/// The first four numbers of each of eight lines, which lie so far apart in bytes: all first ones, all second ones, and so
/// on. Halves of a vector come from memory where they belong, which spares changing their places.
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) unsafe fn transposed_lines_avx(first: *const f32, line_bytes: usize) -> [__m256; 4] {
    // SAFETY: the caller's promise.
    let quad = |line: usize| unsafe { _mm_loadu_ps(first.wrapping_byte_add(line * line_bytes)) };
    let [a, b, c, d] = std::array::from_fn(|line| _mm256_set_m128(quad(line + 4), quad(line)));
    let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    [
        _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
        _mm256_shuffle_ps::<0xee>(ab_low, cd_low),
        _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
        _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
    ]
}

/// As [`transposed_lines_avx`], of sixteen lines.
///
/// # Safety
/// The numbers must be there.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transposed_lines_avx512(first: *const f32, line_bytes: usize) -> [__m512; 4] {
    // SAFETY: the caller's promise.
    let quad = |line: usize| unsafe { _mm_loadu_ps(first.wrapping_byte_add(line * line_bytes)) };
    let [a, b, c, d] = std::array::from_fn(|line| {
        let quads = _mm512_castps128_ps512(quad(line));
        let quads = _mm512_mask_broadcast_f32x4(quads, 0x00f0, quad(line + 4));
        let quads = _mm512_mask_broadcast_f32x4(quads, 0x0f00, quad(line + 8));
        _mm512_mask_broadcast_f32x4(quads, 0xf000, quad(line + 12))
    });
    let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    [
        _mm512_shuffle_ps::<0x44>(ab_low, cd_low),
        _mm512_shuffle_ps::<0xee>(ab_low, cd_low),
        _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
        _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
    ]
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
