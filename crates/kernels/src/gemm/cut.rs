//! How a product is cut into tiles and blocks. No cut changes a bit: every element is summed in the order of the depth.

use super::Sizes;
use super::microkernel::{Microkernel, STEPS_OF_DENSE};
use crate::parts_of;
use std::ops::Range;

/// Of a tile whose rows are read where they lie: the most columns, the most rows, and words of a block of its depth. Its
/// packed columns take half of a second-level cache of 1 MB. Found by measurement on the products of language models;
/// with 1024 rows instead of 512, which share the packing of the columns, they took 0.6 to 1.8 % less time.
const TILE_COLUMNS: usize = 256;
const TILE_ROWS: usize = 1024;
const DEPTH: usize = 512;
/// Of a deeper product: half the columns, and blocks of so many words at most. Sums wait in memory less often: products
/// of 1024 to 3072 steps took 1 to 5 % less time so.
const DEPTH_OF_DEEP: usize = 3 * DEPTH;
/// Of a tile whose rows are packed too: rows and columns together, and words of a block of its depth. Weight gradients of
/// 768 x 3072 and of 320 x 4096 took 2 to 5 % less time than with 640 lines, and as much as with 1024.
const LINES_PACKED: usize = 896;
const DEPTH_PACKED: usize = 256;
/// Tiles are tried that differ by so many lines.
const LINES_STEP: usize = 32;

/// Multiplications in about the time in which a word is packed, and in which one of a row is fetched where it lies. Tiles
/// chosen with them took 20 % less time than halved ones where 320 columns were cut, 10 % less for 788, and as much
/// where both came to the same; weight gradients of 1280 x 320 took 4 to 8 % less than with the most nearly square ones.
const PACKING: usize = 24;
const FETCHING: usize = 8;

/// With at most so many rows, fetching the columns weighs more: the next block's are asked for while this one's are
/// multiplied. A step of GPT-2 124M over 256 tokens took 1 % less time in f32 and 3 to 5 % less in bf16; products of
/// more rows, and rows that are packed, took more.
const ROWS_OF_COLUMNS_AHEAD: usize = 256;

/// With at most so many rows, fetching the columns is much of the work. Tiles are then such that memory is read in long
/// runs, and the next block's columns are asked for while this one's are multiplied. The products of 64 sequences that
/// GPT-2 124M decodes took 13 % less time so in f32 and 11 % in bf16 than with blocks of the first-level cache that nobody
/// asked for (samples on a Zen with AVX-512); those of 16 sequences 20 %.
const FEW_ROWS: usize = 64;
/// With at most so many, columns are not packed at all; 16 rows took 4 to 14 % less time with packed ones.
const ROWS_OF_COLUMNS_IN_PLACE: usize = 8;
/// Words of a block of the depth of columns that are read where they lie: as many runs as the machine foresees at once. One row
/// times 768 x 3072, on a core of a Xeon that reads memory at 17.4 GB/s beside busy others: 17.1 GB/s, 14.8 with half the words.
const WORDS_IN_PLACE: usize = 16;
/// Runs of at most so many bytes take more of them. One row times bf16, shared by two workers of a Zen that reads memory at
/// 33 GB/s, best of 15 in each of two passes beside busy others: 3072 x 768 at 24.7 and 27.1 GB/s, at 18.7 and 21.9 with half
/// the words; 768 x 768 at 14.8 and 25.8, at 19.2 and 21.9 with half, so undecided there. With these words for longer runs
/// 768 x 3072 took more time: 22 GB/s instead of 27 to 28.
const SHORT_RUN: usize = 1024;
const WORDS_OF_SHORT_RUNS: usize = 32;
/// Words of a block of the depth of columns that are packed, and of the packed columns of a block that lie side by side. 16, 32, 48
/// and 64 rows times a transposed 50257 x 768 took 23 to 34 % more time with a quarter of the words.
const WORDS_OF_BLOCK: usize = 256;
const WORDS_PACKED: usize = 32_768;
/// Sums that are kept while a block is added to them, and columns that lie one after another.
const SUMS: usize = 16_384;
const COLUMNS_APART: usize = 32;
/// Of columns one after another that are read where they lie: a tile, and words of a block of the depth, in which sums stay in
/// registers. One row times a transposed 50257 x 768 is read at 31 to 39 GB/s in f32 and 30 to 36 in bf16 on that Zen; packed
/// it was at 10 and at 5.
const COLUMNS_APART_IN_PLACE: usize = 256;
const WORDS_APART_IN_PLACE: usize = 2048;

/// Tiles of a large product for each worker. More tiles share out the work more evenly, and pack more: with eight
/// instead of four for two workers, weight gradients take 4 % longer.
const TILES_PER_WORKER: usize = 2;

/// Multiplications below which a tile is not cut further: some 20 microseconds of work.
const PART_WORK: usize = 1 << 20;
/// Multiplications in about the time that it takes to begin a tile.
const TILE_WORK: usize = PART_WORK / 8;

/// The panels of a level: rows, columns, steps of the depth in a word, and words that come together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    pub rows: usize,
    pub columns: usize,
    pub steps: usize,
    pub words: usize,
    /// Whether columns of any type are multiplied where they lie.
    pub in_place: bool,
}

impl Panel {
    pub fn of<L: Microkernel>() -> Panel {
        Panel { rows: L::ROWS, columns: L::COLUMNS, steps: L::STEPS, words: L::WORDS, in_place: L::IN_PLACE }
    }
}

/// How the operands lie, as far as a cut goes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Whether rows are dense, and whether they can be read where they lie: of whole words, as they are.
    pub rows_are_dense: bool,
    pub rows_in_place: bool,
    /// How columns lie, and whether few rows can be multiplied with them there.
    pub columns: Columns,
    pub columns_in_place: bool,
    /// Whether they are then however many of the few rows there are.
    pub columns_stay: bool,
    /// Bytes of a number of the columns.
    pub column_bytes: usize,
}

/// How columns lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// Side by side.
    Beside,
    /// One after another, or in no order.
    Apart,
}

/// What a cut is shared out over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Products of a batch.
    pub products: usize,
    /// First operands that each is multiplied with, so that its columns are packed once for all of them.
    pub lefts: usize,
    pub workers: usize,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { products: 1, lefts: 1, workers: 1 }
    }
}

/// The cut of a batch of products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    sizes: Sizes,
    pub shares: Shares,
    pub panel: Panel,
    layout: Layout,
    /// Rows and columns of a tile: whole panels, or all of few rows. Tiles at the edge may have fewer.
    pub tile_rows: usize,
    pub tile_columns: usize,
    /// At least one block, so that a product of no depth writes its zeros.
    pub depth_blocks: usize,
    /// Steps of a block, padded as the level wants.
    pub depth_block: usize,
    pub tiles_per_part: usize,
    /// Whether rows are read where they lie.
    pub rows_in_place: bool,
    /// Whether columns are; only those of a panel that is not full are packed then.
    pub columns_in_place: bool,
    /// Whether the next block's columns are asked for while this one's are multiplied.
    pub columns_ahead: bool,
}

impl Cut {
    pub fn new(sizes: Sizes, shares: Shares, panel: Panel, layout: Layout) -> Cut {
        let Sizes { rows, depth, .. } = sizes;
        let few = rows <= FEW_ROWS && layout.rows_are_dense;
        let rows_of_columns_in_place = match layout.columns {
            Columns::Beside => ROWS_OF_COLUMNS_IN_PLACE,
            // They are transposed for every panel of rows.
            Columns::Apart => ROWS_OF_COLUMNS_IN_PLACE.min(panel.rows),
        };
        let columns_stay = few && layout.columns_in_place && layout.columns_stay;
        let columns_in_place = columns_stay || few && layout.columns_in_place && rows <= rows_of_columns_in_place;
        let ((tile_rows, tile_columns), block_words) = match (few, layout.rows_in_place) {
            (true, _) => tile_of_few_rows(sizes, shares, panel, Layout { columns_in_place, columns_stay, ..layout }),
            (false, true) => (tile_in_place(sizes, shares, panel), block_in_place(depth, panel).1),
            (false, false) => (tile_packed(sizes, shares, panel), DEPTH_PACKED),
        };
        let together = if columns_in_place { STEPS_OF_DENSE } else { panel.steps * panel.words };
        let depth_blocks = parts_of(depth, block_words * panel.steps).max(1);
        let tile_rows_of_all = shares.lefts * tile_rows;
        let column_work = if few { tile_rows_of_all.max(PACKING) } else { tile_rows_of_all };
        let tile_work = (column_work * tile_columns).saturating_mul(depth).max(1);
        Cut {
            sizes,
            shares,
            panel,
            layout,
            tile_rows,
            tile_columns,
            depth_blocks,
            depth_block: depth.div_ceil(depth_blocks).max(1).next_multiple_of(together),
            tiles_per_part: (PART_WORK / tile_work).max(1),
            rows_in_place: layout.rows_in_place,
            columns_in_place,
            // The machine foresees f32 side by side itself; 16 bits took 20 to 60 % more time without being asked for.
            columns_ahead: match few {
                true if columns_in_place && !columns_stay => {
                    layout.columns == Columns::Beside && layout.column_bytes < size_of::<f32>()
                }
                true => true,
                false => layout.rows_in_place && shares.lefts * rows <= ROWS_OF_COLUMNS_AHEAD,
            },
        }
    }

    /// The same, shared out otherwise.
    pub fn again(&self, shares: Shares) -> Cut {
        Cut::new(self.sizes, shares, self.panel, self.layout)
    }

    /// The same with columns that stay where they lie.
    pub fn with_columns_in_place(&self, columns_stay: bool) -> Cut {
        Cut::new(self.sizes, self.shares, self.panel, Layout { columns_stay, ..self.layout })
    }

    /// Whether tiles and blocks are the same.
    pub fn is_like(&self, other: &Cut) -> bool {
        let of = |cut: &Cut| (cut.sizes, cut.shares, cut.layout, cut.panel.rows, cut.panel.columns, cut.panel.steps);
        of(self) == of(other)
    }

    /// The same with columns that are packed, however they lie.
    pub fn packing_columns(&self) -> Cut {
        let layout = Layout { columns_in_place: false, ..self.layout };
        Cut::new(self.sizes, self.shares, self.panel, layout)
    }

    /// The number of tiles; none if the result is empty.
    pub fn tiles(&self) -> usize {
        self.shares.products
            * parts_of(self.sizes.rows, self.tile_rows)
            * parts_of(self.sizes.columns, self.tile_columns)
    }

    /// A tile: its product, rows and columns.
    pub fn tile(&self, index: usize) -> (usize, Range<usize>, Range<usize>) {
        let Sizes { rows, columns, .. } = self.sizes;
        let (down, across) = (parts_of(rows, self.tile_rows), parts_of(columns, self.tile_columns));
        let (product, index) = (index / (down * across), index % (down * across));
        let range = |at: usize, size: usize, total: usize| at * size..((at + 1) * size).min(total);
        (product, range(index / across, self.tile_rows, rows), range(index % across, self.tile_columns, columns))
    }

    /// Words of scratch for a tile's columns.
    pub fn column_block(&self) -> usize {
        let columns = if self.columns_in_place { self.panel.columns } else { self.tile_columns };
        columns * self.depth_block / self.panel.steps
    }

    /// Words of scratch for packed rows, in whole cache lines.
    pub fn row_block(&self) -> usize {
        let rows = if self.rows_in_place { 0 } else { self.tile_rows.next_multiple_of(self.panel.rows) };
        (rows * self.depth_block / self.panel.steps).next_multiple_of(16)
    }
}

/// The tile of few rows, and words of a block of its depth.
fn tile_of_few_rows(sizes: Sizes, shares: Shares, panel: Panel, layout: Layout) -> ((usize, usize), usize) {
    let (Sizes { rows, columns, depth }, Shares { products, lefts, workers }) = (sizes, shares);
    let (most_columns, block_words) = match (layout.columns, layout.columns_in_place) {
        (Columns::Beside, true) if !layout.columns_stay => (SUMS / rows.max(1), WORDS_IN_PLACE),
        (Columns::Apart, true) => (COLUMNS_APART_IN_PLACE, WORDS_APART_IN_PLACE),
        (Columns::Beside, _) => (WORDS_PACKED / WORDS_OF_BLOCK, WORDS_OF_BLOCK),
        // Rows that are packed are packed for each tile: more of them take more columns.
        (Columns::Apart, false) => (COLUMNS_APART.max(2 * rows), WORDS_OF_BLOCK),
    };
    let work = [(lefts * rows).max(PACKING), columns, depth].into_iter().fold(1, usize::saturating_mul);
    let pieces = workers.div_ceil(products.max(1)).min(work / PART_WORK).max(1);
    let share = columns.div_ceil(pieces).max(1);
    let tile_columns = even_share(columns, most_columns.min(share), panel.columns);
    let short = layout.columns_in_place && !layout.columns_stay && tile_columns * layout.column_bytes <= SHORT_RUN;
    ((rows.max(1), tile_columns), if short { block_words.max(WORDS_OF_SHORT_RUNS) } else { block_words })
}

/// The most columns of a tile of rows that are read where they lie, and words of a block of its depth.
fn block_in_place(depth: usize, panel: Panel) -> (usize, usize) {
    match depth.div_ceil(panel.steps) > DEPTH {
        true => (TILE_COLUMNS / 2, DEPTH_OF_DEEP),
        false => (TILE_COLUMNS, DEPTH),
    }
}

/// The tile of rows that are read where they lie.
fn tile_in_place(sizes: Sizes, shares: Shares, panel: Panel) -> (usize, usize) {
    let most_columns = block_in_place(sizes.depth, panel).0;
    let across = (panel.columns..=most_columns).step_by(panel.columns);
    let down = std::iter::successors(Some(TILE_ROWS), |rows| (*rows > LINES_STEP).then_some(rows / 2));
    let tiles = across.flat_map(|across| down.clone().map(move |down| (down, across)));
    fastest(tiles, (FETCHING, PACKING), sizes, shares, panel)
}

/// The tile of rows that are packed, as columns are.
fn tile_packed(sizes: Sizes, shares: Shares, panel: Panel) -> (usize, usize) {
    let limits = || (LINES_STEP..LINES_PACKED).step_by(LINES_STEP);
    let tiles = limits().flat_map(|across| limits().map(move |down| (down, across)));
    let tiles = tiles.filter(|(down, across)| down + across <= LINES_PACKED);
    fastest(tiles, (PACKING, PACKING), sizes, shares, panel)
}

/// Of tiles of at most about so many rows and columns, the one with which the last worker is done first. `cost` is what
/// a word of its rows and one of its columns take besides multiplying.
fn fastest(
    limits: impl Iterator<Item = (usize, usize)>,
    cost: (usize, usize),
    sizes: Sizes,
    shares: Shares,
    panel: Panel,
) -> (usize, usize) {
    let (Sizes { rows, columns, depth }, Shares { products, lefts, workers }) = (sizes, shares);
    // Sizes that no machine holds are planned too, before they are refused.
    let work = [lefts, rows, columns, depth].into_iter().fold(products, usize::saturating_mul);
    // With few tiles, a worker that is held up holds up all.
    let enough = if workers == 1 { 1 } else { (workers * TILES_PER_WORKER).min(work / PART_WORK) };
    let time = |&(tile_rows, tile_columns): &(usize, usize)| {
        let tiles = products * parts_of(rows, tile_rows) * parts_of(columns, tile_columns);
        let numbers = lefts * tile_rows * (tile_columns + cost.0) + cost.1 * tile_columns;
        let tile_time = numbers.saturating_mul(depth).saturating_add(TILE_WORK);
        (tiles < enough, tiles.div_ceil(workers).saturating_mul(tile_time))
    };
    limits
        .map(|(down, across)| (even_share(rows, down, panel.rows), even_share(columns, across, panel.columns)))
        .min_by_key(time)
        .unwrap_or((panel.rows, panel.columns))
}

/// The size of a piece, when `total` is cut into the fewest even pieces of at most about `limit`; whole panels.
fn even_share(total: usize, limit: usize, panel: usize) -> usize {
    let pieces = total.div_ceil(limit).max(1);
    total.div_ceil(pieces).next_multiple_of(panel).max(panel)
}
