//! What the instruction sets do differently here: how large a tile their registers hold, how it is multiplied, and
//! how blocks of words are transposed.

use super::load::TRANSPOSE_SIDE;
use super::tile::{COLUMN_MULTIPLE, ROW_MULTIPLE, Tile};

/// An instruction-set level as a type, so that a body is compiled once for each.
pub(super) trait Level {
    /// Rows of a tile.
    const ROWS: usize;
    /// Columns of a wide tile.
    const COLUMNS: usize;
    /// Whether a word holds two bf16, of which two products are added at once, instead of one f32.
    const PAIRED: bool;

    /// `a * b + c`, rounded once where the machine can.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;

    /// Computes a tile of `ROWS` by `COLUMNS`.
    ///
    /// # Safety
    /// All that the tile covers must be valid, and the machine must have the level.
    unsafe fn wide_tile(tile: Tile);

    /// Computes a tile of `ROWS` by [`COLUMN_MULTIPLE`].
    ///
    /// # Safety
    /// As for [`Level::wide_tile`].
    unsafe fn narrow_tile(tile: Tile);

    /// Transposes a block of [`TRANSPOSE_SIDE`] by [`TRANSPOSE_SIDE`] words: its rows become columns.
    ///
    /// # Safety
    /// The rows of both blocks, so far apart, must be valid and not the same, and the machine must have the level.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);

    /// Asks the cache for what lies at an address, which need not be there.
    fn prefetch(address: *const u8);

    /// Pairs of bf16 as words: of each lane, the first number and the second, each rounded.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn pairs(first: [f32; 16], second: [f32; 16]) -> [f32; 16];
}

/// Numbers along a sum that lie in a word.
pub(super) const fn numbers_per_word<L: Level>() -> usize {
    if L::PAIRED { 2 } else { 1 }
}

/// Plain loops that every machine runs: no fused multiply-add, which would be a call into the system's library.
pub(super) struct Baseline;

impl Level for Baseline {
    const ROWS: usize = 4;
    const COLUMNS: usize = COLUMN_MULTIPLE;
    const PAIRED: bool = false;

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    unsafe fn wide_tile(tile: Tile) {
        // SAFETY: the caller's promise, word for word.
        unsafe { Self::narrow_tile(tile) }
    }

    #[inline(always)]
    unsafe fn narrow_tile(tile: Tile) {
        /// Eight sums of four rows fill half of the registers.
        const LANES: usize = 8;
        const _: () = assert!(ROW_MULTIPLE.is_multiple_of(Baseline::ROWS) && COLUMN_MULTIPLE.is_multiple_of(LANES));
        for column in (0..COLUMN_MULTIPLE).step_by(LANES) {
            let mut sums = [[0.0f32; LANES]; Self::ROWS];
            for step in 0..tile.steps {
                // SAFETY: all that the tile covers is valid, by the caller's promise.
                unsafe {
                    let right = tile.right.add(step * tile.right_step + column).cast::<[f32; LANES]>().read();
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let left = *tile.left.add(row * tile.left_row + step * tile.left_step);
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum += left * right;
                        }
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                // SAFETY: as above.
                let target = unsafe { &mut *tile.target.add(row * tile.target_row + column).cast::<[f32; LANES]>() };
                for (target, sum) in target.iter_mut().zip(sums) {
                    *target = if tile.add { *target + sum } else { *sum };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..TRANSPOSE_SIDE {
            for column in 0..TRANSPOSE_SIDE {
                // SAFETY: the caller's promise.
                unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) };
            }
        }
    }

    #[inline(always)]
    fn prefetch(_address: *const u8) {}

    #[inline(always)]
    unsafe fn pairs(_first: [f32; 16], _second: [f32; 16]) -> [f32; 16] {
        unreachable!("words are single numbers at this level")
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Avx512Bf16, is_bf16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::bf16;
    use crate::vectors::{
        Operands, WordRows, accumulate_avx2, accumulate_avx512, accumulate_avx512_bf16, multiply_pairs, rounded_pairs,
        transposed,
    };
    use std::any::TypeId;
    use std::arch::x86_64::*;

    /// Eight lanes to a register: 8 of 16 registers accumulate, which hides the latency of a multiply-add.
    pub struct Avx2;
    /// Sixteen lanes to a register: 16 of 32 registers accumulate.
    pub struct Avx512;
    /// As [`Avx512`], with words that are pairs of bf16.
    pub struct Avx512Bf16;

    /// Whether a type is bf16.
    pub fn is_bf16<T: 'static>() -> bool {
        TypeId::of::<T>() == TypeId::of::<bf16>()
    }

    /// A level of vectors of one width; all are this text with other intrinsics.
    macro_rules! vector_level {
        ($level:ident, $rows:literal rows, $lanes:literal lanes, $feature:literal, $paired:literal, $wide:ident,
         $narrow:ident of $narrow_vectors:literal, $zero:ident, $load:ident, $store:ident, $add:ident, $pairs:ident, $accumulate:ident) => {
            // Products are cut into whole tiles.
            const _: () = assert!(ROW_MULTIPLE.is_multiple_of($rows) && $narrow_vectors * $lanes == COLUMN_MULTIPLE);

            impl Level for $level {
                const ROWS: usize = $rows;
                const COLUMNS: usize = 2 * $lanes;
                const PAIRED: bool = $paired;

                #[inline(always)]
                fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
                    a.mul_add(b, c)
                }

                #[inline(always)]
                unsafe fn wide_tile(tile: Tile) {
                    // SAFETY: the caller's promise, word for word.
                    unsafe { $wide(tile) }
                }

                #[inline(always)]
                unsafe fn narrow_tile(tile: Tile) {
                    // SAFETY: the caller's promise, word for word.
                    unsafe { $narrow(tile) }
                }

                #[inline(always)]
                unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
                    // SAFETY: the caller's promise; every level here has AVX.
                    unsafe { transpose(from, from_stride, to, to_stride) }
                }

                #[inline(always)]
                fn prefetch(address: *const u8) {
                    // SAFETY: asking for an address that is not there does nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
                }

                #[inline(always)]
                unsafe fn pairs(first: [f32; 16], second: [f32; 16]) -> [f32; 16] {
                    // SAFETY: the machine has the level, by the caller's promise.
                    unsafe { $pairs(first, second) }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn $wide(tile: Tile) {
                let sums = [[$zero(); 2]; $rows];
                // SAFETY: all that the tile covers is valid, by the caller's promise.
                unsafe {
                    let sums = $accumulate(operands(&tile), sums);
                    for row in 0..$rows {
                        for half in 0..2 {
                            let to = tile.target.add(row * tile.target_row + half * $lanes);
                            let sum = sums[row][half];
                            $store(to, if tile.add { $add($load(to), sum) } else { sum });
                        }
                    }
                }
            }
        };
    }

    #[inline(always)]
    fn operands(tile: &Tile) -> Operands {
        const WORD: usize = size_of::<f32>();
        debug_assert!(tile.left_step == 1 || tile.left_row == 1);
        let rows = match tile.left_step {
            1 => WordRows::Dense(tile.left.cast(), tile.left_row * WORD),
            step => WordRows::SideBySide(tile.left.cast(), step * WORD),
        };
        Operands { steps: tile.steps, rows, columns: tile.right.cast(), column_stride: tile.right_step * WORD }
    }

    /// A tile of one vector of sixteen lanes.
    macro_rules! narrow_tile {
        ($name:ident, $feature:literal, $multiply_add:ident) => {
            #[target_feature(enable = $feature)]
            unsafe fn $name(tile: Tile) {
                let mut sums = [_mm512_setzero_ps(); 8];
                let (mut left, mut right) = (tile.left, tile.right);
                // SAFETY: all that the tile covers is valid, by the caller's promise.
                unsafe {
                    for _ in 0..tile.steps {
                        let vector = _mm512_loadu_ps(right);
                        for row in 0..8 {
                            sums[row] =
                                $multiply_add(_mm512_set1_ps(*left.add(row * tile.left_row)), vector, sums[row]);
                        }
                        left = left.wrapping_add(tile.left_step);
                        right = right.wrapping_add(tile.right_step);
                    }
                    for row in 0..8 {
                        let to = tile.target.add(row * tile.target_row);
                        let sum = sums[row];
                        _mm512_storeu_ps(to, if tile.add { _mm512_add_ps(_mm512_loadu_ps(to), sum) } else { sum });
                    }
                }
            }
        };
    }
    narrow_tile!(narrow_avx512, "avx512f", _mm512_fmadd_ps);
    narrow_tile!(narrow_avx512_bf16, "avx512f,avx512bf16", multiply_pairs);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn round_pairs(first: [f32; 16], second: [f32; 16]) -> [f32; 16] {
        // SAFETY: sixteen numbers and a vector of sixteen are the same bits.
        unsafe { std::mem::transmute(rounded_pairs(_mm512_loadu_ps(first.as_ptr()), _mm512_loadu_ps(second.as_ptr()))) }
    }

    unsafe fn no_pairs(_first: [f32; 16], _second: [f32; 16]) -> [f32; 16] {
        unreachable!("words are single numbers at this level")
    }

    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        let lines = std::array::from_fn(|row| unsafe { _mm256_loadu_ps(from.add(row * from_stride)) });
        for (row, line) in transposed(lines).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(to.add(row * to_stride), line) };
        }
    }

    vector_level!(
        Avx2, 4 rows, 8 lanes, "avx2,fma", false, wide_avx2, wide_avx2 of 2,
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, no_pairs, accumulate_avx2
    );
    vector_level!(
        Avx512, 8 rows, 16 lanes, "avx512f", false, wide_avx512, narrow_avx512 of 1,
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, no_pairs, accumulate_avx512
    );
    vector_level!(
        Avx512Bf16, 8 rows, 16 lanes, "avx512f,avx512bf16", true, wide_avx512_bf16, narrow_avx512_bf16 of 1,
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, round_pairs, accumulate_avx512_bf16
    );
}

/// As [`crate::isa::multiversion!`], for a body that also knows its [`Level`].
macro_rules! for_each_level {
    ($(#[$doc:meta])* fn $name:ident<$level:ident, $t:ident>($($arg:ident : $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;
            use crate::attention::level;

            #[inline(always)]
            unsafe fn body<$level: level::Level, $t: Element>($($arg: $ty),*) $body

            unsafe fn baseline<$t: Element>($($arg: $ty),*) {
                // SAFETY: the caller's promise is the body's, word for word.
                unsafe { body::<level::Baseline, $t>($($arg),*) }
            }

            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon<$t: Element>($($arg: $ty),*) {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body::<level::Neon, $t>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$t: Element>($($arg: $ty),*) {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body::<level::Avx2, $t>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512<$t: Element>($($arg: $ty),*) {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body::<level::Avx512, $t>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512_bf16<$t: Element>($($arg: $ty),*) {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body::<level::Avx512Bf16, $t>($($arg),*) }
            }

            /// The version for this instruction set. Pairs are multiplied where the elements are bf16 already; not on
            /// processors with matrix registers, which multiply pairs in vectors at half the speed of f32.
            pub(super) fn select<$t: Element>(isa: crate::Isa) -> unsafe fn($($ty),*) {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    crate::Isa::Avx512Bf16 if level::is_bf16::<$t>() => avx512_bf16::<$t>,
                    #[cfg(target_arch = "x86_64")]
                    crate::Isa::Avx512 | crate::Isa::Avx512Bf16 | crate::Isa::Amx => avx512::<$t>,
                    #[cfg(target_arch = "x86_64")]
                    crate::Isa::Avx2 => avx2::<$t>,
                    #[cfg(target_arch = "aarch64")]
                    crate::Isa::Neon => neon::<$t>,
                    _ => baseline::<$t>,
                }
            }
        }
    };
}
pub(super) use for_each_level;
