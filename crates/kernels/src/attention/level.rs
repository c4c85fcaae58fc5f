//! What the instruction sets do differently here: fused multiply-add, and how large a tile their registers hold.

use super::tile::{Product, tiles};

/// An instruction-set level as a type, so that a body is compiled once for each.
pub(super) trait Level {
    /// `a * b + c`, rounded once where the machine can.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;

    /// The product in tiles that fit the registers; added to `target`, or put there.
    ///
    /// # Safety
    /// As for [`tiles`].
    unsafe fn multiply(product: &Product<'_>, target: &mut [f32], stride: usize, add: bool);
}

/// Four lanes to a register, no fused multiply-add (which would be a call into the system's library).
pub(super) struct Baseline;
/// Eight lanes to a register, sixteen registers.
pub(super) struct Avx2;
/// Sixteen lanes to a register, thirty-two registers.
pub(super) struct Avx512;

macro_rules! level {
    ($name:ident: $rows:literal x $lanes:literal, |$a:ident, $b:ident, $c:ident| $multiply_add:expr) => {
        impl Level for $name {
            #[inline(always)]
            fn multiply_add($a: f32, $b: f32, $c: f32) -> f32 {
                $multiply_add
            }

            #[inline(always)]
            unsafe fn multiply(product: &Product<'_>, target: &mut [f32], stride: usize, add: bool) {
                // SAFETY: the caller's promise is that of `tiles`, word for word.
                unsafe { tiles::<$name, $rows, $lanes>(product, target, stride, add) }
            }
        }
    };
}

// Eight registers of sums each: enough to hide the latency of an addition. Larger tiles are not kept in registers.
level!(Baseline: 2 x 16, |a, b, c| a * b + c);
level!(Avx2: 2 x 32, |a, b, c| a.mul_add(b, c));
level!(Avx512: 4 x 32, |a, b, c| a.mul_add(b, c));

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

            /// The version for this instruction set.
            pub(super) fn select<$t: Element>(isa: crate::Isa) -> unsafe fn($($ty),*) {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    crate::Isa::Avx512 | crate::Isa::Avx512Bf16 | crate::Isa::Amx => avx512::<$t>,
                    #[cfg(target_arch = "x86_64")]
                    crate::Isa::Avx2 => avx2::<$t>,
                    _ => baseline::<$t>,
                }
            }
        }
    };
}
pub(super) use for_each_level;
