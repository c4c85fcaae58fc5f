//! The innermost product: a panel of rows times a panel of columns, accumulated in registers.
//!
//! A level names the panel sizes that fill its registers: the accumulators take most of them, one column panel's
//! vectors and one repeated element of the row panel take the rest.

/// A packed panel of rows and a panel of columns, `depth` long.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// How many products each element of the result sums.
    pub depth: usize,
    /// `ROWS` numbers for each step of the depth.
    pub a: *const f32,
    /// At least `COLUMNS` numbers for each step of the depth.
    pub b: *const f32,
    /// How far apart the steps of `b` lie.
    pub b_stride: usize,
}

/// Where a block of results goes.
#[derive(Clone, Copy)]
pub(super) struct Results {
    /// The first number.
    pub first: *mut f32,
    /// How far apart the rows lie.
    pub stride: usize,
    /// Whether to add to what is there, or to replace it.
    pub add: bool,
}

/// The most numbers that a block of results has at any level.
pub(super) const BLOCK_MAX: usize = 8 * 32;

/// An instruction-set level's panel sizes and inner product.
pub(super) trait Level {
    /// Rows of a panel.
    const ROWS: usize;
    /// Columns of a panel.
    const COLUMNS: usize;

    /// `results (+)= a @ b` for whole panels.
    ///
    /// # Safety
    /// The panels must hold `depth` steps, `results` must have room for `ROWS` rows of `COLUMNS` numbers that
    /// nothing else touches, and the machine must have the level.
    unsafe fn multiply(panels: Panels, results: Results);

    /// Eight lines of eight numbers, turned: the first of each line, then the second of each, and so on.
    ///
    /// # Safety
    /// The machine must have the level.
    unsafe fn turn(lines: [[f32; 8]; 8]) -> [[f32; 8]; 8];

    /// Asks the cache for what lies at an address, which need not be there.
    fn prefetch(address: *const u8);
}

/// Plain loops that every machine runs.
pub(super) struct Portable;

impl Level for Portable {
    const ROWS: usize = 4;
    const COLUMNS: usize = 8;

    #[inline(always)]
    unsafe fn multiply(panels: Panels, results: Results) {
        let mut sums = [[0.0f32; Self::COLUMNS]; Self::ROWS];
        for step in 0..panels.depth {
            // SAFETY: the panels hold `depth` steps, by the caller's promise.
            let (a, b) = unsafe {
                let a = panels.a.add(step * Self::ROWS).cast::<[f32; Self::ROWS]>().read_unaligned();
                let b = panels.b.add(step * panels.b_stride).cast::<[f32; Self::COLUMNS]>().read_unaligned();
                (a, b)
            };
            for row in 0..Self::ROWS {
                for column in 0..Self::COLUMNS {
                    sums[row][column] += a[row] * b[column];
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: there is room for whole panels, by the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(results.first.add(row * results.stride), Self::COLUMNS) };
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if results.add { *to + sum } else { *sum };
            }
        }
    }

    #[inline(always)]
    unsafe fn turn(lines: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
        std::array::from_fn(|step| std::array::from_fn(|line| lines[line][step]))
    }

    #[inline(always)]
    fn prefetch(_address: *const u8) {}
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Level, Panels, Results};
    use std::arch::x86_64::*;

    /// 256-bit vectors with fused multiply-add: 12 of 16 registers accumulate.
    pub struct Avx2;

    /// 512-bit vectors: 16 of 32 registers accumulate, and rows are turned eight at a time when packed.
    pub struct Avx512;

    /// An inner product in vectors of one width; both levels are this text with other intrinsics.
    macro_rules! vector_level {
        ($level:ident, $rows:literal, $columns:literal, $feature:literal, $name:ident,
         $zero:ident, $load:ident, $store:ident, $repeat:ident, $multiply_add:ident, $add:ident) => {
            impl Level for $level {
                const ROWS: usize = $rows;
                const COLUMNS: usize = $columns;

                #[inline(always)]
                unsafe fn multiply(panels: Panels, results: Results) {
                    // SAFETY: the caller's promise, word for word.
                    unsafe { $name(panels, results) }
                }

                #[inline(always)]
                unsafe fn turn(lines: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
                    // SAFETY: both levels have AVX.
                    unsafe { turn_avx(lines) }
                }

                #[inline(always)]
                fn prefetch(address: *const u8) {
                    // SAFETY: asking for an address that is not there does nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn $name(panels: Panels, results: Results) {
                const WIDTH: usize = $columns / 2;
                let mut sums = [[$zero(); 2]; $rows];
                let (mut a, mut b) = (panels.a, panels.b);
                for _ in 0..panels.depth {
                    // SAFETY: the panels hold `depth` steps, by the caller's promise.
                    unsafe {
                        let columns = [$load(b), $load(b.add(WIDTH))];
                        for row in 0..$rows {
                            let repeated = $repeat(*a.add(row));
                            sums[row][0] = $multiply_add(repeated, columns[0], sums[row][0]);
                            sums[row][1] = $multiply_add(repeated, columns[1], sums[row][1]);
                        }
                    }
                    a = a.wrapping_add($rows);
                    b = b.wrapping_add(panels.b_stride);
                }
                for row in 0..$rows {
                    for half in 0..2 {
                        // SAFETY: there is room for whole panels, by the caller's promise.
                        unsafe {
                            let to = results.first.add(row * results.stride + half * WIDTH);
                            let sum = sums[row][half];
                            $store(to, if results.add { $add($load(to), sum) } else { sum });
                        }
                    }
                }
            }
        };
    }

    /// Neighbours, then pairs, then halves change places.
    #[inline]
    #[target_feature(enable = "avx")]
    fn turn_avx(lines: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
        // SAFETY: eight numbers and a vector of eight are the same bits.
        let x: [__m256; 8] = unsafe { std::mem::transmute(lines) };
        let low = |i: usize| _mm256_unpacklo_ps(x[i], x[i + 1]);
        let high = |i: usize| _mm256_unpackhi_ps(x[i], x[i + 1]);
        let x = [low(0), high(0), low(2), high(2), low(4), high(4), low(6), high(6)];
        let first = |i: usize, j: usize| _mm256_shuffle_ps::<0x44>(x[i], x[j]);
        let second = |i: usize, j: usize| _mm256_shuffle_ps::<0xee>(x[i], x[j]);
        let near = [first(0, 2), second(0, 2), first(1, 3), second(1, 3)];
        let far = [first(4, 6), second(4, 6), first(5, 7), second(5, 7)];
        let left = |i: usize| _mm256_permute2f128_ps::<0x20>(near[i], far[i]);
        let right = |i: usize| _mm256_permute2f128_ps::<0x31>(near[i], far[i]);
        let y = [left(0), left(1), left(2), left(3), right(0), right(1), right(2), right(3)];
        // SAFETY: as above.
        unsafe { std::mem::transmute(y) }
    }

    vector_level!(
        Avx2,
        6,
        16,
        "avx2,fma",
        multiply_avx2,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    vector_level!(
        Avx512,
        8,
        32,
        "avx512f",
        multiply_avx512,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
}
