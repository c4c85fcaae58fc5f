//! Products of many rows that are followed by GELU, by a kernel of our own: it makes what is stored of a tile while the next one
//! is multiplied, where the library does one after the other.

use crate::{Element, Gelu, Launch, MULTIPROCESSORS, Map, Matrix, Product, Source, sources};

/// Rows and columns of a tile, what it takes of the depth at a time, and blocks that go through tiles side by side.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 256;
const STEP: usize = 64;
const CLUSTER: usize = 2;
/// Fewer rows or columns than this leave most of the device without a tile; they are the library's.
const FEWEST: usize = 512;
/// Threads of a block: two warpgroups that multiply, a warp that copies and three that store.
const THREADS: usize = 384;
/// Bytes of shared memory: steps on their way, the sums of a tile, the bias of its columns for each warpgroup, barriers.
const SHARED: usize =
    3 * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * TILE_COLUMNS * 2 + 2 * TILE_COLUMNS * 4 + 128;

/// The kernel for a product, if it is of a kind and size that it takes. Its bias may be of any type.
pub fn gelu_product(product: &Product) -> Option<Launch> {
    let &Product { rows, columns, depth, a, b, d, bias, .. } = product;
    if !is_taken(product) {
        return None;
    }
    let kept = kept(product)?;
    let source = Source::new("gelu_product", sources::GELU_PRODUCT).element("number_t", a.element);
    let source = source.element("bias_t", bias.map_or(Element::F32, |bias| bias.element));
    let source = [
        ("KEEPS", kept.is_some() as usize),
        ("B_BY_ROWS", !b.transposed as usize),
        ("HAS_BIAS", bias.is_some() as usize),
        ("ROWS", rows),
        ("COLUMNS", columns),
        ("DEPTH", depth),
        ("THREADS", THREADS),
        ("SHARED", SHARED),
    ]
    .into_iter()
    .fold(source, |source, (name, size)| source.constant(name, size));
    // Operands are read as they lie, by rows of 64 numbers along the depth; or, of a second one, two blocks of 64 columns.
    let by_rows =
        |of: &Matrix, lines: usize| Map::new(of, &[depth, lines], &[of.stride]).boxes(&[STEP, TILE_ROWS]).swizzled();
    let b_map = match b.transposed {
        true => by_rows(&b, columns),
        false => Map::new(&b, &[STEP, depth, columns / STEP], &[b.stride, STEP]).boxes(&[STEP, STEP, 2]).swizzled(),
    };
    let source = source.map(by_rows(&a, rows)).map(b_map);
    let source = source.address(d.address).address(bias.map_or(0, |bias| bias.address)).address(kept.unwrap_or(0));
    let tiles = columns.div_ceil(TILE_COLUMNS) * rows.div_ceil(TILE_ROWS * CLUSTER);
    let blocks = CLUSTER * tiles.min(MULTIPROCESSORS / CLUSTER);
    Some(source.code(sources::MMA).code(sources::WGMMA).launch_on([blocks, 1, 1], THREADS, SHARED))
}

/// Where GELU is to keep the product, if at all; nothing, if it is something else that follows.
fn kept(product: &Product) -> Option<Option<u64>> {
    match product.gelu? {
        Gelu::Of => Some(None),
        Gelu::Keeping(address) => Some(Some(address)),
        Gelu::SlopeAt(_) => None,
    }
}

/// Whether the kernel takes a product: 16-bit numbers, in lines that the device copies by itself.
fn is_taken(product: &Product) -> bool {
    let &Product { rows, columns, depth, batch, ref a, ref b, ref d, .. } = product;
    let halves = matches!(a.element, Element::Bf16 | Element::F16) && a.element == b.element && a.element == d.element;
    let aligned = |matrix: &Matrix| matrix.address.is_multiple_of(16) && matrix.stride.is_multiple_of(8);
    let Some(kept) = kept(product) else { return false };
    let lies = [a, b, d].into_iter().all(aligned) && kept.is_none_or(|at| at.is_multiple_of(16)) && !a.transposed;
    let whole = !d.transposed && d.stride == columns && (b.transposed || columns.is_multiple_of(STEP));
    let sizes = rows.min(columns) >= FEWEST && rows.max(columns).max(depth) < 1 << 30 && depth > 0 && batch == 1;
    halves && lies && whole && sizes && product.added.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(rows: usize, columns: usize, depth: usize, gelu: Option<Gelu>) -> Product {
        let matrix = |stride: usize| Matrix {
            element: Element::Bf16,
            address: 1 << 20,
            stride,
            transposed: false,
            batch_stride: 0,
        };
        Product {
            rows,
            columns,
            depth,
            batch: 1,
            a: matrix(depth),
            b: matrix(columns),
            d: matrix(columns),
            bias: None,
            added: None,
            gelu,
            tf32: false,
            workspace: (0, 0),
        }
    }

    #[test]
    fn many_rows_of_whole_pieces_are_taken() {
        let taken = |product: &Product| gelu_product(product).is_some();
        let plain = product(65_536, 3072, 768, Some(Gelu::Keeping(256)));
        assert!(taken(&plain) && taken(&product(1000, 576, 328, Some(Gelu::Of))));
        assert!(!taken(&product(65_536, 3072, 768, None)), "nothing follows");
        assert!(!taken(&product(65_536, 3072, 768, Some(Gelu::SlopeAt(256)))), "the library is as fast");
        assert!(!taken(&product(65_536, 3064, 768, Some(Gelu::Of))), "blocks of 64 columns");
        assert!(!taken(&product(65_536, 3072, 764, Some(Gelu::Of))), "lines of whole pieces");
        assert!(!taken(&product(500, 3072, 768, Some(Gelu::Of))), "few rows");
        let b = Matrix { transposed: true, stride: 768, ..plain.b };
        assert!(
            taken(&Product { b, ..product(65_536, 3064, 768, Some(Gelu::Of)) }),
            "columns that lie one after another"
        );
        assert!(!taken(&Product { batch: 2, ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { address: 8, ..plain.a }, ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { transposed: true, ..plain.a }, ..plain.clone() }));
        assert!(!taken(&Product { gelu: Some(Gelu::Keeping(8)), ..plain }));
    }

    #[test]
    fn clusters_fill_the_device_and_blocks_fit() {
        let grid = |rows: usize| gelu_product(&product(rows, 1024, 256, Some(Gelu::Of))).expect("it is taken").grid;
        assert_eq!(grid(65_536), [132, 1, 1]);
        assert_eq!(grid(600), [24, 1, 1], "three clusters down, four across");
        const { assert!(SHARED <= 227 << 10) }
    }
}
