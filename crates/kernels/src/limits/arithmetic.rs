//! Arithmetic in registers alone: chains of multiplications and additions, each waiting only for itself.

#[cfg(target_arch = "x86_64")]
use crate::gemm;
use crate::{Isa, Job};
use std::hint::black_box;

/// Chains that run side by side: enough to hide the latency of an instruction (4 turns on two units, on Arm on up to
/// four), few enough for 16 registers, on Arm 32, with the factor.
const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
/// Turns of each part: about half a millisecond.
const TURNS: usize = 1 << 17;
/// Parts for each thread, so that one which is held up leaves work to the others.
const PARTS_PER_THREAD: usize = 8;
/// Each number becomes `number * FACTOR + FACTOR`, which comes to rest at 1, unless it is said otherwise.
const FACTOR: f32 = 0.5;

/// The same arithmetic many times over.
pub(super) struct Arithmetic {
    run: unsafe fn(),
    operations_per_part: u64,
    parts: usize,
}

impl Arithmetic {
    /// Multiplications and additions of f32.
    pub fn f32(isa: Isa, threads: usize) -> Arithmetic {
        let (run, lanes): (unsafe fn(), usize) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (x86::f32_avx2, 8),
            #[cfg(target_arch = "x86_64")]
            isa if isa >= Isa::Avx512 => (x86::f32_avx512, 16),
            _ => (f32_portable, PORTABLE_LANES),
        };
        Arithmetic::new(run, 2 * lanes, threads)
    }

    /// Products of bf16 by the best instruction for them: only on a machine that [has one](has_bf16).
    pub fn bf16(threads: usize) -> Arithmetic {
        let isa = Isa::detect();
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx {
            let operations_per_part = gemm::OPERATIONS_IN_MATRIX_REGISTERS;
            let parts = threads * PARTS_PER_THREAD;
            return Arithmetic { run: gemm::multiply_in_matrix_registers, operations_per_part, parts };
        } else if isa == Isa::Avx512Bf16 {
            return Arithmetic::new(x86::bf16_avx512, 4 * 16, threads);
        }
        panic!("{isa} has no products of bf16 for {threads} thread(s)");
    }

    fn new(run: unsafe fn(), operations_per_instruction: usize, threads: usize) -> Arithmetic {
        let operations_per_part = (CHAINS * TURNS * operations_per_instruction) as u64;
        Arithmetic { run, operations_per_part, parts: threads * PARTS_PER_THREAD }
    }

    /// What all parts do together; a multiplication and an addition are two.
    pub fn operations(&self) -> u64 {
        self.operations_per_part * self.parts as u64
    }
}

impl Job for Arithmetic {
    fn parts(&self) -> usize {
        self.parts
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, _part: usize, _scratch: &mut [u8]) {
        // SAFETY: the machine has the level, since whoever made this checked or was given it.
        unsafe { (self.run)() }
    }
}

/// Whether the machine multiplies bf16.
pub(super) fn has_bf16() -> bool {
    matches!(Isa::detect(), Isa::Avx512Bf16 | Isa::Amx)
}

/// Numbers in a register that every machine has.
const PORTABLE_LANES: usize = 4;

/// Plain loops that every machine runs.
fn f32_portable() {
    // An emulated fused operation would be far slower than the two that it stands for. Where there is one, the numbers
    // are what it adds to, since on Arm any other form needs copies of registers; they only grow, which costs no time.
    let is_fused = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
    let step = |x: f32, factor: f32| if is_fused { factor.mul_add(factor, x) } else { x * factor + factor };
    let factor = black_box(FACTOR);
    let mut chains = [[0.0f32; PORTABLE_LANES]; CHAINS];
    for _ in 0..TURNS {
        for chain in &mut chains {
            *chain = chain.map(|x| step(x, factor));
        }
    }
    black_box(chains);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, FACTOR, TURNS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    macro_rules! chains {
        ($(#[$about:meta])* $name:ident with $features:literal: $zero:ident, $factor:expr, $step:expr) => {
            $(#[$about])*
            #[target_feature(enable = $features)]
            pub unsafe fn $name() {
                let factor = $factor;
                let mut chains = [$zero(); CHAINS];
                for _ in 0..TURNS {
                    for chain in &mut chains {
                        *chain = $step(*chain, factor);
                    }
                }
                black_box(chains);
            }
        };
    }

    chains! {
        /// Eight numbers an instruction.
        f32_avx2 with "avx2,fma":
        _mm256_setzero_ps, _mm256_set1_ps(black_box(FACTOR)), |chain, factor| _mm256_fmadd_ps(chain, factor, factor)
    }
    chains! {
        /// Sixteen numbers an instruction.
        f32_avx512 with "avx512f":
        _mm512_setzero_ps, _mm512_set1_ps(black_box(FACTOR)), |chain, factor| _mm512_fmadd_ps(chain, factor, factor)
    }
    chains! {
        /// Sixteen sums of two products an instruction. The sums only grow, which costs no time.
        bf16_avx512 with "avx512f,avx512bf16":
        _mm512_setzero_ps,
        {
            let factors = _mm512_set1_ps(black_box(FACTOR));
            _mm512_cvtne2ps_pbh(factors, factors)
        },
        |chain, factors| _mm512_dpbf16_ps(chain, factors, factors)
    }
}
