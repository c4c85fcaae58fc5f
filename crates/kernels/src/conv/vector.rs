//! The vectors that tiles are made of. Arrays of numbers do not do: what a compiler makes of a tile of them was seen to be
//! thirty times slower than its instructions.

#[cfg(target_arch = "x86_64")]
use crate::vectors::{transposed_lines_avx, transposed_lines_avx512};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Some numbers side by side.
pub(super) trait Vector: Copy {
    /// How many.
    const LANES: usize;

    /// # Safety
    /// There must be so many numbers, and the machine must have the vector.
    unsafe fn load(from: *const f32) -> Self;

    /// The numbers of the lanes from `start` to `end`, and zeros in the others. `from` is where the first lane's would lie.
    ///
    /// # Safety
    /// Those numbers must be there, and the machine must have the vector.
    unsafe fn load_some(from: *const f32, start: usize, end: usize) -> Self;

    /// # Safety
    /// There must be room for so many numbers, and the machine must have the vector.
    unsafe fn store(self, to: *mut f32);

    /// The same number in all lanes.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn all(number: f32) -> Self;

    /// The first four numbers of each of as many lines as there are lanes, which lie so far apart: all first ones, all second
    /// ones, and so on.
    ///
    /// # Safety
    /// The numbers must be there, and the machine must have the vector.
    unsafe fn transposed(first: *const f32, pitch: usize) -> [Self; 4];

    /// The numbers at even places of both, and those at odd ones.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn parted(self, other: Self) -> [Self; 2];

    /// The numbers of both in turn: the reverse of [`Vector::parted`].
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn joined(self, other: Self) -> [Self; 2];

    /// `self + other`.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn plus(self, other: Self) -> Self;

    /// `self - other`.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn minus(self, other: Self) -> Self;

    /// `self * other`.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn times(self, other: Self) -> Self;

    /// `sum + self * factor`, fused but on the baseline.
    ///
    /// # Safety
    /// The machine must have the vector.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
}

macro_rules! x86_vector {
    ($vector:ty, $lanes:literal, $load:ident, $load_some:ident, $store:ident, $all:ident, $transposed:ident,
     $parted:ident, $joined:ident, $plus:ident, $minus:ident, $times:ident, $multiply_add:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl Vector for $vector {
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn load_some(from: *const f32, start: usize, end: usize) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $load_some(from, start, end) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller's promise.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn all(number: f32) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $all(number) }
            }

            #[inline(always)]
            unsafe fn transposed(first: *const f32, pitch: usize) -> [Self; 4] {
                // SAFETY: the caller's promise.
                unsafe { $transposed(first, pitch * size_of::<f32>()) }
            }

            #[inline(always)]
            unsafe fn parted(self, other: Self) -> [Self; 2] {
                // SAFETY: the caller's promise.
                unsafe { $parted(self, other) }
            }

            #[inline(always)]
            unsafe fn joined(self, other: Self) -> [Self; 2] {
                // SAFETY: the caller's promise.
                unsafe { $joined(self, other) }
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $plus(self, other) }
            }

            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $minus(self, other) }
            }

            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $times(self, other) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $multiply_add(self, factor, sum) }
            }
        }
    };
}
x86_vector!(
    __m512,
    16,
    _mm512_loadu_ps,
    some_of_512,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    transposed_lines_avx512,
    parted_512,
    joined_512,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_fmadd_ps
);
x86_vector!(
    __m256,
    8,
    _mm256_loadu_ps,
    some_of_256,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    transposed_lines_avx,
    parted_256,
    joined_256,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_fmadd_ps
);

/// The numbers of some lanes, and zeros; what belongs to others is not read.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn some_of_512(from: *const f32, start: usize, end: usize) -> __m512 {
    let below = |lane: usize| (1u32 << lane.min(16)) - 1;
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps((below(end) & !below(start)) as u16, from) }
}

/// The same in half the lanes.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn some_of_256(from: *const f32, start: usize, end: usize) -> __m256 {
    let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let below = |lane: usize| _mm256_cmpgt_epi32(_mm256_set1_epi32(lane.min(8) as i32), places);
    let mask = _mm256_andnot_si256(below(start), below(end));
    // SAFETY: the caller's promise.
    unsafe { _mm256_maskload_ps(from, mask) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn parted_512(a: __m512, b: __m512) -> [__m512; 2] {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    [_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)]
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn joined_512(a: __m512, b: __m512) -> [__m512; 2] {
    let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    [_mm512_permutex2var_ps(a, first, b), _mm512_permutex2var_ps(a, second, b)]
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn parted_256(a: __m256, b: __m256) -> [__m256; 2] {
    let whole = |halves: __m256| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(halves)));
    [whole(_mm256_shuffle_ps::<0b10_00_10_00>(a, b)), whole(_mm256_shuffle_ps::<0b11_01_11_01>(a, b))]
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn joined_256(a: __m256, b: __m256) -> [__m256; 2] {
    let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
}

/// What every machine has, with products and sums fused or not.
#[derive(Clone, Copy)]
pub(super) struct Plain<const FUSED: bool>([f32; 4]);

impl<const FUSED: bool> Vector for Plain<FUSED> {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Plain(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, start: usize, end: usize) -> Self {
        let mut numbers = [0.0; 4];
        for (lane, number) in numbers.iter_mut().enumerate().take(end).skip(start) {
            // SAFETY: the caller's promise.
            *number = unsafe { from.wrapping_add(lane).read() };
        }
        Plain(numbers)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn all(number: f32) -> Self {
        Plain([number; 4])
    }

    #[inline(always)]
    unsafe fn transposed(first: *const f32, pitch: usize) -> [Self; 4] {
        // SAFETY: the caller's promise.
        let lines: [[f32; 4]; 4] =
            std::array::from_fn(|line| unsafe { first.add(line * pitch).cast::<[f32; 4]>().read() });
        std::array::from_fn(|place| Plain(lines.map(|line| line[place])))
    }

    #[inline(always)]
    unsafe fn parted(self, other: Self) -> [Self; 2] {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        [Plain([a, c, e, g]), Plain([b, d, f, h])]
    }

    #[inline(always)]
    unsafe fn joined(self, other: Self) -> [Self; 2] {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        [Plain([a, e, b, f]), Plain([c, g, d, h])]
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        let mut result = sum;
        for (index, to) in result.0.iter_mut().enumerate() {
            *to =
                if FUSED { self.0[index].mul_add(factor.0[index], *to) } else { *to + self.0[index] * factor.0[index] };
        }
        result
    }
}

impl<const FUSED: bool> Plain<FUSED> {
    #[inline(always)]
    fn with(mut self, other: Self, combine: impl Fn(f32, f32) -> f32) -> Self {
        for (to, other) in self.0.iter_mut().zip(other.0) {
            *to = combine(*to, other);
        }
        self
    }
}
