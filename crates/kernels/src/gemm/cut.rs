//! How a product is cut into tiles and blocks: by its sizes alone.

use super::Sizes;
use crate::parts_of;
use std::ops::Range;

/// Depth of a block: a row panel of it lies in a first-level cache of 32 KB with room to spare.
const DEPTH: usize = 256;

/// Panels of rows that are packed together: where rows lie side by side, a panel alone would use a part of each
/// cache line.
pub(super) const ROW_PANELS: usize = 4;

/// Rows and columns of the largest tile: its columns, packed, take a quarter of a second-level cache of 1 MB.
const TILE_ROWS: usize = 256;
const TILE_COLUMNS: usize = 256;

/// Tiles that a large product is cut into at least: two for each of 16 threads.
const TILES: usize = 32;

/// Multiplications below which a tile is not cut further: some 20 microseconds of work.
const PART_WORK: usize = 1 << 20;

/// The cut of a batch of products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    sizes: Sizes,
    products: usize,
    /// Rows and columns of a tile, whole panels; those at the edge may have fewer.
    pub tile_rows: usize,
    pub tile_columns: usize,
    panel_rows: usize,
    /// At least one block, so that a product of no depth writes its zeros.
    pub depth_blocks: usize,
    pub depth_block: usize,
    pub tiles_per_part: usize,
}

impl Cut {
    pub fn new(sizes: Sizes, products: usize, (panel_rows, panel_columns): (usize, usize)) -> Cut {
        let Sizes { rows, columns, depth } = sizes;
        let mut tile_rows = even_share(rows, TILE_ROWS, panel_rows);
        let mut tile_columns = even_share(columns, TILE_COLUMNS, panel_columns);
        let tiles = |tile_rows, tile_columns| products * parts_of(rows, tile_rows) * parts_of(columns, tile_columns);
        while tiles(tile_rows, tile_columns) < TILES && tile_rows * tile_columns * depth >= 2 * PART_WORK {
            // Near-square tiles are packed the least for what they compute.
            if tile_rows > tile_columns / 2 && tile_rows > panel_rows {
                tile_rows = even_share(rows, tile_rows.div_ceil(2), panel_rows);
            } else if tile_columns > panel_columns {
                tile_columns = even_share(columns, tile_columns.div_ceil(2), panel_columns);
            } else {
                break;
            }
        }
        let depth_blocks = parts_of(depth, DEPTH).max(1);
        let tile_work = (tile_rows * tile_columns * depth).max(1);
        Cut {
            sizes,
            products,
            tile_rows,
            tile_columns,
            panel_rows,
            depth_blocks,
            depth_block: depth.div_ceil(depth_blocks).max(1),
            tiles_per_part: (PART_WORK / tile_work).max(1),
        }
    }

    /// The number of tiles; none if the result is empty.
    pub fn tiles(&self) -> usize {
        self.products * parts_of(self.sizes.rows, self.tile_rows) * parts_of(self.sizes.columns, self.tile_columns)
    }

    /// A tile: its product, rows and columns.
    pub fn tile(&self, index: usize) -> (usize, Range<usize>, Range<usize>) {
        let Sizes { rows, columns, .. } = self.sizes;
        let (down, across) = (parts_of(rows, self.tile_rows), parts_of(columns, self.tile_columns));
        let (product, index) = (index / (down * across), index % (down * across));
        let range = |at: usize, size: usize, total: usize| at * size..((at + 1) * size).min(total);
        (product, range(index / across, self.tile_rows, rows), range(index % across, self.tile_columns, columns))
    }

    /// Numbers of scratch for a tile's columns.
    pub fn column_block(&self) -> usize {
        self.tile_columns * self.depth_block
    }

    /// Numbers of scratch for the panels of rows that are packed together, in whole cache lines.
    pub fn row_block(&self) -> usize {
        (self.panel_rows * ROW_PANELS * self.depth_block).next_multiple_of(16)
    }
}

/// The size of a piece, when `total` is cut into the fewest even pieces of at most about `limit`; whole panels.
fn even_share(total: usize, limit: usize, panel: usize) -> usize {
    let pieces = total.div_ceil(limit).max(1);
    total.div_ceil(pieces).next_multiple_of(panel).max(panel)
}
