//! The inner product of convolution: a tile of the result in registers, one rank-one update after another.

/// The fewest lanes of a tile.
pub(super) const LANES: usize = 16;

/// The factors of the rows: that of (depth, row) lies at `depth * depth_step + row * row_step`.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub data: &'a [f32],
    pub depth_step: usize,
    pub row_step: usize,
}

/// The lanes they multiply: those of a depth lie together, from `depth * depth_step` on.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    pub data: &'a [f32],
    pub depth_step: usize,
}

/// `sums[row][lane] += factor(depth, row) * lane(depth)` over all depths, for `ROWS` rows and `WIDTH` lanes. The sum
/// runs in rising depth for every element, so the tile's shape changes no bit of the result.
#[inline(always)]
pub(super) fn multiply_add<const ROWS: usize, const WIDTH: usize>(
    factors: Factors<'_>,
    lanes: Lanes<'_>,
    depth: usize,
    sums: &mut [f32],
    pitch: usize,
) {
    if depth == 0 {
        return;
    }
    let last = depth - 1;
    assert!(last * factors.depth_step + (ROWS - 1) * factors.row_step < factors.data.len(), "factors of a tile");
    assert!(last * lanes.depth_step + WIDTH <= lanes.data.len(), "lanes of a tile");
    let mut tile = [[0.0f32; WIDTH]; ROWS];
    for (row, tile) in tile.iter_mut().enumerate() {
        tile.copy_from_slice(&sums[row * pitch..][..WIDTH]);
    }
    for at in 0..depth {
        // SAFETY: the lanes of the last depth were found to be inside, above, and `at` is at most that depth.
        let lane = unsafe { lanes.data.as_ptr().add(at * lanes.depth_step).cast::<[f32; WIDTH]>().read() };
        for (row, tile) in tile.iter_mut().enumerate() {
            // SAFETY: as above, for the last row of the last depth.
            let factor = unsafe { *factors.data.get_unchecked(at * factors.depth_step + row * factors.row_step) };
            for index in 0..WIDTH {
                tile[index] += factor * lane[index];
            }
        }
    }
    for (row, tile) in tile.iter().enumerate() {
        sums[row * pitch..][..WIDTH].copy_from_slice(tile);
    }
}
