//! The inner products of convolution: a tile of the result in registers, one rank-one update after another.
//!
//! Every element is one chain in rising depth, fused where the level has fused multiply-add, so that the shape of the
//! tile changes no bit of the result.

use super::slide::taps_that_slide;
use super::vector::{Plain, Vector};
use crate::Isa;
use crate::isa::multiversion;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

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

/// Where numbers lie from some place on.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets {
    places: Vec<usize>,
    /// The largest of them up to each.
    farthest: Vec<usize>,
}

impl Offsets {
    pub fn new(places: Vec<usize>) -> Offsets {
        let mut farthest = places.clone();
        for index in 1..farthest.len() {
            farthest[index] = farthest[index].max(farthest[index - 1]);
        }
        Offsets { places, farthest }
    }

    /// [`taps_that_slide`] of these places.
    pub fn that_slide(&self, pitch: usize) -> Option<[usize; 9]> {
        taps_that_slide(&self.places, pitch)
    }
}

/// A panel of weights times sources: `sums[row][lane] += weights[depth][row] * source[offsets[depth] + lane]`.
#[derive(Clone, Copy)]
pub(super) struct PanelProduct<'a> {
    pub isa: Isa,
    /// `panel` weights for each depth, which lie so far apart.
    pub weights: &'a [f32],
    pub panel: usize,
    pub weight_step: usize,
    pub source: &'a [f32],
    /// For this depth, or a larger one.
    pub offsets: &'a Offsets,
    pub depth: usize,
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
        let farthest = product.depth.checked_sub(1).map_or(0, |last| product.offsets.farthest[last] + width);
        assert!(farthest <= product.source.len(), "sources of a panel");
        let weights = product.depth.checked_sub(1).map_or(0, |last| last * product.weight_step + product.panel);
        assert!(weights <= product.weights.len(), "weights of a panel");
        assert!((product.panel - 1) * pitch + width <= sums.len(), "sums of a panel");
        let tiles = Tiles { product, sums: sums.as_mut_ptr(), pitch, width };
        // SAFETY: all that the tiles read and write was found to be there.
        unsafe {
            match (product.isa, product.panel) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 1) => tiles.all::<__m512, 1, 4, 1>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 2) => tiles.all::<__m512, 2, 4, 1>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 3) => tiles.all::<__m512, 3, 4, 1>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 4) => tiles.all::<__m512, 4, 2, 1>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, _) => tiles.all::<__m512, PANEL, 2, 1>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, 1) => tiles.all::<__m256, 1, 8, 2>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, 2) => tiles.all::<__m256, 2, 4, 2>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, 3) => tiles.all::<__m256, 3, 2, 2>(0),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, _) => (0..product.panel).step_by(4).for_each(|row| tiles.all::<__m256, 4, 2, 2>(row)),
                (Isa::Baseline, _) => (0..product.panel).for_each(|row| tiles.all::<Plain<false>, 1, 4, 4>(row)),
                (_, 1) => tiles.all::<Plain<true>, 1, 8, 4>(0),
                (_, 2) => tiles.all::<Plain<true>, 2, 8, 4>(0),
                (_, 3) => tiles.all::<Plain<true>, 3, 4, 4>(0),
                (_, _) => (0..product.panel).step_by(4).for_each(|row| tiles.all::<Plain<true>, 4, 4, 4>(row)),
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
    /// All lanes of some rows, in tiles of so many vectors, and what is left [`LANES`] at a time.
    ///
    /// # Safety
    /// Operands and sums must have so many rows and lanes, and the machine the vectors.
    #[inline(always)]
    unsafe fn all<V: Vector, const ROWS: usize, const VECTORS: usize, const LAST: usize>(&self, row: usize) {
        let wide = self.width / (VECTORS * V::LANES) * (VECTORS * V::LANES);
        for lane in (0..wide).step_by(VECTORS * V::LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<V, ROWS, VECTORS>(row, lane) };
        }
        for lane in (wide..self.width).step_by(LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<V, ROWS, LAST>(row, lane) };
        }
    }

    #[inline(always)]
    unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(&self, first_row: usize, lane: usize) {
        let PanelProduct { weights, weight_step, source, offsets, depth, continued, .. } = *self.product;
        let sums = |row: usize, vector: usize| {
            self.sums.wrapping_add((first_row + row) * self.pitch + lane + vector * V::LANES)
        };
        // SAFETY: the caller's promise.
        unsafe {
            let mut tile = [[V::all(0.0); VECTORS]; ROWS];
            if continued {
                for (row, tile) in tile.iter_mut().enumerate() {
                    for (vector, tile) in tile.iter_mut().enumerate() {
                        *tile = V::load(sums(row, vector));
                    }
                }
            }
            let mut weight = weights.as_ptr().add(first_row);
            let source = source.as_ptr().add(lane);
            for &offset in &offsets.places[..depth] {
                let mut lanes = [V::all(0.0); VECTORS];
                for (vector, lanes) in lanes.iter_mut().enumerate() {
                    *lanes = V::load(source.add(offset + vector * V::LANES));
                }
                for (row, tile) in tile.iter_mut().enumerate() {
                    let factor = V::all(*weight.add(row));
                    for (tile, lanes) in tile.iter_mut().zip(lanes) {
                        *tile = factor.multiply_add(lanes, *tile);
                    }
                }
                weight = weight.wrapping_add(weight_step);
            }
            for (row, tile) in tile.iter().enumerate() {
                for (vector, tile) in tile.iter().enumerate() {
                    tile.store(sums(row, vector));
                }
            }
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
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => tiles.all::<__m512, PANEL, 2, 1>(weight),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => (0..PANEL).step_by(4).for_each(|row| tiles.all::<__m256, 4, 2, 2>(weight + row)),
                    Isa::Baseline => (0..PANEL).for_each(|row| tiles.all::<Plain<false>, 1, 4, 4>(weight + row)),
                    _ => (0..PANEL).step_by(4).for_each(|row| tiles.all::<Plain<true>, 4, 4, 4>(weight + row)),
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
    /// All filters of some weights, in tiles of so many vectors, and what is left [`LANES`] at a time.
    ///
    /// # Safety
    /// Operands and sums must have so many weights and filters, and the machine the vectors.
    #[inline(always)]
    unsafe fn all<V: Vector, const ROWS: usize, const VECTORS: usize, const LAST: usize>(&self, weight: usize) {
        let lanes = self.product.lanes;
        let wide = lanes / (VECTORS * V::LANES) * (VECTORS * V::LANES);
        for lane in (0..wide).step_by(VECTORS * V::LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<V, ROWS, VECTORS>(weight, lane) };
        }
        for lane in (wide..lanes).step_by(LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.tile::<V, ROWS, LAST>(weight, lane) };
        }
    }

    #[inline(always)]
    unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(&self, weight: usize, lane: usize) {
        let RowsProduct { source, offsets, rows, columns, pitch, lanes: lane_pitch, .. } = *self.product;
        let sums =
            |row: usize, vector: usize| self.sums.wrapping_add((weight + row) * lane_pitch + lane + vector * V::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let mut tile = [[V::all(0.0); VECTORS]; ROWS];
            let mut inputs = [source.as_ptr(); ROWS];
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    tile[row][vector] = V::load(sums(row, vector));
                }
                inputs[row] = inputs[row].add(offsets[weight + row]);
            }
            let mut gradient = self.gradients.wrapping_add(lane);
            for _ in 0..rows {
                for column in 0..columns {
                    let mut lanes = [V::all(0.0); VECTORS];
                    for (vector, lanes) in lanes.iter_mut().enumerate() {
                        *lanes = V::load(gradient.add(vector * V::LANES));
                    }
                    gradient = gradient.wrapping_add(lane_pitch);
                    for (input, tile) in inputs.iter().zip(&mut tile) {
                        let factor = V::all(*input.add(column));
                        for (tile, lanes) in tile.iter_mut().zip(lanes) {
                            *tile = factor.multiply_add(lanes, *tile);
                        }
                    }
                }
                for input in &mut inputs {
                    *input = input.wrapping_add(pitch);
                }
            }
            for (row, tile) in tile.iter().enumerate() {
                for (vector, tile) in tile.iter().enumerate() {
                    tile.store(sums(row, vector));
                }
            }
        }
    }
}

multiversion! {
    /// With the positions in lanes, filter by filter: the gradients are rows of whole vectors, with zeros at their ends.
    fn add_dots(product: &RowsProduct<'_>, gradients: &[f32], sums: &mut [f32]) {
        let columns = product.columns.next_multiple_of(LANES);
        let positions = product.rows * columns;
        product.check(DOTS, columns, positions * product.lanes <= gradients.len(), sums);
        for (filter, gradients) in gradients.chunks_exact(positions).enumerate().take(product.lanes) {
            for weight in (0..product.depth).step_by(DOTS) {
                // SAFETY: all that is read was found to be there.
                let lanes = unsafe {
                    match product.isa {
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => dots_of::<__m512, 1>(product, gradients, weight),
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 => dots_of::<__m256, 2>(product, gradients, weight),
                        Isa::Baseline => dots_of::<Plain<false>, 4>(product, gradients, weight),
                        _ => dots_of::<Plain<true>, 4>(product, gradients, weight),
                    }
                };
                for (index, lanes) in lanes.iter().enumerate() {
                    sums[(weight + index) * product.lanes + filter] += sum_of_lanes(lanes);
                }
            }
        }
    }
}

/// The dot products of a filter's gradients with the inputs of some weights: in [`LANES`], which are joined in a tree. What
/// lies behind the end of a row is not read: it may be infinite, and the gradient there is zero.
#[inline(always)]
unsafe fn dots_of<V: Vector, const VECTORS: usize>(
    product: &RowsProduct<'_>,
    gradients: &[f32],
    weight: usize,
) -> [[f32; LANES]; DOTS] {
    let mut inputs = [product.source.as_ptr(); DOTS];
    for (input, &offset) in inputs.iter_mut().zip(&product.offsets[weight..]) {
        *input = input.wrapping_add(offset);
    }
    let mut sums = [[0.0f32; LANES]; DOTS];
    // SAFETY: the caller's promise.
    unsafe {
        let mut tile = [[V::all(0.0); VECTORS]; DOTS];
        let mut add = |inputs: &[*const f32; DOTS], gradient: &[f32; LANES], column: usize, count: usize| {
            for vector in 0..VECTORS {
                let (at, first) = (column + vector * V::LANES, vector * V::LANES);
                let gradient = V::load(gradient.as_ptr().add(first));
                for (input, tile) in inputs.iter().zip(&mut tile) {
                    let lanes = match count {
                        LANES => V::load(input.add(at)),
                        _ => V::load_some(input.add(at), 0, count.saturating_sub(first)),
                    };
                    tile[vector] = gradient.multiply_add(lanes, tile[vector]);
                }
            }
        };
        let whole = product.columns / LANES;
        for row in gradients.chunks_exact(product.columns.next_multiple_of(LANES)) {
            let gradients = row.as_chunks::<LANES>().0;
            for (block, gradient) in gradients[..whole].iter().enumerate() {
                add(&inputs, gradient, block * LANES, LANES);
            }
            if let Some(gradient) = gradients.get(whole) {
                add(&inputs, gradient, whole * LANES, product.columns % LANES);
            }
            for input in &mut inputs {
                *input = input.wrapping_add(product.pitch);
            }
        }
        for (sums, tile) in sums.iter_mut().zip(&tile) {
            for (vector, tile) in tile.iter().enumerate() {
                tile.store(sums.as_mut_ptr().add(vector * V::LANES));
            }
        }
    }
    sums
}

/// The sum of all lanes, in a tree.
#[inline(always)]
pub(super) fn sum_of_lanes(lanes: &[f32; LANES]) -> f32 {
    let quarters: [f32; 2] = halved::<2, 4>(&halved::<4, 8>(&halved::<8, LANES>(lanes)));
    quarters[0] + quarters[1]
}

/// The first half of some lanes plus the second.
#[inline(always)]
fn halved<const HALF: usize, const WHOLE: usize>(lanes: &[f32; WHOLE]) -> [f32; HALF] {
    let mut sums = [0.0; HALF];
    for lane in 0..HALF {
        sums[lane] = lanes[lane] + lanes[lane + HALF];
    }
    sums
}

/// [`LANES`] lines, of which so many numbers lie so far apart, and where their numbers go.
pub(super) struct Lines<'a> {
    pub isa: Isa,
    pub from: &'a [f32],
    pub pitch: usize,
    /// Up to the next multiple of four, more are read and written.
    pub numbers: usize,
    /// How far apart the first numbers of all lines are to lie from the second ones.
    pub step: usize,
}

/// A function that transposes lines.
pub(super) type Transpose = unsafe fn(&Lines<'_>, &mut [f32]);

/// The one of a level.
pub(super) fn transposes(isa: Isa) -> Transpose {
    transpose::select(isa)
}

multiversion! {
    /// All numbers of the lines: those at one place of all lines lie together.
    fn transpose(lines: &Lines<'_>, to: &mut [f32]) {
        let numbers = lines.numbers.next_multiple_of(4);
        assert!((LANES - 1) * lines.pitch + numbers <= lines.from.len(), "lines");
        assert!(numbers == 0 || (numbers - 1) * lines.step + LANES <= to.len(), "places for all numbers");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match lines.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => lines.transposed::<__m512>(to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => lines.transposed::<__m256>(to.as_mut_ptr()),
                _ => lines.transposed::<Plain<false>>(to.as_mut_ptr()),
            }
        }
    }
}

impl Lines<'_> {
    #[inline(always)]
    unsafe fn transposed<V: Vector>(&self, to: *mut f32) {
        for first in (0..self.numbers).step_by(4) {
            for line in (0..LANES).step_by(V::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let places = V::transposed(self.from.as_ptr().add(line * self.pitch + first), self.pitch);
                    for (place, numbers) in places.into_iter().enumerate() {
                        numbers.store(to.add((first + place) * self.step + line));
                    }
                }
            }
        }
    }
}
