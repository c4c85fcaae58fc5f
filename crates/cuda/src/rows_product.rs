//! Products of few rows, as decoding has them: their time is that of reading the second operand once, and of beginning and
//! ending, both of which a kernel of our own shares out over the device by the sizes.

use crate::operand::widest;
use crate::{Element, Gelu, Launch, MULTIPROCESSORS, Matrix, Product, Source, sources};

/// More rows are the library's, unless it is slow for the number of columns: where that is no multiple of eight.
const MOST_ROWS: usize = 64;
const MOST_ROWS_OF_ODD_COLUMNS: usize = 256;
/// Threads of a block, and what it takes of the depth at a time.
const THREADS: usize = 128;
const STEP: usize = 64;
/// Numbers of a tile at most: what the registers of a block hold.
const TILE: usize = 64 * 192;
/// Rows of a tile times the blocks that share it, at most: eight blocks of more rows seldom find room side by side.
const SHARED_ROWS: usize = 256;
/// Bytes of shared memory that leave room for two blocks on a multiprocessor.
const SHARED: usize = 112 << 10;

/// How a product is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharing {
    /// Rows and columns of a tile.
    rows: usize,
    columns: usize,
    /// Blocks that have the depth of a tile between them.
    shares: usize,
}

/// The kernel for a product, if it is of few rows and lies as the kernel reads it. Its bias may be of any type.
pub fn rows_product(product: &Product) -> Option<Launch> {
    let &Product { rows, columns, depth, a, b, d, bias, added, gelu, .. } = product;
    if !is_taken(product) {
        return None;
    }
    let sharing = Sharing::of(rows, columns, depth);
    let vector = if [Some(d), added].iter().flatten().all(|matrix| is_whole(matrix, columns, 4)) { 4 } else { 1 };
    let source = Source::new("rows_product", sources::ROWS_PRODUCT).element("number_t", a.element);
    let source = source.element("d_t", d.element).element("bias_t", bias.map_or(d.element, |bias| bias.element));
    let addresses =
        [a.address, b.address, d.address, bias.map_or(0, |bias| bias.address), added.map_or(0, |c| c.address)];
    let source = addresses.into_iter().fold(source, Source::address);
    let reach = [(rows, a), (if b.transposed { columns } else { depth }, b), (rows, d)];
    let source = source.size("REACH", reach.iter().map(|(lines, matrix)| lines * matrix.stride).max().unwrap_or(0));
    let source = source.early(b.address, reach[1].0 * b.stride * b.element.size());
    let source = [
        ("ROWS", rows),
        ("COLUMNS", columns),
        ("DEPTH", depth),
        ("TILE_ROWS", sharing.rows),
        ("TILE_COLUMNS", sharing.columns),
        ("SHARES", sharing.shares),
        ("STAGES", sharing.stages(depth, b.transposed)),
        ("VECTOR", vector),
        ("A_STRIDE", a.stride),
        ("B_STRIDE", b.stride),
        ("D_STRIDE", d.stride),
        ("ADDED_STRIDE", added.map_or(0, |added| added.stride)),
        ("B_TRANSPOSED", b.transposed as usize),
        ("HAS_BIAS", bias.is_some() as usize),
        ("ADDS", added.is_some() as usize),
        ("GELU", gelu.is_some() as usize),
    ]
    .into_iter()
    .fold(source, |source, (name, size)| source.constant(name, size));
    let blocks = columns.div_ceil(sharing.columns) * sharing.shares;
    let grid = [blocks, rows.div_ceil(sharing.rows), 1];
    Some(source.code(sources::MMA).launch_on(grid, THREADS, sharing.shared(depth, b.transposed)))
}

/// Whether the kernel takes a product: 16-bit numbers in whole pieces of 16 bytes along what is read.
fn is_taken(product: &Product) -> bool {
    let Product { rows, columns, depth, batch, a, b, d, .. } = product;
    let by_pieces = |matrix: &Matrix, length: usize| is_whole(matrix, length, widest(matrix.element));
    let halves = [Element::Bf16, Element::F16].contains(&a.element) && a.element == b.element;
    let stored = d.element == Element::F32 || d.element == a.element;
    let added = product.added.is_none_or(|added| added.element == d.element && !added.transposed);
    let after = matches!(product.gelu, None | Some(Gelu::Of)) && (product.gelu.is_none() || product.added.is_none());
    let lies = !a.transposed && by_pieces(a, *depth) && by_pieces(b, if b.transposed { *depth } else { *columns });
    let most_rows = if columns.is_multiple_of(8) { MOST_ROWS } else { MOST_ROWS_OF_ODD_COLUMNS };
    let sizes = (1..=most_rows).contains(rows) && *depth >= STEP && *columns >= 32 && *batch == 1;
    halves && stored && added && after && lies && sizes && !d.transposed
}

/// Whether lines of so many numbers are made of whole vectors that lie as they are read.
fn is_whole(matrix: &Matrix, length: usize, vector: usize) -> bool {
    let bytes = (vector * matrix.element.size()) as u64;
    length.is_multiple_of(vector) && matrix.stride.is_multiple_of(vector) && matrix.address.is_multiple_of(bytes)
}

impl Sharing {
    /// The one that moves fewest bytes through the busiest multiprocessor, as far as it was seen to be the fastest in
    /// decoding: see the constants here.
    fn of(rows: usize, columns: usize, depth: usize) -> Sharing {
        let steps = depth.div_ceil(STEP);
        let mut all = vec![];
        for tile_rows in [32, 64, 128].into_iter().filter(|&tile| tile == 32 || tile < 2 * rows) {
            // Lines of 96 columns begin in the middle of what the memory gives at once.
            for tile_columns in [32, 64, 128, 192].into_iter().filter(|tile| tile_rows * tile <= TILE) {
                let of = |shares| Sharing { rows: tile_rows, columns: tile_columns, shares };
                let takes = |shares: &usize| *shares <= steps && tile_rows * shares <= SHARED_ROWS;
                all.extend([1, 2, 4, 8].into_iter().filter(takes).map(of));
            }
        }
        let bytes = |sharing: &Sharing| {
            let blocks = rows.div_ceil(sharing.rows) * columns.div_ceil(sharing.columns) * sharing.shares;
            let operands = (sharing.rows + sharing.columns) * sharing.steps(depth) * STEP * 2;
            // Sums are written and read by the blocks that share a tile, from closer by.
            let sums = if sharing.shares > 1 { sharing.rows * sharing.columns * 4 } else { 0 };
            // Two blocks of the smallest tiles run side by side in the time of one.
            let halves = match sharing.rows {
                32 => (2 * blocks).div_ceil(MULTIPROCESSORS).max(2),
                _ => 2 * blocks.div_ceil(MULTIPROCESSORS),
            };
            halves * (operands + sums)
        };
        all.into_iter().min_by_key(bytes).expect("a tile of 32 rows and columns always fits")
    }

    /// Steps of the depth that a block has at most.
    fn steps(self, depth: usize) -> usize {
        depth.div_ceil(STEP).div_ceil(self.shares)
    }

    /// Steps in shared memory: all of a block's on their way at once, where there is room.
    fn stages(self, depth: usize, b_transposed: bool) -> usize {
        (self.steps(depth) + 1).min(SHARED / self.stage(b_transposed))
    }

    /// Bytes of a step.
    fn stage(self, b_transposed: bool) -> usize {
        let b = if b_transposed { lines(self.columns, STEP) } else { lines(STEP, self.columns) };
        2 * (lines(self.rows, STEP) + b)
    }

    /// Bytes of shared memory: the steps, or the sums that take their place.
    fn shared(self, depth: usize, b_transposed: bool) -> usize {
        let operands = self.stages(depth, b_transposed) * self.stage(b_transposed);
        operands.max(4 * lines(self.rows, self.columns))
    }
}

/// Numbers that lines take in shared memory.
fn lines(count: usize, length: usize) -> usize {
    count * (length + 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(rows: usize, columns: usize, depth: usize, b_transposed: bool) -> Product {
        let matrix = |stride: usize, transposed: bool| Matrix {
            element: Element::Bf16,
            address: 1 << 20,
            stride,
            transposed,
            batch_stride: 0,
        };
        Product {
            rows,
            columns,
            depth,
            batch: 1,
            a: matrix(depth, false),
            b: matrix(if b_transposed { depth } else { columns }, b_transposed),
            d: matrix(columns, false),
            bias: None,
            added: None,
            gelu: None,
            tf32: false,
            workspace: (0, 0),
        }
    }

    #[test]
    fn few_rows_of_whole_pieces_are_taken() {
        let taken = |product: &Product| rows_product(product).is_some();
        assert!(taken(&product(64, 2304, 768, false)));
        assert!(taken(&product(1, 50_257, 768, true)), "columns of a transposed operand need not be whole pieces");
        assert!(!taken(&product(64, 50_257, 768, false)));
        assert!(!taken(&product(64, 768, 76, false)), "a depth of 76");
        assert!(!taken(&product(MOST_ROWS + 1, 2304, 768, false)));
        let plain = product(64, 2304, 768, false);
        assert!(!taken(&Product { batch: 2, ..plain.clone() }));
        assert!(!taken(&Product { gelu: Some(Gelu::Keeping(0)), ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { address: 8, ..plain.a }, ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { transposed: true, ..plain.a }, ..plain.clone() }));
    }

    #[test]
    fn a_token_of_gpt2_fills_the_device() {
        let found = [(2304, 768), (768, 768), (3072, 768), (768, 3072), (50_257, 768)].map(|(columns, depth)| {
            let Sharing { rows, columns, shares } = Sharing::of(64, columns, depth);
            (rows, columns, shares)
        });
        assert_eq!(found, [(64, 128, 4), (32, 32, 4), (64, 128, 4), (32, 64, 8), (64, 192, 1)]);
    }

    #[test]
    fn every_tile_has_room_for_steps_on_their_way() {
        for (rows, columns) in [(32, 32), (32, 192), (64, 192), (128, 64)] {
            for (shares, b_transposed) in [(1, false), (1, true), (8, false), (8, true)] {
                let sharing = Sharing { rows, columns, shares };
                assert!((2..=SHARED).contains(&sharing.stages(64, b_transposed)), "{sharing:?}");
                assert!(
                    sharing.stages(4096, b_transposed) > 2 && sharing.shared(4096, b_transposed) <= SHARED,
                    "{sharing:?}"
                );
            }
        }
    }
}
