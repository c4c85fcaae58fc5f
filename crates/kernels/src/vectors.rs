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

/// Columns where they lie, from the first number on: f32, bf16 or f16, which are made words as they are loaded.
#[derive(Clone, Copy)]
pub(crate) enum ColumnsInPlace<T> {
    /// They lie side by side, and their steps this far apart, in bytes.
    SideBySide(*const T, usize),
    /// Each is dense, and they lie this far apart, in bytes.
    Dense(*const T, usize),
}
