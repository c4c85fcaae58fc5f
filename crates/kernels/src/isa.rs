//! Instruction sets: which there are, which this machine has, and how a kernel is compiled for each.

use std::fmt;

/// An instruction-set level a kernel can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every machine of the architecture has (SSE2 on x86-64, NEON on Arm).
    Baseline,
    /// AVX2 with fused multiply-add and half-precision conversion.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// AVX-512 with dot products of bf16.
    Avx512Bf16,
}

impl Isa {
    /// The best level this machine has.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Baseline)
    }

    /// Every level this machine has, worst first.
    pub fn available() -> Vec<Isa> {
        let mut levels = vec![Isa::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                levels.push(Isa::Avx2);
                if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                    levels.push(Isa::Avx512);
                    if has!("avx512bf16") {
                        levels.push(Isa::Avx512Bf16);
                    }
                }
            }
        }
        levels
    }

    /// The level of that name, if this machine has it.
    pub fn parse(name: &str) -> Option<Isa> {
        Isa::available().into_iter().find(|isa| isa.to_string() == name)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
        })
    }
}

/// Compiles one function body for every instruction set and makes a module of the function's name with
/// `select(isa)`, which gives the version to call.
///
/// The body sees everything in the enclosing module. Helpers it calls must be `#[inline(always)]`, or they are
/// compiled for the baseline only. Calling the selected version is sound on a machine that has the level, which
/// is so for every [`Isa`] that [`Isa::available`] gave.
macro_rules! multiversion {
    ($(#[$doc:meta])* fn $name:ident $(<$t:ident : $bound:path>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[inline(always)]
            unsafe fn body $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? $body

            unsafe fn baseline $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise is the body's, word for word.
                unsafe { body$(::<$t>)?($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2 $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body$(::<$t>)?($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512 $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above; the machine has the features, since `select` was given the level.
                unsafe { body$(::<$t>)?($($arg),*) }
            }

            /// The version for this instruction set.
            #[allow(clippy::type_complexity)]
            pub(super) fn select $(<$t: $bound>)? (isa: $crate::Isa) -> unsafe fn($($ty),*) $(-> $ret)? {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 => avx512 $(::<$t>)?,
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx2 => avx2 $(::<$t>)?,
                    _ => baseline $(::<$t>)?,
                }
            }
        }
    };
}
pub(crate) use multiversion;
