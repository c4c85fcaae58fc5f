//! Products of small f32 matrices that lie in a worker's scratch.

use super::level::Level;

/// Rows of a product's target come in multiples of this; what is beyond the matrix is computed and not used.
pub(super) const ROW_MULTIPLE: usize = 4;
/// Columns of a product's target come in multiples of this.
pub(super) const COLUMN_MULTIPLE: usize = 16;

/// `left * right`, with `left` by broadcast and `right` by vectors along its rows.
pub(super) struct Product<'a> {
    /// The left matrix.
    pub left: &'a [f32],
    /// How far apart its rows lie.
    pub left_row: usize,
    /// How far apart its columns lie: 1, or the length of a row if the matrix is held transposed.
    pub left_column: usize,
    /// The right matrix, its rows dense.
    pub right: &'a [f32],
    /// How far apart its rows lie.
    pub right_row: usize,
    /// Rows of the result, a multiple of [`ROW_MULTIPLE`].
    pub rows: usize,
    /// Products in each sum.
    pub depth: usize,
    /// Columns of the result, a multiple of [`COLUMN_MULTIPLE`].
    pub columns: usize,
}

impl Product<'_> {
    /// Puts the product into `target`, whose rows lie `stride` apart.
    #[inline(always)]
    pub fn put<L: Level>(&self, target: &mut [f32], stride: usize) {
        self.check(target, stride);
        // SAFETY: checked above.
        unsafe { L::multiply(self, target, stride, false) }
    }

    /// Adds the product to `target`, whose rows lie `stride` apart.
    #[inline(always)]
    pub fn add<L: Level>(&self, target: &mut [f32], stride: usize) {
        self.check(target, stride);
        // SAFETY: checked above.
        unsafe { L::multiply(self, target, stride, true) }
    }

    /// Every element that the product touches lies inside its slice.
    #[inline(always)]
    fn check(&self, target: &[f32], stride: usize) {
        let Product { rows, depth, columns, .. } = *self;
        assert!(rows.is_multiple_of(ROW_MULTIPLE) && columns.is_multiple_of(COLUMN_MULTIPLE));
        if rows == 0 || columns == 0 {
            return;
        }
        assert!((rows - 1) * stride + columns <= target.len());
        if depth > 0 {
            assert!((rows - 1) * self.left_row + (depth - 1) * self.left_column < self.left.len());
            assert!((depth - 1) * self.right_row + columns <= self.right.len());
        }
    }
}

/// A product in tiles of `ROWS` by `LANES`, columns outermost, so that a strip of the right matrix stays close.
///
/// # Safety
/// The product must have passed [`Product::check`].
#[inline(always)]
pub(super) unsafe fn tiles<L: Level, const ROWS: usize, const LANES: usize>(
    product: &Product<'_>,
    target: &mut [f32],
    stride: usize,
    add: bool,
) {
    const { assert!(ROW_MULTIPLE.is_multiple_of(ROWS)) };
    let mut column = 0;
    while column + LANES <= product.columns {
        for row in (0..product.rows).step_by(ROWS) {
            // SAFETY: the tile lies inside the target, by the loops' bounds.
            unsafe { tile::<L, ROWS, LANES>(product, target, stride, row, column, add) }
        }
        column += LANES;
    }
    // Only where LANES is larger than the columns' multiple.
    while column < product.columns {
        for row in (0..product.rows).step_by(ROWS) {
            // SAFETY: as above.
            unsafe { tile::<L, ROWS, COLUMN_MULTIPLE>(product, target, stride, row, column, add) }
        }
        column += COLUMN_MULTIPLE;
    }
}

/// One tile, held in registers while the sums run.
///
/// # Safety
/// The tile must lie inside a product that has passed [`Product::check`].
#[inline(always)]
unsafe fn tile<L: Level, const ROWS: usize, const LANES: usize>(
    product: &Product<'_>,
    target: &mut [f32],
    stride: usize,
    row: usize,
    column: usize,
    add: bool,
) {
    let mut sums = [[0.0f32; LANES]; ROWS];
    let first = row * stride + column;
    // SAFETY: `check` has shown that the last row and column of either matrix and of the target lie inside their
    // slices, and the tile's are none later; an array of f32 is aligned as an f32 is.
    unsafe {
        let start = target.as_mut_ptr().add(first);
        if add {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = *start.add(index * stride).cast::<[f32; LANES]>();
            }
        }
        let left = product.left.as_ptr().add(row * product.left_row);
        let right = product.right.as_ptr().add(column);
        for step in 0..product.depth {
            let vector = *right.add(step * product.right_row).cast::<[f32; LANES]>();
            for (index, sum) in sums.iter_mut().enumerate() {
                let scalar = *left.add(index * product.left_row + step * product.left_column);
                for lane in 0..LANES {
                    sum[lane] = L::multiply_add(scalar, vector[lane], sum[lane]);
                }
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            *start.add(index * stride).cast::<[f32; LANES]>() = *sum;
        }
    }
}
