//! What products and attention both do with the vectors of a machine.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{accumulate_avx512, accumulate_avx512_bf16};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{prefetch, transposed, transposed_quarter};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{
    Operands, WordRows, accumulate_avx2, accumulate_in_place_avx2, accumulate_in_place_avx512,
    accumulate_in_place_avx512_bf16, multiply_pairs, rounded_pairs, transposed, transposed_lines_avx,
    transposed_lines_avx512,
};

/// Bytes of a line of the cache.
pub(crate) const CACHE_LINE: usize = 64;

/// Columns where they lie, from the first number on: f32, bf16 or f16, which are made words as they are loaded.
#[derive(Clone, Copy)]
pub(crate) enum ColumnsInPlace<T> {
    /// They lie side by side, and their steps this far apart, in bytes.
    SideBySide(*const T, usize),
    /// Each is dense, and they lie this far apart, in bytes.
    Dense(*const T, usize),
}

/// Asks the first-level cache for what will be read, while something else is computed.
#[inline(always)]
pub(crate) fn ask_for<T>(elements: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of_val(elements)).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: asking for an address does nothing else, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(elements.as_ptr().cast::<i8>().wrapping_add(offset)) };
    }
    #[cfg(target_arch = "aarch64")]
    for offset in (0..size_of_val(elements)).step_by(CACHE_LINE) {
        prefetch(elements.as_ptr().cast::<u8>().wrapping_add(offset));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = elements;
}

/// Asks the second-level cache for what lies at an address, which need not be there: it will not be needed at once.
#[inline(always)]
pub(crate) fn ask_far<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: asking for an address does nothing else, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    prefetch(address.cast());
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
