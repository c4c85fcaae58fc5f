//! Instruction sets: which there are, which this machine has, and how a kernel is compiled for each.

use std::fmt;

/// An instruction-set level a kernel can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain code for what every machine of the architecture has (SSE2 on x86-64, NEON on Arm).
    Baseline,
    /// NEON, which every 64-bit Arm has: matrix products and attention keep their sums in its registers.
    Neon,
    /// AVX2 with fused multiply-add and half-precision conversion.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// AVX-512 with dot products of bf16: matrix products of 16-bit operands are computed with them.
    Avx512Bf16,
    /// The same, with matrix registers that multiply blocks of bf16.
    Amx,
}

impl Isa {
    /// The best level this machine has.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Baseline)
    }

    /// Every level this machine has, worst first.
    pub fn available() -> Vec<Isa> {
        let mut levels = vec![Isa::Baseline];
        levels.extend(cfg!(target_arch = "aarch64").then_some(Isa::Neon));
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                levels.push(Isa::Avx2);
                if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                    levels.push(Isa::Avx512);
                    if has!("avx512bf16") {
                        levels.push(Isa::Avx512Bf16);
                        if amx::is_there() {
                            levels.push(Isa::Amx);
                        }
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
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Amx => "amx",
        })
    }
}

/// Whether this process may use matrix registers. The compiler's own detection of them is not stable.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    const BF16_BIT: u32 = 22;
    const TILE_BIT: u32 = 24;

    pub(super) fn is_there() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| has_instructions() && is_permitted())
    }

    fn has_instructions() -> bool {
        let highest = __cpuid_count(0, 0).eax;
        highest >= 7 && [BF16_BIT, TILE_BIT].iter().all(|bit| __cpuid_count(7, 0).edx >> bit & 1 == 1)
    }

    /// Asks the system for the registers' state to be kept, for all threads of the process.
    fn is_permitted() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const REQUEST_PERMISSION: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let answer: i64;
        // SAFETY: the call changes nothing but which state the system keeps for this process, and writes no memory.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => answer, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
                 out("rcx") _, out("r11") _, options(nostack));
        }
        answer == 0
    }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
mod amx {
    pub(super) fn is_there() -> bool {
        false
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
                    $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx => avx512 $(::<$t>)?,
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::Avx2 => avx2 $(::<$t>)?,
                    _ => baseline $(::<$t>)?,
                }
            }
        }
    };
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_come_worst_first_and_are_found_by_name() {
        let levels = Isa::available();
        assert!(levels.is_sorted() && levels[0] == Isa::Baseline && levels.last() == Some(&Isa::detect()));
        assert!(levels.iter().all(|&isa| Isa::parse(&isa.to_string()) == Some(isa)));
        if cfg!(target_arch = "aarch64") {
            assert_eq!(levels, [Isa::Baseline, Isa::Neon]);
        }
    }
}
