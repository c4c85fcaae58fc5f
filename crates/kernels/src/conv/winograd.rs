//! Correlation with filters of 3 x 3 by Winograd's F(2 x 2, 3 x 3): tiles of 4 x 4 sources and the weights are transformed,
//! multiplied element by element and summed over the channels, and tiles of 2 x 2 targets are made of the sums. That takes
//! 16 products where the definition has 36.
//!
//! The transforms add and subtract, with no other factors than one half, so the result is off by little more than the
//! definition's own rounding: to first order an element differs from the exact one by at most `(9 c + 100) * 2^-24 * 9 * s`, where `c` is
//! the number of channels and `s` the sum over them of the largest source times the largest weight of each. Bounds
//! aside, errors on random numbers are less than four times those of the definition (`tests.rs` asks for that).
//! A source that is not finite makes all targets of its tiles so, also those that the definition would spare.

use super::axis::Axis;
use super::correlation::{Operands, Planes};
use super::rows::{joined, load, parted, store, zero};
use super::tile::{LANES, Offsets, PANEL, PanelProduct};
use crate::vectors::ask_for;
use crate::window::inside;
use crate::{Element, chunk, parts_of};
use std::ops::Range;

/// Numbers of a transformed tile.
pub(super) const PLACES: usize = 16;
/// Tiles of a unit: they lie in lanes.
const TILES: usize = 4 * LANES;
/// Channels of the source that are multiplied at a time.
const CHANNELS: usize = 64;
/// Target planes whose sums are held at a time.
const BLOCK: usize = 128;
/// The fewest channels on either side for which it is taken; where it begins to pay was not measured.
pub(super) const FEWEST: usize = 32;
/// Sources of a row of tiles, with what is read in whole vectors.
const ROW: usize = 2 * TILES + 2 * LANES;

#[derive(Debug)]
pub(super) struct Winograd {
    /// Tiles of a plane.
    tiles: [usize; 2],
    /// The source that target 0 reads under the nearest tap.
    low: [isize; 2],
    /// Elements of the filter from the nearest to the farthest.
    taps: [[usize; 3]; 2],
    offsets: Offsets,
}

/// Neighbouring tiles of a row, and where they lie among those of a unit.
struct Run {
    at: usize,
    image: usize,
    row: usize,
    columns: Range<usize>,
}

/// Elements of a filter from the nearest to the farthest, if they are three neighbours.
pub(super) fn neighbours(axis: &Axis) -> Option<[usize; 3]> {
    let mut taps = axis.taps.clone();
    taps.sort_by_key(|tap| tap.offset);
    let are_neighbours = taps.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset);
    let taps: [usize; 3] = taps.iter().map(|tap| tap.index).collect::<Vec<_>>().try_into().ok()?;
    (axis.step == 1 && axis.source_step == 1 && are_neighbours).then_some(taps)
}

/// Whether tiles of planes of this size pay. Those that reach over the edge are in vain: a fifth of the products must be saved
/// at least.
pub(super) fn pays(size: [usize; 2]) -> bool {
    let [rows, columns] = size.map(|size| size.div_ceil(2));
    20 * rows * columns <= 9 * size[0] * size[1]
}

impl Winograd {
    /// If the filters are such and it pays.
    pub fn of(planes: &Planes, [vertical, horizontal]: &[Vec<Axis>; 2]) -> Option<Winograd> {
        let ([rows], [columns]) = (&vertical[..], &horizontal[..]) else { return None };
        let tiles = planes.target_size.map(|size| size.div_ceil(2));
        if planes.sources.min(planes.targets) < FEWEST || !pays(planes.target_size) {
            return None;
        }
        let low = |axis: &Axis| axis.taps.iter().map(|tap| tap.offset).min();
        Some(Winograd {
            tiles,
            low: [low(rows)?, low(columns)?],
            taps: [neighbours(rows)?, neighbours(columns)?],
            offsets: Offsets::new((0..planes.sources.min(CHANNELS)).map(|channel| channel * TILES).collect()),
        })
    }

    /// Packed weights of a panel for each of its planes.
    pub fn panel_depth(planes: &Planes) -> usize {
        PLACES * planes.sources
    }

    fn tile_blocks(&self, planes: &Planes) -> usize {
        parts_of(planes.images * self.tiles[0] * self.tiles[1], TILES)
    }

    /// Units of all targets; each is a part.
    pub fn units(&self, planes: &Planes) -> usize {
        planes.groups * self.tile_blocks(planes)
    }

    /// Numbers of scratch for the transformed sources, and for the sums. Places lie not by powers of two apart, or a cache would
    /// hold few of them at a time.
    pub fn scratch(planes: &Planes) -> [usize; 2] {
        let targets = planes.targets.min(BLOCK).next_multiple_of(PANEL);
        [PLACES * (planes.sources * TILES + LANES), PLACES * (targets * TILES + LANES)]
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
        for source in 0..planes.sources {
            let mut columns = [[[0.0; PANEL]; 3]; 4];
            let filters = planes.filters(weights, [group, panel, source]);
            for (row, &row_tap) in self.taps[0].iter().enumerate() {
                let mut line = [[0.0; PANEL]; 3];
                for (to, &column_tap) in line.iter_mut().zip(&self.taps[1]) {
                    *to = filters[3 * row_tap + column_tap];
                }
                for (column, numbers) in transformed_filter(&line).iter().enumerate() {
                    columns[column][row] = *numbers;
                }
            }
            for (column, line) in columns.iter().enumerate() {
                for (row, numbers) in transformed_filter(line).iter().enumerate() {
                    let place = 4 * row + column;
                    packed[(place * planes.sources + source) * PANEL..][..PANEL].copy_from_slice(numbers);
                }
            }
        }
    }

    /// All target planes of a group at some tiles.
    ///
    /// # Safety
    /// The operands must be alive, and these tiles of the targets nobody else's.
    #[inline(always)]
    pub unsafe fn unit<T: Element>(&self, operands: &Operands<'_, T>, unit: usize, scratch: &mut [f32]) {
        let planes = operands.planes;
        let (group, tiles) = (unit / self.tile_blocks(planes), unit % self.tile_blocks(planes));
        let tiles = chunk(tiles, TILES, planes.images * self.tiles[0] * self.tiles[1]);
        let [sources, sums] = Winograd::scratch(planes);
        let (transformed, sums) = scratch[..sources + sums].split_at_mut(sources);
        for channel in 0..planes.sources {
            let to = &mut transformed[channel * TILES..];
            // SAFETY: the caller's promise.
            unsafe { self.transform(operands, [group, channel], tiles.clone(), to, sources / PLACES) };
        }
        for first in (0..planes.targets).step_by(BLOCK) {
            let targets = first..(first + BLOCK).min(planes.targets);
            let place_sums = sums.len() / PLACES;
            for place in 0..PLACES {
                let sums = &mut sums[place * place_sums..];
                // SAFETY: the caller's promise.
                unsafe { self.multiply(operands, [group, place, tiles.len()], targets.clone(), transformed, sums) };
            }
            for (index, target) in targets.enumerate() {
                let places: [&[f32; TILES]; PLACES] = std::array::from_fn(|place| {
                    sums[place * place_sums + index * TILES..].first_chunk().expect("the sums of a target")
                });
                // SAFETY: the caller's promise.
                unsafe { self.store(operands, [group, target], tiles.clone(), places) };
            }
        }
    }

    /// The products of a place for some targets of a group, summed over the channels: some of them after another, so that the
    /// first-level cache holds them while all panels of weights pass by.
    ///
    /// # Safety
    /// Nothing may write the packed weights, and the machine must have the level.
    #[inline(always)]
    unsafe fn multiply<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        [group, place, lanes]: [usize; 3],
        targets: Range<usize>,
        transformed: &[f32],
        sums: &mut [f32],
    ) {
        let planes = operands.planes;
        let sources = &transformed[place * (transformed.len() / PLACES)..];
        let panels = targets.start / PANEL..parts_of(targets.end, PANEL);
        for first in (0..planes.sources).step_by(CHANNELS) {
            let depth = CHANNELS.min(planes.sources - first);
            let weights = |panel: usize| {
                // SAFETY: the caller's promise.
                let weights = unsafe { operands.weights(group, panel) };
                &weights[(place * planes.sources + first) * PANEL..][..depth * PANEL]
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
                    continued: first > 0,
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

    /// The transformed tiles of a channel: those of a place lie together, and places so far apart.
    ///
    /// # Safety
    /// Nothing may write the source.
    #[inline(always)]
    unsafe fn transform<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        [group, channel]: [usize; 2],
        tiles: Range<usize>,
        to: &mut [f32],
        pitch: usize,
    ) {
        let [height, width] = operands.planes.source_size;
        // Runs are written in whole vectors, each over the excess of the one before.
        let mut places = [[0.0f32; TILES + LANES]; PLACES];
        let mut rows = [[0.0f32; ROW]; 4];
        for run in self.runs(tiles) {
            // SAFETY: the caller's promise.
            let source = unsafe { operands.sources(run.image, group) };
            let plane = &source[channel * height * width..][..height * width];
            let count = 2 * run.columns.len() + 2;
            let first = (2 * run.columns.start) as isize + self.low[1];
            let found = inside(1, first, width, count);
            for (index, row) in rows.iter_mut().enumerate() {
                let line = (2 * run.row + index) as isize + self.low[0];
                if !(0..height as isize).contains(&line) || found.is_empty() {
                    zero(row, count);
                } else {
                    let column = found.start.wrapping_add_signed(first);
                    zero(row, found.start);
                    load(&plane[line as usize * width + column..], &mut row[found.clone()]);
                    zero(&mut row[found.end..], count - found.end);
                }
            }
            for start in (0..count).step_by(LANES) {
                let mut lines = [[0.0; LANES]; 4];
                for (line, row) in lines.iter_mut().zip(&rows) {
                    line.copy_from_slice(&row[start..start + LANES]);
                }
                for (line, row) in transformed_tile(&lines).iter().zip(&mut rows) {
                    row[start..start + LANES].copy_from_slice(line);
                }
            }
            for tile in (0..run.columns.len()).step_by(LANES) {
                for (row, places) in rows.iter().zip(places.as_chunks_mut::<4>().0) {
                    let near = row[2 * tile..].first_chunk::<{ 2 * LANES }>().expect("a whole row");
                    let far = row[2 * tile + 2..].first_chunk::<{ 2 * LANES }>().expect("a whole row");
                    let ([a, b], [c, d]) = (parted(near), parted(far));
                    for (place, numbers) in places.iter_mut().zip(&transformed_tile(&[a, b, c, d])) {
                        place[run.at + tile..][..LANES].copy_from_slice(numbers);
                    }
                }
            }
        }
        for (place, numbers) in places.iter().enumerate() {
            to[place * pitch..][..TILES].copy_from_slice(&numbers[..TILES]);
        }
    }

    /// Writes the targets of some tiles of a plane, of which these are the sums.
    ///
    /// # Safety
    /// The target must be alive, and nothing else may touch these tiles.
    #[inline(always)]
    unsafe fn store<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        [group, target]: [usize; 2],
        tiles: Range<usize>,
        places: [&[f32; TILES]; PLACES],
    ) {
        let [height, width] = operands.planes.target_size;
        let mut rows = [[0.0f32; 2 * TILES]; 2];
        for start in (0..TILES).step_by(LANES) {
            let mut lines = [[[0.0; LANES]; 4]; 2];
            for column in 0..4 {
                let mut sums = [[0.0; LANES]; 4];
                for (row, sums) in sums.iter_mut().enumerate() {
                    sums.copy_from_slice(&places[4 * row + column][start..start + LANES]);
                }
                [lines[0][column], lines[1][column]] = targets_of(&sums);
            }
            for (line, row) in lines.iter().zip(&mut rows) {
                row[2 * start..][..2 * LANES].copy_from_slice(&joined(&targets_of(line)));
            }
        }
        for run in self.runs(tiles) {
            let plane = operands.target_start(run.image, group, target);
            let columns = 2 * run.columns.start..(2 * run.columns.end).min(width);
            for (index, row) in rows.iter().enumerate() {
                let line = 2 * run.row + index;
                if line < height {
                    let start = plane + line * width;
                    // SAFETY: these positions are the caller's own.
                    let to = unsafe { operands.target.slice(start + columns.start..start + columns.end) };
                    store(&row[2 * run.at..], to);
                }
            }
        }
    }
}

/// Four sources of a tile along one axis, lane by lane.
#[inline(always)]
fn transformed_tile<const N: usize>(sources: &[[f32; N]; 4]) -> [[f32; N]; 4] {
    let mut places = [[0.0; N]; 4];
    for lane in 0..N {
        places[0][lane] = sources[0][lane] - sources[2][lane];
        places[1][lane] = sources[1][lane] + sources[2][lane];
        places[2][lane] = sources[2][lane] - sources[1][lane];
        places[3][lane] = sources[1][lane] - sources[3][lane];
    }
    places
}

/// Three weights of a filter along one axis.
#[inline(always)]
fn transformed_filter<const N: usize>(weights: &[[f32; N]; 3]) -> [[f32; N]; 4] {
    let mut places = [weights[0], weights[0], weights[0], weights[2]];
    for lane in 0..N {
        let (outer, inner) = (0.5 * (weights[0][lane] + weights[2][lane]), 0.5 * weights[1][lane]);
        places[1][lane] = outer + inner;
        places[2][lane] = outer - inner;
    }
    places
}

/// Two targets of four sums along one axis.
#[inline(always)]
fn targets_of<const N: usize>(sums: &[[f32; N]; 4]) -> [[f32; N]; 2] {
    let mut targets = [[0.0; N]; 2];
    for lane in 0..N {
        targets[0][lane] = sums[0][lane] + sums[1][lane] + sums[2][lane];
        targets[1][lane] = sums[1][lane] - sums[2][lane] - sums[3][lane];
    }
    targets
}
