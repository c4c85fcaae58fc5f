//! The inner products of convolution: a tile of the result in registers, one rank-one update after another.
//!
//! Every element is one chain in rising depth, fused where the level has fused multiply-add, so that the shape of the
//! tile changes no bit of the result.

use crate::Isa;
use crate::isa::multiversion;

/// The lanes of a vector that every shape is made of.
pub(super) const LANES: usize = 16;

/// The most rows of a panel of weights.
pub(super) const PANEL: usize = 8;

/// Rows of a panel for so many targets: those that there are tiles for.
pub(super) fn panel_rows(targets: usize) -> usize {
    if targets <= 4 { targets.max(1) } else { PANEL }
}

/// The most lanes of a tile of so many rows, at any level.
pub(super) fn widest_tile(rows: usize) -> usize {
    if rows < 4 { 4 * LANES } else { 2 * LANES }
}

/// `c + a * b`.
#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { c + a * b }
}

/// A panel of weights times sources: `sums[row][lane] += weights[depth][row] * source[offsets[depth] + lane]`.
#[derive(Clone, Copy)]
pub(super) struct PanelProduct<'a> {
    pub isa: Isa,
    /// `panel` weights for each depth.
    pub weights: &'a [f32],
    pub panel: usize,
    pub source: &'a [f32],
    pub offsets: &'a [usize],
    /// How many lanes count. Up to the next multiple of [`LANES`], more are computed.
    pub lanes: usize,
    /// Whether there are sums already, from which these go on.
    pub continued: bool,
}

/// A function that multiplies all lanes of a panel.
pub(super) type MultiplyPanel = unsafe fn(&PanelProduct<'_>, &mut [f32], usize);

/// The one of a level.
pub(super) fn multiply_panels(isa: Isa) -> MultiplyPanel {
    multiply_panel::select(isa)
}

multiversion! {
    /// All lanes of a panel; `pitch` is how far apart the rows of the sums lie.
    fn multiply_panel(product: &PanelProduct<'_>, sums: &mut [f32], pitch: usize) {
        let width = product.lanes.next_multiple_of(LANES);
        let depth = product.offsets.len();
        let farthest = product.offsets.iter().max().map_or(0, |&offset| offset + width);
        assert!(farthest <= product.source.len() && depth * product.panel <= product.weights.len(), "operands of a panel");
        assert!((product.panel - 1) * pitch + width <= sums.len(), "sums of a panel");
        let tiles = Tiles { product, sums: sums.as_mut_ptr(), pitch, width };
        // SAFETY: all that the tiles read and write was found to be there.
        unsafe {
            match (product.isa, product.panel) {
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 1) => tiles.all::<1, 64, true>(0),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 2) => tiles.all::<2, 64, true>(0),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 3) => tiles.all::<3, 64, true>(0),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 4) => tiles.all::<4, 32, true>(0),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, _) => tiles.all::<PANEL, 32, true>(0),
                (Isa::Avx2 | Isa::Neon, 1) => tiles.all::<1, 32, true>(0),
                (Isa::Avx2 | Isa::Neon, 2) => tiles.all::<2, 32, true>(0),
                (Isa::Avx2 | Isa::Neon, 3) => tiles.all::<3, 16, true>(0),
                (Isa::Avx2 | Isa::Neon, _) => (0..product.panel).step_by(4).for_each(|row| tiles.all::<4, 16, true>(row)),
                (Isa::Baseline, _) => (0..product.panel).for_each(|row| tiles.all::<1, 16, false>(row)),
            }
        }
    }
}

/// The tiles of a panel's sums.
#[derive(Clone, Copy)]
struct Tiles<'a> {
    product: &'a PanelProduct<'a>,
    sums: *mut f32,
    pitch: usize,
    width: usize,
}

impl Tiles<'_> {
    /// All lanes of some rows, in tiles of `WIDTH` and what is left in narrower ones.
    ///
    /// # Safety
    /// Operands and sums must have so many rows and lanes.
    #[inline(always)]
    unsafe fn all<const ROWS: usize, const WIDTH: usize, const FUSED: bool>(&self, row: usize) {
        let wide = self.width / WIDTH * WIDTH;
        for lane in (0..wide).step_by(WIDTH) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<ROWS, WIDTH, FUSED>(row, lane) };
        }
        for lane in (wide..self.width).step_by(LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<ROWS, LANES, FUSED>(row, lane) };
        }
    }

    #[inline(always)]
    unsafe fn tile<const ROWS: usize, const WIDTH: usize, const FUSED: bool>(&self, first_row: usize, lane: usize) {
        let PanelProduct { weights, panel, source, offsets, continued, .. } = *self.product;
        let sums = |row: usize| self.sums.wrapping_add((first_row + row) * self.pitch + lane).cast::<[f32; WIDTH]>();
        let mut tile = [[0.0f32; WIDTH]; ROWS];
        if continued {
            for (row, tile) in tile.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *tile = unsafe { sums(row).read() };
            }
        }
        let (mut weight, source) = (weights.as_ptr().wrapping_add(first_row), source.as_ptr().wrapping_add(lane));
        for &offset in offsets {
            // SAFETY: the caller's promise.
            let lanes = unsafe { source.add(offset).cast::<[f32; WIDTH]>().read_unaligned() };
            for (row, tile) in tile.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let factor = unsafe { *weight.add(row) };
                for index in 0..WIDTH {
                    tile[index] = multiply_add::<FUSED>(factor, lanes[index], tile[index]);
                }
            }
            weight = weight.wrapping_add(panel);
        }
        for (row, tile) in tile.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { sums(row).write(*tile) };
        }
    }
}

/// Rows of inputs times the output's gradients at a rectangle of positions, added up over them. The input of a weight at
/// a position is `source[offsets[weight] + row * pitch + column]`.
#[derive(Clone, Copy)]
pub(super) struct RowsProduct<'a> {
    pub isa: Isa,
    pub source: &'a [f32],
    pub offsets: &'a [usize],
    /// How many offsets count; there are more, up to a multiple of [`PANEL`] and of [`DOTS`].
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub pitch: usize,
    /// Sums of a weight.
    pub lanes: usize,
}

/// A function that adds the products with the gradients to the sums of each weight.
pub(super) type Product = unsafe fn(&RowsProduct<'_>, &[f32], &mut [f32]);

/// The one of a level with the filters in lanes, or with the positions.
pub(super) fn products(isa: Isa, filters_in_lanes: bool) -> Product {
    if filters_in_lanes { add_products::select(isa) } else { add_dots::select(isa) }
}

/// Weights whose dot products are taken side by side.
pub(super) const DOTS: usize = 9;

impl RowsProduct<'_> {
    /// Checks that all is there for so many columns and gradients, in whole groups of weights.
    fn check(&self, group: usize, columns: usize, gradients: bool, sums: &[f32]) {
        let depth = self.depth.next_multiple_of(group);
        let farthest =
            self.offsets[..depth].iter().max().map_or(0, |&offset| offset + (self.rows - 1) * self.pitch + columns);
        assert!(farthest <= self.source.len() && gradients, "operands of weights");
        assert!(depth * self.lanes <= sums.len(), "sums of weights");
    }
}

multiversion! {
    /// With the filters in lanes: of the gradients, those of a position lie together.
    fn add_products(product: &RowsProduct<'_>, gradients: &[f32], sums: &mut [f32]) {
        let positions = product.rows * product.columns;
        product.check(PANEL, product.columns, positions * product.lanes <= gradients.len(), sums);
        let tiles = GradientTiles { product, gradients: gradients.as_ptr(), sums: sums.as_mut_ptr() };
        for weight in (0..product.depth).step_by(PANEL) {
            // SAFETY: all that the tiles read and write was found to be there.
            unsafe {
                match product.isa {
                    Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => tiles.all::<PANEL, 32, true>(weight),
                    Isa::Avx2 | Isa::Neon => {
                        tiles.all::<4, 16, true>(weight);
                        tiles.all::<4, 16, true>(weight + 4);
                    }
                    Isa::Baseline => (weight..weight + PANEL).for_each(|weight| tiles.all::<1, 16, false>(weight)),
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct GradientTiles<'a> {
    product: &'a RowsProduct<'a>,
    gradients: *const f32,
    sums: *mut f32,
}

impl GradientTiles<'_> {
    /// All filters of some weights, in tiles of `WIDTH` and what is left in narrower ones.
    ///
    /// # Safety
    /// Operands and sums must have so many weights and filters.
    #[inline(always)]
    unsafe fn all<const ROWS: usize, const WIDTH: usize, const FUSED: bool>(&self, weight: usize) {
        let wide = self.product.lanes / WIDTH * WIDTH;
        for lane in (0..wide).step_by(WIDTH) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<ROWS, WIDTH, FUSED>(weight, lane) };
        }
        for lane in (wide..self.product.lanes).step_by(LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<ROWS, LANES, FUSED>(weight, lane) };
        }
    }

    #[inline(always)]
    unsafe fn tile<const ROWS: usize, const WIDTH: usize, const FUSED: bool>(&self, weight: usize, lane: usize) {
        let RowsProduct { source, offsets, rows, columns, pitch, lanes: lane_pitch, .. } = *self.product;
        let sums = |row: usize| self.sums.wrapping_add((weight + row) * lane_pitch + lane).cast::<[f32; WIDTH]>();
        let mut tile = [[0.0f32; WIDTH]; ROWS];
        let mut inputs = [source.as_ptr(); ROWS];
        for row in 0..ROWS {
            // SAFETY: the caller's promise.
            tile[row] = unsafe { sums(row).read() };
            inputs[row] = inputs[row].wrapping_add(offsets[weight + row]);
        }
        let mut gradient = self.gradients.wrapping_add(lane);
        for _ in 0..rows {
            for column in 0..columns {
                // SAFETY: the caller's promise.
                let lanes = unsafe { gradient.cast::<[f32; WIDTH]>().read() };
                gradient = gradient.wrapping_add(lane_pitch);
                for (row, tile) in tile.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let factor = unsafe { *inputs[row].add(column) };
                    for index in 0..WIDTH {
                        tile[index] = multiply_add::<FUSED>(factor, lanes[index], tile[index]);
                    }
                }
            }
            for input in &mut inputs {
                *input = input.wrapping_add(pitch);
            }
        }
        for (row, tile) in tile.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { sums(row).write(*tile) };
        }
    }
}

multiversion! {
    /// With the positions in lanes, filter by filter: the gradients are whole rows, with zeros at their ends.
    fn add_dots(product: &RowsProduct<'_>, gradients: &[f32], sums: &mut [f32]) {
        let columns = product.columns.next_multiple_of(LANES);
        let positions = product.rows * columns;
        product.check(DOTS, columns, positions * product.lanes <= gradients.len(), sums);
        for (filter, gradients) in gradients.chunks_exact(positions).enumerate().take(product.lanes) {
            for weight in (0..product.depth).step_by(DOTS) {
                // SAFETY: all that is read was found to be there.
                let dots = unsafe {
                    match product.isa {
                        Isa::Baseline => dots_of::<false>(product, gradients, weight),
                        _ => dots_of::<true>(product, gradients, weight),
                    }
                };
                for (index, dot) in dots.into_iter().enumerate() {
                    sums[(weight + index) * product.lanes + filter] += dot;
                }
            }
        }
    }
}

/// The dot products of a filter's gradients with the inputs of some weights: in lanes, which are joined in a tree.
#[inline(always)]
unsafe fn dots_of<const FUSED: bool>(product: &RowsProduct<'_>, gradients: &[f32], weight: usize) -> [f32; DOTS] {
    let mut tile = [[0.0f32; LANES]; DOTS];
    let mut inputs = [product.source.as_ptr(); DOTS];
    for (input, &offset) in inputs.iter_mut().zip(&product.offsets[weight..]) {
        *input = input.wrapping_add(offset);
    }
    for row in gradients.chunks_exact(product.columns.next_multiple_of(LANES)) {
        for (vector, gradient) in row.as_chunks::<LANES>().0.iter().enumerate() {
            for (input, tile) in inputs.iter().zip(&mut tile) {
                // SAFETY: the caller's promise.
                let lanes = unsafe { input.add(vector * LANES).cast::<[f32; LANES]>().read_unaligned() };
                for lane in 0..LANES {
                    tile[lane] = multiply_add::<FUSED>(gradient[lane], lanes[lane], tile[lane]);
                }
            }
        }
        for input in &mut inputs {
            *input = input.wrapping_add(product.pitch);
        }
    }
    let mut dots = [0.0; DOTS];
    for (dot, lanes) in dots.iter_mut().zip(&mut tile) {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        *dot = lanes[0];
    }
    dots
}
