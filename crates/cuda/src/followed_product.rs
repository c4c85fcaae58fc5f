//! Products of many rows and what follows them, by a kernel of our own: it makes what is stored of a tile while the next one is
//! multiplied, where the library does one after the other.

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
const STORERS: usize = 3;
/// Bytes of shared memory: steps on their way, the sums of a tile, the bias of two tiles' columns for each warpgroup, barriers.
const SHARED: usize =
    3 * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * TILE_COLUMNS * 2 + 4 * TILE_COLUMNS * 4 + 128;
/// And where the columns are summed, the sums of two tiles' by every warp that stores.
const SHARED_SUMS: usize = 2 * STORERS * TILE_COLUMNS * 4;

/// What follows a product, before it is stored. All that it reads or writes besides lies as the result does, at these addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// GELU of the product, in its tanh form.
    Gelu,
    /// The same, and the product is stored too.
    GeluKeeping(u64),
    /// The same, and GELU's slope at the product is stored too.
    GeluKeepingSlope(u64),
    /// The product times other numbers.
    Times {
        /// These.
        factors: u64,
        /// Where the sums of the result's columns go, in f32: those of [`column_sum_rows`] parts of its rows, one after another.
        column_sums: Option<u64>,
    },
}

impl Epilogue {
    /// What the library would do, if it is done here.
    pub fn of(gelu: Gelu) -> Option<Epilogue> {
        match gelu {
            Gelu::Of => Some(Epilogue::Gelu),
            Gelu::Keeping(address) => Some(Epilogue::GeluKeeping(address)),
            Gelu::SlopeAt(_) => None,
        }
    }

    /// Its number in the kernel, and the address besides the result's.
    fn number(self) -> (usize, u64) {
        match self {
            Epilogue::Gelu => (0, 0),
            Epilogue::GeluKeeping(address) => (1, address),
            Epilogue::GeluKeepingSlope(address) => (2, address),
            Epilogue::Times { factors, .. } => (3, factors),
        }
    }
}

/// Into how many parts the rows of a product come whose columns are summed.
pub fn column_sum_rows(rows: usize) -> usize {
    rows.div_ceil(TILE_ROWS * CLUSTER) * CLUSTER
}

/// The kernel for a product that is followed by this, if it is of a kind and size that it takes. Its bias may be of any type.
pub fn followed_product(product: &Product, epilogue: Epilogue) -> Option<Launch> {
    let &Product { rows, columns, depth, a, b, d, bias, .. } = product;
    let (number, kept) = epilogue.number();
    if !is_taken(product) || !kept.is_multiple_of(16) {
        return None;
    }
    let column_sums = match epilogue {
        Epilogue::Times { column_sums, .. } => column_sums,
        _ => None,
    };
    let shared = SHARED + if column_sums.is_some() { SHARED_SUMS } else { 0 };
    let source = Source::new("followed_product", sources::FOLLOWED_PRODUCT).element("number_t", a.element);
    let source = source.element("bias_t", bias.map_or(Element::F32, |bias| bias.element));
    let source = [
        ("AFTER", number),
        ("HAS_COLUMN_SUMS", column_sums.is_some() as usize),
        ("B_BY_ROWS", !b.transposed as usize),
        ("HAS_BIAS", bias.is_some() as usize),
        ("ROWS", rows),
        ("COLUMNS", columns),
        ("DEPTH", depth),
        ("THREADS", THREADS),
        ("SHARED", shared),
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
    let source = source.address(d.address).address(bias.map_or(0, |bias| bias.address)).address(kept);
    let source = source.address(column_sums.unwrap_or(0));
    let tiles = columns.div_ceil(TILE_COLUMNS) * rows.div_ceil(TILE_ROWS * CLUSTER);
    let blocks = CLUSTER * tiles.min(MULTIPROCESSORS / CLUSTER);
    Some(source.code(sources::MMA).code(sources::WGMMA).launch_on([blocks, 1, 1], THREADS, shared))
}

/// Whether a product of so many rows and columns is large enough to be followed by something here.
pub fn are_followed(rows: usize, columns: usize) -> bool {
    rows.min(columns) >= FEWEST && columns.is_multiple_of(STEP)
}

/// Whether the kernel takes a product: 16-bit numbers, in lines that the device copies by itself.
fn is_taken(product: &Product) -> bool {
    let &Product { rows, columns, depth, batch, ref a, ref b, ref d, .. } = product;
    let halves = matches!(a.element, Element::Bf16 | Element::F16) && a.element == b.element && a.element == d.element;
    let aligned = |matrix: &Matrix| matrix.address.is_multiple_of(16) && matrix.stride.is_multiple_of(8);
    let lies = [a, b, d].into_iter().all(aligned) && !a.transposed;
    let whole = !d.transposed && d.stride == columns && (b.transposed || columns.is_multiple_of(STEP));
    let sizes = rows.min(columns) >= FEWEST && rows.max(columns).max(depth) < 1 << 30 && depth > 0 && batch == 1;
    halves && lies && whole && sizes && product.added.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(rows: usize, columns: usize, depth: usize) -> Product {
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
            gelu: None,
            tf32: false,
            workspace: (0, 0),
        }
    }

    #[test]
    fn many_rows_of_whole_pieces_are_taken() {
        let taken = |product: &Product| followed_product(product, Epilogue::Gelu).is_some();
        let plain = product(65_536, 3072, 768);
        assert!(taken(&plain) && taken(&product(1000, 576, 328)));
        assert!(!taken(&product(65_536, 3064, 768)), "blocks of 64 columns");
        assert!(!taken(&product(65_536, 3072, 764)), "lines of whole pieces");
        assert!(!taken(&product(500, 3072, 768)), "few rows");
        let b = Matrix { transposed: true, stride: 768, ..plain.b };
        assert!(taken(&Product { b, ..product(65_536, 3064, 768) }), "columns that lie one after another");
        assert!(!taken(&Product { batch: 2, ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { address: 8, ..plain.a }, ..plain.clone() }));
        assert!(!taken(&Product { a: Matrix { transposed: true, ..plain.a }, ..plain.clone() }));
        for kept in [Epilogue::GeluKeeping, Epilogue::GeluKeepingSlope] {
            assert!(followed_product(&plain, kept(256)).is_some() && followed_product(&plain, kept(8)).is_none());
        }
    }

    #[test]
    fn clusters_fill_the_device_and_blocks_fit() {
        let launch = |rows: usize, epilogue: Epilogue| {
            followed_product(&product(rows, 1024, 256), epilogue).expect("it is taken")
        };
        assert_eq!(launch(65_536, Epilogue::Gelu).grid, [132, 1, 1]);
        assert_eq!(launch(600, Epilogue::Gelu).grid, [24, 1, 1], "three clusters down, four across");
        let times = launch(600, Epilogue::Times { factors: 0, column_sums: Some(256) });
        assert!(times.shared <= 227 << 10);
        assert_eq!(column_sum_rows(600), 6, "two for each of three clusters");
    }
}
