//! The innermost product in vectors of 512 bits, written out.
//!
//! A core that multiplies two such vectors at a time has time for few other instructions. Every second row's word is
//! therefore read and repeated by the instructions that multiply it, both of them, and the row below's by one before
//! them: neither reading nor decoding holds up the multiplying. A compiler reads each word once, and goes from row to
//! row anew in every step: on a Xeon with busy neighbours on its cores, products in f32 ran 10 to 50 % faster than so,
//! and as fast without them and on Zen 4, which multiplies one vector at a time. Products of f32 take twelve rows, in the
//! compiler's loop: a step then multiplies 24 vectors and reads 14 times, where eight rows multiply 16 and read as often. On Zen 5
//! they took 5 to 10 % less time so, and as much with the twelve rows written out.

use super::x86::{accumulate_rows_avx512, accumulate_rows_avx512_bf16};
use super::{Operands, WordRows};
use std::arch::asm;
use std::arch::x86_64::__m512;

/// The sums of eight rows of two vectors.
type Sums = [[__m512; 2]; 8];

/// The words of two rows, which lie at these places, times the columns: into the sums of either.
#[rustfmt::skip]
macro_rules! two_rows {
    ($multiply:literal, [$upper:expr] $a:literal $b:literal, [$lower:expr] $c:literal $d:literal) => {
        concat!(
            $multiply, " ", $a, ", zmm16, dword ptr [", $upper, "]{{1to16}}\n",
            $multiply, " ", $b, ", zmm17, dword ptr [", $upper, "]{{1to16}}\n",
            "vbroadcastss zmm18, dword ptr [", $lower, "]\n",
            $multiply, " ", $c, ", zmm16, zmm18\n",
            $multiply, " ", $d, ", zmm17, zmm18\n",
        )
    };
}

/// A step: columns are loaded, then multiplied with the words of the rows at these places.
macro_rules! step {
    ($multiply:literal, $($row:expr),*) => {
        step!(@ $multiply, $([$row])*)
    };
    (@ $multiply:literal, [$r0:expr] [$r1:expr] [$r2:expr] [$r3:expr] [$r4:expr] [$r5:expr] [$r6:expr] [$r7:expr]) => {
        concat!(
            "vmovups zmm16, [{columns}]\n",
            "vmovups zmm17, [{columns} + 64]\n",
            "add {columns}, {column_stride}\n",
            two_rows!($multiply, [$r0] "zmm0" "zmm1", [$r1] "zmm2" "zmm3"),
            two_rows!($multiply, [$r2] "zmm4" "zmm5", [$r3] "zmm6" "zmm7"),
            two_rows!($multiply, [$r4] "zmm8" "zmm9", [$r5] "zmm10" "zmm11"),
            two_rows!($multiply, [$r6] "zmm12" "zmm13", [$r7] "zmm14" "zmm15"),
        )
    };
}

/// A step of dense rows, at so many bytes from where they are.
macro_rules! step_of_dense {
    ($multiply:literal, $at:literal) => {
        step!(
            $multiply,
            concat!("{row_0} + ", $at),
            concat!("{row_0} + {stride} + ", $at),
            concat!("{row_2} + ", $at),
            concat!("{row_2} + {stride} + ", $at),
            concat!("{row_4} + ", $at),
            concat!("{row_4} + {stride} + ", $at),
            concat!("{row_6} + ", $at),
            concat!("{row_6} + {stride} + ", $at)
        )
    };
}

/// A loop over steps, with whatever registers besides those of the columns and the sums.
macro_rules! times {
    ($times:expr, $columns:ident, $column_stride:ident, $sums:ident, ($($text:expr,)*), ($($registers:tt)*)) => {
        if $times > 0 {
            let [[s0, s1], [s2, s3], [s4, s5], [s6, s7], [s8, s9], [s10, s11], [s12, s13], [s14, s15]] = &mut $sums;
            // SAFETY: the operands have so many steps, by the caller's promise, and the machine the instructions;
            // nothing is written.
            unsafe {
                asm!(
                    "2:",
                    $($text,)*
                    "dec {times}",
                    "jnz 2b",
                    times = inout(reg) $times => _,
                    columns = inout(reg) $columns,
                    column_stride = in(reg) $column_stride,
                    $($registers)*
                    inout("zmm0") *s0, inout("zmm1") *s1, inout("zmm2") *s2, inout("zmm3") *s3,
                    inout("zmm4") *s4, inout("zmm5") *s5, inout("zmm6") *s6, inout("zmm7") *s7,
                    inout("zmm8") *s8, inout("zmm9") *s9, inout("zmm10") *s10, inout("zmm11") *s11,
                    inout("zmm12") *s12, inout("zmm13") *s13, inout("zmm14") *s14, inout("zmm15") *s15,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _,
                    options(readonly, nostack)
                );
            }
        }
    };
}

/// Steps of dense rows: so many times these, then every row goes on by `$bytes`.
macro_rules! dense {
    ($multiply:literal, [$($at:literal)*] then $bytes:literal, $times:expr,
     $rows:ident, $stride:ident, $columns:ident, $column_stride:ident, $sums:ident) => {
        times!(
            $times, $columns, $column_stride, $sums,
            (
                $(step_of_dense!($multiply, $at),)*
                concat!("add {row_0}, ", $bytes),
                concat!("add {row_2}, ", $bytes),
                concat!("add {row_4}, ", $bytes),
                concat!("add {row_6}, ", $bytes),
            ),
            (
                row_0 = inout(reg) $rows[0], row_2 = inout(reg) $rows[1],
                row_4 = inout(reg) $rows[2], row_6 = inout(reg) $rows[3],
                stride = in(reg) $stride,
            )
        )
    };
}

/// All steps of rows that lie side by side.
macro_rules! side_by_side {
    ($multiply:literal, $times:expr,
     $rows:ident, $stride:ident, $columns:ident, $column_stride:ident, $sums:ident) => {
        times!(
            $times, $columns, $column_stride, $sums,
            (
                step!(
                    $multiply,
                    "{rows}", "{rows} + 4", "{rows} + 8", "{rows} + 12",
                    "{rows} + 16", "{rows} + 20", "{rows} + 24", "{rows} + 28"
                ),
                "add {rows}, {stride}",
            ),
            (rows = inout(reg) $rows, stride = in(reg) $stride,)
        )
    };
}

macro_rules! accumulate {
    ($name:ident, $eight:ident, $fewer:ident, $features:literal, $multiply:literal) => {
        /// The sums, with the products of the operands added: eight rows in the loop above, fewer in a plain one.
        ///
        /// # Safety
        /// All steps of the operands must be there.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn $name<const ROWS: usize>(
            operands: Operands,
            mut sums: [[__m512; 2]; ROWS],
        ) -> [[__m512; 2]; ROWS] {
            match <&mut Sums>::try_from(&mut sums[..]) {
                // SAFETY: the caller's promise.
                Ok(eight) => *eight = unsafe { $eight(operands, *eight) },
                // SAFETY: the caller's promise.
                Err(_) => sums = unsafe { $fewer(operands, sums) },
            }
            sums
        }

        /// The sums of eight rows, with the products of the operands added.
        #[inline]
        #[target_feature(enable = $features)]
        #[allow(unused_assignments)] // Each loop leaves behind where it got to; nobody reads it after the last.
        unsafe fn $eight(operands: Operands, mut sums: Sums) -> Sums {
            let Operands { steps, rows, mut columns, column_stride } = operands;
            match rows {
                WordRows::Dense(first, stride) => {
                    let mut rows: [*const u32; 4] =
                        std::array::from_fn(|pair| first.wrapping_byte_add(2 * pair * stride));
                    dense!($multiply, [0 4 8 12] then 16, steps / 4, rows, stride, columns, column_stride, sums);
                    dense!($multiply, [0] then 4, steps % 4, rows, stride, columns, column_stride, sums);
                }
                WordRows::SideBySide(mut rows, stride) => {
                    side_by_side!($multiply, steps, rows, stride, columns, column_stride, sums);
                }
            }
            sums
        }
    };
}
accumulate!(accumulate_avx512, eight_rows, accumulate_rows_avx512, "avx512f", "vfmadd231ps");
accumulate!(accumulate_avx512_bf16, eight_rows_bf16, accumulate_rows_avx512_bf16, "avx512f,avx512bf16", "vdpbf16ps");
