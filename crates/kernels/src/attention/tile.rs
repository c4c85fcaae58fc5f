//! Products of small matrices that lie in a worker's scratch.
//!
//! Operands are made of words of 32 bits: an f32, or at a level that multiplies pairs two bf16 that follow one
//! another along the sum. Results are f32.

use super::level::Level;
use std::ops::Range;

/// Rows of a product come in multiples of this; what is beyond the matrix is computed and not used.
pub(super) const ROW_MULTIPLE: usize = 8;
/// Columns of a product start at and come in multiples of this.
pub(super) const COLUMN_MULTIPLE: usize = 16;
/// Rows that have the same part of a triangular product.
pub(super) const BAND: usize = 16;

/// A part of `left * right`, with `left` by broadcast and `right` by vectors along its rows.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// The left matrix.
    pub left: &'a [f32],
    /// How far apart its rows lie.
    pub left_row: usize,
    /// How far apart its steps lie: 1, or the length of a row if the matrix is held transposed.
    pub left_step: usize,
    /// The right matrix, its rows dense.
    pub right: &'a [f32],
    /// How far apart its rows, the steps of the sum, lie.
    pub right_step: usize,
}

/// Which rows and columns of a product are computed, and which steps of the sum.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// Rows of the result, up to a multiple of [`ROW_MULTIPLE`].
    pub rows: Range<usize>,
    /// Words that are multiplied for each element.
    pub steps: Range<usize>,
    /// Columns of the result, from and to multiples of [`COLUMN_MULTIPLE`].
    pub columns: Range<usize>,
}

impl Product<'_> {
    /// Puts this part of the product into `target`, whose rows lie `stride` apart.
    #[inline(always)]
    pub fn put<L: Level>(&self, extent: Extent, target: &mut [f32], stride: usize) {
        // SAFETY: only of a level that the machine has is there a kernel, and bounds are checked.
        unsafe { self.multiply::<L>(extent, target, stride, false) }
    }

    /// Adds this part of the product to `target`, whose rows lie `stride` apart.
    #[inline(always)]
    pub fn add<L: Level>(&self, extent: Extent, target: &mut [f32], stride: usize) {
        // SAFETY: as above.
        unsafe { self.multiply::<L>(extent, target, stride, true) }
    }

    /// Columns outermost, so that a strip of the right matrix stays close.
    ///
    /// # Safety
    /// The machine must have the level.
    #[inline(always)]
    unsafe fn multiply<L: Level>(&self, extent: Extent, target: &mut [f32], stride: usize, add: bool) {
        let Extent { rows, steps, columns } = extent;
        let end = rows.start + rows.len().next_multiple_of(ROW_MULTIPLE);
        assert!(columns.start.is_multiple_of(COLUMN_MULTIPLE) && columns.end.is_multiple_of(COLUMN_MULTIPLE));
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        // The furthest element of each matrix lies inside its slice.
        assert!((end - 1) * stride + columns.end <= target.len());
        if !steps.is_empty() {
            assert!((end - 1) * self.left_row + (steps.end - 1) * self.left_step < self.left.len());
            assert!((steps.end - 1) * self.right_step + columns.end <= self.right.len());
        }
        let mut column = columns.start;
        while column < columns.end {
            let is_wide = column + L::COLUMNS <= columns.end;
            for row in (rows.start..end).step_by(L::ROWS) {
                let tile = Tile {
                    left: self.left.as_ptr().wrapping_add(row * self.left_row + steps.start * self.left_step),
                    left_row: self.left_row,
                    left_step: self.left_step,
                    right: self.right.as_ptr().wrapping_add(steps.start * self.right_step + column),
                    right_step: self.right_step,
                    steps: steps.len(),
                    target: target.as_mut_ptr().wrapping_add(row * stride + column),
                    target_row: stride,
                    add,
                };
                // SAFETY: the tile lies inside the extent, whose bounds were checked; the machine has the level.
                unsafe { if is_wide { L::wide_tile(tile) } else { L::narrow_tile(tile) } }
            }
            column += if is_wide { L::COLUMNS } else { COLUMN_MULTIPLE };
        }
    }
}

/// Where a tile of a product lies: so many rows and columns as the level holds in registers.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The left matrix at the tile's first row and step.
    pub left: *const f32,
    /// How far apart its rows lie.
    pub left_row: usize,
    /// How far apart its steps lie.
    pub left_step: usize,
    /// The right matrix at the tile's first step and column.
    pub right: *const f32,
    /// How far apart its steps lie.
    pub right_step: usize,
    /// How many words are multiplied for each element.
    pub steps: usize,
    /// The first element of the result.
    pub target: *mut f32,
    /// How far apart the result's rows lie.
    pub target_row: usize,
    /// Whether to add to what is there, or to replace it.
    pub add: bool,
}
