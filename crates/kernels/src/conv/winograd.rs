//! Correlation with filters of 3 x 3 by Winograd's F(2 x 2, 3 x 3) and what follows for a stride of two: tiles of sources and the weights
//! are transformed (`ways.rs`), multiplied element by element and summed over the channels, and targets are made of the sums. That takes
//! 16 products where the definition has 36, and 25 with the stride.
//!
//! The transforms add and subtract, with no other factors than one half, so the result is off by little more than the
//! definition's own rounding: to first order an element differs from the exact one by at most `(9 c + 100) * 2^-24 * 9 * s`, where `c` is
//! the number of channels and `s` the sum over them of the largest source times the largest weight of each. Bounds
//! aside, errors on random numbers are less than four times those of the definition (`tests.rs` asks for that).
//! A source that is not finite makes all targets of its tiles so, also those that the definition would spare.

use super::axis::Axis;
use super::correlation::{Operands, Planes};
use super::plane::Plane;
use super::rows::{load, store};
use super::tile::{LANES, Offsets, PANEL, PanelProduct};
use super::ways::{Along, MOST, Near, Phased, PlaceProduct, Strided, Taps, WEIGHT_PLACES, Ways, products_of};
use super::winograd_tiles::{
    FILTER, Filters, RESIDUE, ROW, Residues, SourceRows, Sums, TARGET_ROW, TILES, TransformFilters, transforms,
    transforms_filters,
};
use crate::vectors::ask_for;
use crate::{Element, chunk, parts_of};
use std::ops::Range;

/// Numbers of transformed weights.
const WEIGHTS: usize = WEIGHT_PLACES * WEIGHT_PLACES;
/// Sources that places of packed weights are farther apart than their number, or a cache would hold few of them at a time.
const GAP: usize = 2;
/// How many channels ahead of its transform a source is asked for.
const AHEAD: usize = 4;
/// Channels of the source that are multiplied at a time.
const CHANNELS: usize = 64;
/// Target planes whose sums are held at a time.
const BLOCK: usize = 128;
/// The fewest channels on either side for which it is taken; where it begins to pay was not measured.
pub(super) const FEWEST: usize = 32;

#[derive(Debug)]
pub(super) struct Winograd {
    ways: Ways,
    /// Tiles of a plane.
    tiles: [usize; 2],
    taps: [Taps; 2],
    /// Products along both axes: those of a sum one after another.
    products: Vec<PlaceProduct>,
    offsets: Offsets,
}

/// Neighbouring tiles of a row, and where they lie among those of a unit.
struct Run {
    at: usize,
    image: usize,
    row: usize,
    columns: Range<usize>,
}

/// Whether so many products a tile pay for planes of this size, of two by two targets of a phase. Those that reach over the edge are
/// in vain, and transforms take what two and a half products would.
pub(super) fn pays(size: [usize; 2], products: usize) -> bool {
    let [rows, columns] = size.map(|size| size.div_ceil(2));
    (2 * products + 5) * rows * columns <= 18 * size[0] * size[1]
}

impl Winograd {
    /// If the filters are such and it pays.
    pub fn of(planes: &Planes, [vertical, horizontal]: &[Vec<Axis>; 2]) -> Option<Winograd> {
        if planes.sources.min(planes.targets) < FEWEST {
            return None;
        }
        let of_sum = |product: &PlaceProduct| product.sum;
        let (ways, taps, products) = match [Along::of(vertical)?, Along::of(horizontal)?] {
            [Along::Near(rows), Along::Near(columns)] => (Ways::Near, [rows, columns], products_of::<Near>(of_sum)),
            [Along::Strided(rows), Along::Strided(columns)] => {
                (Ways::Strided, [rows, columns], products_of::<Strided>(of_sum))
            }
            [Along::Phased(rows, row_way), Along::Phased(columns, column_way)] => {
                (Ways::Phased([row_way, column_way]), [rows, columns], products_of::<Phased>(of_sum))
            }
            _ => return None,
        };
        // Of the first phase, which has the most.
        let size = [vertical[0].count, horizontal[0].count];
        pays(size, products.len()).then(|| Winograd {
            ways,
            taps,
            tiles: size.map(|size| size.div_ceil(2)),
            products,
            offsets: Offsets::new((0..planes.sources.min(CHANNELS)).map(|channel| channel * TILES).collect()),
        })
    }

    /// Packed weights of a panel for each of its planes.
    pub fn panel_depth(planes: &Planes) -> usize {
        WEIGHTS * (planes.sources + GAP)
    }

    fn tile_blocks(&self, planes: &Planes) -> usize {
        parts_of(planes.images * self.tiles[0] * self.tiles[1], TILES)
    }

    /// Units of all targets; each is a part.
    pub fn units(&self, planes: &Planes) -> usize {
        planes.groups * self.tile_blocks(planes)
    }

    /// How far apart places lie, of the transformed sources and of the sums: not by powers of two, or a cache would hold few of them
    /// at a time.
    #[inline(always)]
    fn pitches(planes: &Planes) -> [usize; 2] {
        let targets = planes.targets.min(BLOCK).next_multiple_of(PANEL);
        [planes.sources * TILES + LANES, targets * TILES + LANES]
    }

    /// Numbers of scratch for the transformed sources, and for the sums.
    pub fn scratch(&self, planes: &Planes) -> [usize; 2] {
        let ([places, sums, _], [source_pitch, sum_pitch]) = (self.ways.counts(), Winograd::pitches(planes));
        [places * places * source_pitch, sums * sums * sum_pitch]
    }

    /// The transformed weights of a panel: for each place those of all sources.
    #[inline(always)]
    pub fn pack_panel<T: Element>(
        &self,
        planes: &Planes,
        weights: &[T],
        [group, panel]: [usize; 2],
        packed: &mut [f32],
    ) {
        let transform: TransformFilters = transforms_filters(planes.isa);
        let mut lines = [[0.0; FILTER]; PANEL];
        for source in 0..planes.sources {
            for (lane, line) in lines.iter_mut().enumerate().take(planes.panel_targets(panel)) {
                let filter = planes.filter(weights, [group, panel * PANEL + lane, source]);
                load(filter, &mut line[..filter.len()]);
            }
            let filters = Filters {
                isa: planes.isa,
                ways: self.ways,
                taps: &self.taps,
                lines: &lines,
                pitch: (planes.sources + GAP) * PANEL,
            };
            // SAFETY: the machine has the level, since whoever built the plan took it from `Isa::available`.
            unsafe { transform(&filters, &mut packed[source * PANEL..]) };
        }
    }

    /// All target planes of a group at some tiles.
    ///
    /// # Safety
    /// The operands must be alive, and these tiles of the targets nobody else's.
    #[inline(always)]
    pub unsafe fn unit<T: Element>(&self, operands: &Operands<'_, T>, unit: usize, scratch: &mut [f32]) {
        let planes = operands.planes;
        let (group, tiles) = self.tiles_of(planes, unit);
        let ([sources, sums], [source_pitch, sum_pitch]) = (self.scratch(planes), Winograd::pitches(planes));
        let (transformed, sums) = scratch[..sources + sums].split_at_mut(sources);
        // SAFETY: the caller's promise.
        unsafe { self.transform(operands, group, tiles.clone(), transformed) };
        for first in (0..planes.targets).step_by(BLOCK) {
            let targets = first..(first + BLOCK).min(planes.targets);
            for product in &self.products {
                let sources = &transformed[product.source * source_pitch..][..source_pitch];
                let sums = &mut sums[product.sum * sum_pitch..][..sum_pitch];
                // SAFETY: the caller's promise.
                unsafe { self.multiply(operands, product, [group, tiles.len()], targets.clone(), sources, sums) };
            }
            // SAFETY: the caller's promise.
            unsafe { self.store(operands, group, targets, tiles.clone(), sums) };
        }
    }

    /// The group and the tiles of a unit.
    #[inline(always)]
    fn tiles_of(&self, planes: &Planes, unit: usize) -> (usize, Range<usize>) {
        let blocks = self.tile_blocks(planes);
        (unit / blocks, chunk(unit % blocks, TILES, planes.images * self.tiles[0] * self.tiles[1]))
    }

    /// Asks for the sources of some tiles in a channel that comes next.
    ///
    /// # Safety
    /// The source must be alive.
    #[inline(always)]
    unsafe fn ask<T: Element>(&self, operands: &Operands<'_, T>, [group, channel]: [usize; 2], tiles: &Range<usize>) {
        let planes = operands.planes;
        let [height, width] = planes.source_size;
        let ([rows, columns], [sources_of_tile, step]) = (self.tiles, self.ways.sources());
        let of_image = rows * columns;
        for image in tiles.start / of_image..parts_of(tiles.end, of_image) {
            let inside = |tile: usize| tile.clamp(image * of_image, (image + 1) * of_image) - image * of_image;
            let [first, last] = [inside(tiles.start) / columns, inside(tiles.end).div_ceil(columns)];
            let row = |row: usize| (row as isize + self.taps[0].low).clamp(0, height as isize) as usize;
            let [start, end] = [row(step * first) * width, row(step * (last - 1) + sources_of_tile) * width];
            // SAFETY: the caller's promise.
            let sources = unsafe { operands.sources(image, group) };
            ask_for(&sources[channel * height * width..][start..end]);
        }
    }

    /// A product for some targets of a group, summed over the channels: some of them after another, so that the first-level cache
    /// holds them while all panels of weights pass by.
    ///
    /// # Safety
    /// Nothing may write the packed weights, and the machine must have the level.
    #[inline(always)]
    unsafe fn multiply<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        of: &PlaceProduct,
        [group, lanes]: [usize; 2],
        targets: Range<usize>,
        sources: &[f32],
        sums: &mut [f32],
    ) {
        let planes = operands.planes;
        let panels = targets.start / PANEL..parts_of(targets.end, PANEL);
        for first in (0..planes.sources).step_by(CHANNELS) {
            let depth = CHANNELS.min(planes.sources - first);
            let weights = |panel: usize| {
                // SAFETY: the caller's promise.
                let weights = unsafe { operands.weights(group, panel) };
                &weights[(of.weight * (planes.sources + GAP) + first) * PANEL..][..depth * PANEL]
            };
            for panel in panels.clone() {
                if panel + 1 < panels.end {
                    ask_for(weights(panel + 1));
                }
                let product = PanelProduct {
                    isa: planes.isa,
                    weights: weights(panel),
                    panel: PANEL,
                    weight_step: PANEL,
                    source: &sources[first * TILES..],
                    offsets: &self.offsets,
                    depth,
                    lanes,
                    continued: first > 0 || !of.is_first,
                };
                // SAFETY: the caller's promise.
                unsafe { (operands.multiply)(&product, &mut sums[(panel * PANEL - targets.start) * TILES..], TILES) };
            }
        }
    }

    /// Tiles as neighbours in rows.
    #[inline(always)]
    fn runs(&self, tiles: Range<usize>) -> impl Iterator<Item = Run> {
        let [rows, columns] = self.tiles;
        let mut next = tiles.start;
        std::iter::from_fn(move || {
            if next >= tiles.end {
                return None;
            }
            let (line, column) = (next / columns, next % columns);
            let end = columns.min(column + tiles.end - next);
            let run = Run { at: next - tiles.start, image: line / rows, row: line % rows, columns: column..end };
            next += run.columns.len();
            Some(run)
        })
    }

    /// The transformed tiles of all channels: those of a place lie together. Runs are written in whole vectors, each over the excess of
    /// the one before.
    ///
    /// # Safety
    /// Nothing may write the source, and the machine must have the level.
    #[inline(always)]
    unsafe fn transform<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        group: usize,
        tiles: Range<usize>,
        to: &mut [f32],
    ) {
        let planes = operands.planes;
        let ([height, width], [sources_of_tile, step]) = (planes.source_size, self.ways.sources());
        let [pitch, _] = Winograd::pitches(planes);
        let (transform, _) = transforms(planes.isa);
        let mut rows = [0.0f32; ROW * MOST];
        let mut residues: Residues = [[0.0; RESIDUE]; 4 * MOST];
        for channel in 0..planes.sources {
            if channel + AHEAD < planes.sources {
                // SAFETY: the caller's promise.
                unsafe { self.ask(operands, [group, channel + AHEAD], &tiles) };
            }
            for run in self.runs(tiles.clone()) {
                // SAFETY: the caller's promise.
                let source = unsafe { operands.sources(run.image, group) };
                let plane = &source[channel * height * width..][..height * width];
                let counts = [sources_of_tile, step * (run.columns.len() - 1) + sources_of_tile];
                let first =
                    [0, 1].map(|axis| (step * [run.row, run.columns.start][axis]) as isize + self.taps[axis].low);
                let rows = SourceRows {
                    isa: planes.isa,
                    ways: self.ways,
                    sources: Plane::of(plane, width, first, counts, &mut rows),
                    tiles: run.columns.len(),
                    pitch,
                };
                // SAFETY: the caller's promise.
                unsafe { transform(&rows, &mut residues, &mut to[channel * TILES + run.at..]) };
            }
        }
    }

    /// Writes some targets at some tiles, of which these are the sums.
    ///
    /// # Safety
    /// The target must be alive, nothing else may touch these tiles, and the machine must have the level.
    #[inline(always)]
    unsafe fn store<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        group: usize,
        targets: Range<usize>,
        tiles: Range<usize>,
        sums: &[f32],
    ) {
        let planes = operands.planes;
        let ([height, width], [.., side]) = (planes.target_size, self.ways.counts());
        let [_, pitch] = Winograd::pitches(planes);
        let (_, make_targets) = transforms(planes.isa);
        let mut rows = [[0.0f32; TARGET_ROW]; 4];
        for (index, target) in targets.enumerate() {
            let sums =
                Sums { isa: planes.isa, ways: self.ways, sums: &sums[index * TILES..], tiles: tiles.len(), pitch };
            // SAFETY: the caller's promise.
            unsafe { make_targets(&sums, &mut rows) };
            for run in self.runs(tiles.clone()) {
                let plane = operands.target_start(run.image, group, target);
                let columns = side * run.columns.start..(side * run.columns.end).min(width);
                for (index, row) in rows.iter().enumerate().take(side) {
                    let line = side * run.row + index;
                    if line < height {
                        let start = plane + line * width;
                        // SAFETY: these positions are the caller's own.
                        let to = unsafe { operands.target.slice(start + columns.start..start + columns.end) };
                        store(&row[side * run.at..], to);
                    }
                }
            }
        }
    }
}
