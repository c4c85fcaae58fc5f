//! Inner products in the matrix registers of AMX: 16 rows of 64 bytes, multiplied as pairs of bf16 into f32.
//!
//! The compiler has no stable names for these instructions, so they are written out.

use super::{Microkernel, Panels, Results, Rows, Start, TRANSPOSE_SIDE, Word};
use std::arch::asm;

/// Four of the eight matrix registers accumulate 32 rows of 32 columns.
///
/// The processor sums the 32 steps of a register in an order of its own: a sum keeps its bits only where the depth is
/// cut at multiples of 32.
pub struct Amx;

/// Rows of a matrix register, and words of its rows.
const SIDE: usize = 16;

/// What the registers are set up as, in the layout the processor wants.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The registers that hold the upper rows of a panel, of the results and of the first operand; and those of the lower.
const UPPER: [usize; 3] = [0, 1, 4];
const LOWER: [usize; 3] = [2, 3, 5];

/// Eight full registers, but for those of the rows that a panel of so many does not have.
const fn shapes_for(rows: usize) -> Shapes {
    let mut shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let mut register = 0;
    while register < 8 {
        shapes.row_bytes[register] = 64;
        shapes.rows[register] = SIDE as u8;
        register += 1;
    }
    let (registers, rows) = if rows > SIDE { (LOWER, rows - SIDE) } else { (UPPER, rows) };
    let mut index = 0;
    while index < registers.len() {
        shapes.rows[registers[index]] = rows as u8;
        index += 1;
    }
    shapes
}

const EIGHT_FULL: Shapes = shapes_for(2 * SIDE);

impl Amx {
    /// Runs `work` with this thread's matrix registers set up.
    ///
    /// # Safety
    /// The machine must have the level.
    #[inline(always)]
    pub unsafe fn with_registers(work: impl FnOnce()) {
        // SAFETY: the machine has the instruction, by the caller's promise, and the shapes are valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &EIGHT_FULL, options(nostack)) };
        work();
        // SAFETY: as above; nothing is kept in the registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Turns of [`multiply_in_matrix_registers`]: about half a millisecond.
const TURNS: usize = 1 << 14;

/// Multiplications and additions of [`multiply_in_matrix_registers`].
pub const OPERATIONS_IN_MATRIX_REGISTERS: u64 = (TURNS * 4 * 2 * SIDE * SIDE * 2 * SIDE) as u64;

/// Multiplies what is in the registers, again and again, and nothing else: the machine's limit.
///
/// # Safety
/// The machine must have the level.
pub unsafe fn multiply_in_matrix_registers() {
    // SAFETY: the machine has the level, by the caller's promise; the instructions touch no memory.
    unsafe {
        Amx::with_registers(|| {
            for _ in 0..TURNS {
                asm!(
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem)
                );
            }
        });
    }
}

impl Microkernel for Amx {
    const ROWS: usize = 2 * SIDE;
    const COLUMNS: usize = 2 * SIDE;
    const STEPS: usize = 2;
    const WORDS: usize = SIDE;
    const LINE_MAJOR: bool = true;
    const LINES: usize = SIDE;

    #[inline(always)]
    unsafe fn shape(rows: usize) {
        debug_assert!((1..=Self::ROWS).contains(&rows));
        // SAFETY: the machine has the instruction, by the caller's promise, and the shapes are valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes_for(rows), options(nostack)) };
    }

    #[inline(always)]
    unsafe fn multiply(panels: Panels, results: Results, rows: usize) {
        // SAFETY: the caller's promise, word for word.
        unsafe { if rows > SIDE { multiply_all(panels, results) } else { multiply_upper(panels, results) } }
    }

    #[inline(always)]
    unsafe fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
        // SAFETY: the caller's promise; every machine with AMX has AVX.
        unsafe { super::Avx512::transpose(lines) }
    }

    #[inline(always)]
    unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize) {
        // SAFETY: the caller's promise; every machine with AMX has AVX-512.
        unsafe { super::Avx512::transpose_words(from, line_bytes, to, to_stride) }
    }

    #[inline(always)]
    unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
        // SAFETY: the caller's promise; every machine with AMX rounds to bf16.
        unsafe { super::Avx512Bf16::pairs(steps, next) }
    }

    #[inline(always)]
    unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
        // SAFETY: the caller's promise; every machine with AMX rounds to bf16.
        unsafe { super::Avx512Bf16::line(numbers) }
    }

    #[inline(always)]
    fn prefetch_far(address: *const u8) {
        super::Avx512::prefetch_far(address);
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        super::Avx512::prefetch(address);
    }
}

/// The addresses that a product starts from: rows, how far apart they lie, and what sums start from.
#[inline(always)]
fn addresses(panels: Panels, results: Results) -> (*const Word, usize, *const f32, usize) {
    let (a, row_bytes) = match panels.a {
        Rows::Packed(first) => (first, panels.depth * size_of::<Word>()),
        Rows::InPlace(first, row_bytes) => (first, row_bytes),
    };
    let (from, from_stride) = match results.start {
        Start::Zero => (std::ptr::null(), 0),
        Start::At(first, stride) => (first, stride * size_of::<f32>()),
    };
    (a, row_bytes, from, from_stride)
}

/// More than [`SIDE`] rows.
#[inline(always)]
unsafe fn multiply_all(panels: Panels, results: Results) {
    let (a, row_bytes, from, from_stride) = addresses(panels, results);
    // SAFETY: the panels hold `depth` words a line, which is a multiple of `WORDS`, and there is room for whole
    // panels of results: the caller's promise. The registers have the shape for the rows.
    unsafe {
        asm!(
            "test {from}, {from}",
            "jz 2f",
            "tileloadd tmm0, [{from} + {from_stride}]",
            "tileloadd tmm1, [{from} + {from_stride} + 64]",
            "lea {from}, [{from} + 8 * {from_stride}]",
            "lea {from}, [{from} + 8 * {from_stride}]",
            "tileloadd tmm2, [{from} + {from_stride}]",
            "tileloadd tmm3, [{from} + {from_stride} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "test {steps}, {steps}",
            "jz 5f",
            "4:",
            "tileloadd tmm4, [{a} + {a_stride}]",
            "tileloadd tmm6, [{b} + {b_stride}]",
            "tileloadd tmm7, [{b} + {b_stride} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a_below} + {a_stride}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 64",
            "add {a_below}, 64",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 4b",
            "5:",
            "tilestored [{to} + {to_stride}], tmm0",
            "tilestored [{to} + {to_stride} + 64], tmm1",
            "lea {to}, [{to} + 8 * {to_stride}]",
            "lea {to}, [{to} + 8 * {to_stride}]",
            "tilestored [{to} + {to_stride}], tmm2",
            "tilestored [{to} + {to_stride} + 64], tmm3",
            from = inout(reg) from => _,
            from_stride = in(reg) from_stride,
            to = inout(reg) results.first => _,
            to_stride = in(reg) results.stride * size_of::<f32>(),
            steps = inout(reg) panels.depth / SIDE => _,
            a = inout(reg) a => _,
            a_below = inout(reg) a.wrapping_byte_add(SIDE * row_bytes) => _,
            a_stride = in(reg) row_bytes,
            b = inout(reg) panels.b => _,
            b_stride = in(reg) panels.b_stride * size_of::<Word>(),
            b_step = in(reg) SIDE * panels.b_stride * size_of::<Word>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}

/// At most [`SIDE`] rows.
#[inline(always)]
unsafe fn multiply_upper(panels: Panels, results: Results) {
    let (a, row_bytes, from, from_stride) = addresses(panels, results);
    // SAFETY: as for more rows.
    unsafe {
        asm!(
            "test {from}, {from}",
            "jz 2f",
            "tileloadd tmm0, [{from} + {from_stride}]",
            "tileloadd tmm1, [{from} + {from_stride} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "3:",
            "test {steps}, {steps}",
            "jz 5f",
            "4:",
            "tileloadd tmm4, [{a} + {a_stride}]",
            "tileloadd tmm6, [{b} + {b_stride}]",
            "tileloadd tmm7, [{b} + {b_stride} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, 64",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 4b",
            "5:",
            "tilestored [{to} + {to_stride}], tmm0",
            "tilestored [{to} + {to_stride} + 64], tmm1",
            from = in(reg) from,
            from_stride = in(reg) from_stride,
            to = in(reg) results.first,
            to_stride = in(reg) results.stride * size_of::<f32>(),
            steps = inout(reg) panels.depth / SIDE => _,
            a = inout(reg) a => _,
            a_stride = in(reg) row_bytes,
            b = inout(reg) panels.b => _,
            b_stride = in(reg) panels.b_stride * size_of::<Word>(),
            b_step = in(reg) SIDE * panels.b_stride * size_of::<Word>(),
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}
