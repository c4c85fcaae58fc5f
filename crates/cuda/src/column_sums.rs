//! Sums over the rows of a matrix, in an order that its sizes fix.

use crate::{Element, Launch, Operand, Source, sources};

/// Columns that a warp has, times the elements that a lane reads at once, are a block's columns.
const LANES: usize = 32;
/// Warps of a block, each with rows of its own.
const WARPS: usize = 8;
/// Rows that one block sums, at least.
const FEWEST_ROWS: usize = 64;
/// Parts that the rows are cut into, at most: with a few hundred columns to a block, enough to fill a GPU.
const MOST_PARTS: usize = 128;

fn parts(rows: usize) -> usize {
    rows.div_ceil(FEWEST_ROWS).clamp(1, MOST_PARTS)
}

/// Scratch that the sums of a matrix take, in bytes.
pub fn column_sums_scratch(x: &Operand) -> usize {
    parts(x.shape[0]) * x.shape[1] * size_of::<f32>()
}

/// The sums of the columns of `x` [rows, columns] in `y` [columns], in f32: sums over parts of the rows, then over the
/// parts; after what is there, if they accumulate.
pub fn column_sums(x: &Operand, y: &Operand, scratch: u64, accumulates: bool) -> [Launch; 2] {
    let (rows, columns) = (x.shape[0], x.shape[1]);
    // Rows begin anywhere that a multiple of their columns is.
    let widest = 1 << columns.trailing_zeros().min(3);
    let (parts, width) = (parts(rows), x.vector(widest.min(16 / x.element.size())));
    let partial =
        Operand { element: Element::F32, shape: vec![parts, columns], strides: vec![columns, 1], address: scratch };
    let sizes = |source: Source| source.size("ROWS", rows).size("COLUMNS", columns).constant("PARTS", parts);
    let first = sizes(Source::new("column_sums_of_parts", sources::COLUMN_SUMS).operand("x", x).operand("y", &partial));
    let first = first.constant("WIDTH", width).constant("WARPS", WARPS).size("PART_ROWS", rows.div_ceil(parts));
    let first = first.constant("OF_PARTS", 1);
    let second =
        sizes(Source::new("column_sums_over_parts", sources::COLUMN_SUMS).operand("x", &partial).operand("y", y));
    let second = second.constant("ACCUMULATES", accumulates as u8).constant("OF_PARTS", 0);
    [
        first.launch_on([columns.div_ceil(LANES * width), parts, 1], LANES * WARPS, 0),
        second.launch(columns.div_ceil(256), 256),
    ]
}
