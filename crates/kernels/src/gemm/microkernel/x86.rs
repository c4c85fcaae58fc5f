//! Inner products in the vectors of x86-64.

use super::{Microkernel, Panels, PanelsInPlace, Portable, Results, Rows, Start, TRANSPOSE_SIDE, Word};
use crate::Element;
use crate::vectors::{
    Operands, WordRows, accumulate_avx2, accumulate_avx512, accumulate_avx512_bf16, accumulate_in_place_avx2,
    accumulate_in_place_avx512, accumulate_in_place_avx512_bf16, rounded_pairs, transposed, transposed_lines_avx,
    transposed_lines_avx512,
};
use std::arch::x86_64::*;

/// 256-bit vectors with fused multiply-add: 12 of 16 registers accumulate.
pub struct Avx2;

/// 512-bit vectors: 24 of 32 registers accumulate, so that a word that is read is multiplied often.
pub struct Avx512;

/// As [`Avx512`], with dot products of pairs of bf16; 16 registers accumulate.
pub struct Avx512Bf16;

/// A level with vectors of one width; all levels are this text with other intrinsics.
macro_rules! vector_level {
    ($level:ident, $rows:literal or [$($fewer:literal)*] x $columns:literal, steps $steps:literal, $feature:literal, $name:ident,
     $vector:ty, $zero:ident, $load:ident, $store:ident, $pairs:path, $line:path, $accumulate:ident, $transposed:ident,
     $in_place:ident) => {
        impl Microkernel for $level {
            const ROWS: usize = $rows;
            const COLUMNS: usize = $columns;
            const STEPS: usize = $steps;
            const WORDS: usize = 1;
            const LINE_MAJOR: bool = false;
            const LINES: usize = $columns / 2;
            const IN_PLACE: bool = true;

            #[inline(always)]
            unsafe fn multiply(panels: Panels, results: Results, rows: usize) {
                // SAFETY: the caller's promise, word for word.
                unsafe {
                    match rows {
                        $($fewer => $name::multiply::<$fewer>(panels, results),)*
                        _ => $name::multiply::<$rows>(panels, results),
                    }
                }
            }

            #[inline(always)]
            unsafe fn multiply_in_place<T: Element>(panels: PanelsInPlace<T>, results: Results, rows: usize) {
                // SAFETY: the caller's promise, word for word.
                unsafe {
                    match rows {
                        $($fewer => $name::multiply_in_place::<T, $fewer>(panels, results),)*
                        _ => $name::multiply_in_place::<T, $rows>(panels, results),
                    }
                }
            }

            #[inline(always)]
            unsafe fn shape(_rows: usize) {}

            #[inline(always)]
            unsafe fn transpose(
                lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE],
            ) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
                // SAFETY: all these levels have AVX.
                unsafe { transpose_avx(lines) }
            }

            #[inline(always)]
            unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize) {
                // SAFETY: the caller's promise.
                unsafe {
                    for (word, words) in $transposed(from.cast(), line_bytes).into_iter().enumerate() {
                        $store(to.add(word * to_stride).cast(), words);
                    }
                }
            }

            #[inline(always)]
            unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
                // SAFETY: the caller's promise.
                unsafe { $pairs(steps, next) }
            }

            #[inline(always)]
            unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
                // SAFETY: the caller's promise.
                unsafe { $line(numbers) }
            }

            #[inline(always)]
            fn prefetch_far(address: *const u8) {
                // SAFETY: asking for an address that is not there does nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
            }

            #[inline(always)]
            fn prefetch(address: *const u8) {
                // SAFETY: asking for an address that is not there does nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
            }
        }

        mod $name {
            use super::*;

            const WIDTH: usize = $columns / 2;

            #[target_feature(enable = $feature)]
            pub(super) unsafe fn multiply<const ROWS: usize>(panels: Panels, results: Results) {
                // SAFETY: the panels hold `depth` words a line, by the caller's promise, and there are whole rows to start
                // from and room for as many.
                unsafe {
                    let sums = $accumulate(operands::<$rows>(panels), started::<ROWS>(results));
                    store(results, sums);
                }
            }

            #[target_feature(enable = $feature)]
            pub(super) unsafe fn multiply_in_place<T: Element, const ROWS: usize>(
                panels: PanelsInPlace<T>,
                results: Results,
            ) {
                // SAFETY: as above.
                unsafe {
                    let rows = word_rows::<$rows>(panels.a);
                    store(results, $in_place(panels.depth, rows, panels.b, started::<ROWS>(results)));
                }
            }

            /// What the sums start from.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn started<const ROWS: usize>(results: Results) -> [[$vector; 2]; ROWS] {
                for row in 0..ROWS {
                    let to = results.first.wrapping_add(row * results.stride);
                    // The results are stored long after this: by then the cache has their lines for writing.
                    _mm_prefetch::<_MM_HINT_ET0>(to.cast());
                    _mm_prefetch::<_MM_HINT_ET0>(to.wrapping_add(WIDTH).cast());
                }
                let mut sums = [[$zero(); 2]; ROWS];
                if let Start::At(first, stride) = results.start {
                    for row in 0..ROWS {
                        let from = first.wrapping_add(row * stride);
                        // SAFETY: there are whole rows to start from, by the caller's promise.
                        sums[row] = unsafe { [$load(from), $load(from.add(WIDTH))] };
                    }
                }
                sums
            }

            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn store<const ROWS: usize>(results: Results, sums: [[$vector; 2]; ROWS]) {
                for row in 0..ROWS {
                    for half in 0..2 {
                        // SAFETY: there is room for whole rows, by the caller's promise.
                        unsafe {
                            let to = results.first.add(row * results.stride + half * WIDTH);
                            $store(to, sums[row][half]);
                        }
                    }
                }
            }
        }
    };
}

vector_level!(
    Avx2, 6 or [1 2 3 4 5] x 16, steps 1, "avx2,fma,f16c", avx2,
    __m256, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, Portable::pairs, Portable::line, accumulate_avx2,
    transposed_lines_avx, accumulate_in_place_avx2
);
vector_level!(
    Avx512, 12 or [1 2 3 4 5 6 7 8 9 10 11] x 32, steps 1, "avx512f", avx512,
    __m512, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, Portable::pairs, Portable::line, accumulate_avx512,
    transposed_lines_avx512, accumulate_in_place_avx512
);
vector_level!(
    Avx512Bf16, 8 or [1 2 3 4 5 6 7] x 32, steps 2, "avx512f,avx512bw,avx512bf16", avx512_bf16,
    __m512, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, pairs_bf16, line_bf16, accumulate_avx512_bf16,
    transposed_lines_avx512, accumulate_in_place_avx512_bf16
);

#[inline(always)]
fn word_rows<const ROWS: usize>(rows: Rows) -> WordRows {
    match rows {
        Rows::Packed(rows) => WordRows::SideBySide(rows, ROWS * size_of::<Word>()),
        Rows::InPlace(rows, row_bytes) => WordRows::Dense(rows, row_bytes),
    }
}

#[inline(always)]
fn operands<const ROWS: usize>(panels: Panels) -> Operands {
    let rows = word_rows::<ROWS>(panels.a);
    Operands { steps: panels.depth, rows, columns: panels.b, column_stride: panels.b_stride * size_of::<Word>() }
}

/// Both rounded by the machine, then interleaved.
#[inline]
#[target_feature(enable = "avx512bf16,avx512vl,avx512bw,avx512f,avx2")]
fn pairs_bf16<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
    const { assert!(N.is_multiple_of(TRANSPOSE_SIDE)) };
    let mut words = [0; N];
    let (runs, rest) = words.as_chunks_mut::<{ 2 * TRANSPOSE_SIDE }>();
    for (run, to) in runs.iter_mut().enumerate() {
        // SAFETY: sixteen numbers or words and a vector of 512 bits are the same bits, and so many are there.
        unsafe {
            let [steps, next] =
                [&steps, &next].map(|numbers| _mm512_loadu_ps(numbers.as_ptr().add(run * 2 * TRANSPOSE_SIDE)));
            *to = std::mem::transmute::<__m512i, [Word; 2 * TRANSPOSE_SIDE]>(rounded_pairs(steps, next));
        }
    }
    for to in rest.as_chunks_mut::<TRANSPOSE_SIDE>().0 {
        // SAFETY: eight numbers and a vector of eight are the same bits, as are eight bf16 and a vector of 128 bits;
        // the last eight are there.
        unsafe {
            let round = |numbers: &[f32; N]| -> __m128i {
                std::mem::transmute(_mm256_cvtneps_pbh(_mm256_loadu_ps(numbers.as_ptr().add(N - TRANSPOSE_SIDE))))
            };
            let (steps, next) = (round(&steps), round(&next));
            let words = _mm256_set_m128i(_mm_unpackhi_epi16(steps, next), _mm_unpacklo_epi16(steps, next));
            *to = std::mem::transmute::<__m256i, [Word; TRANSPOSE_SIDE]>(words);
        }
    }
    words
}

/// The machine's bf16 of numbers that lie in a line, two to a word.
#[inline]
#[target_feature(enable = "avx512bf16,avx512vl,avx512f")]
fn line_bf16(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
    // SAFETY: the numbers are a vector, and eight words and a vector of 256 bits are the same bits.
    unsafe { std::mem::transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(numbers.as_ptr()))) }
}

/// Lines of words, transposed.
#[inline]
#[target_feature(enable = "avx")]
fn transpose_avx(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
    // SAFETY: eight words and a vector of eight are the same bits.
    unsafe {
        std::mem::transmute(transposed(std::mem::transmute::<
            [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE],
            [__m256; TRANSPOSE_SIDE],
        >(lines)))
    }
}
