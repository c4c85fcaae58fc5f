//! The gradient of 3 x 3 filters by the transposes of Winograd's transforms: tiles of inputs and of 2 x 2 gradients of
//! the output are transformed, multiplied element by element and summed over the tiles of an image, and the sums are
//! transformed once. That takes 16 products where the definition has 36, and 25 with a stride of two.
//!
//! Channels and filters lie in lanes, so that the transforms are sums of vectors, whatever the size of the planes.

use super::axis::Axis;
use super::rows::{load, numbers};
use super::tile::{LANES, Lines, MultiplyPanel, Offsets, PANEL, PanelProduct, Transpose, multiply_panels, transposes};
use super::vector::{Plain, Vector};
use super::ways::{Along, MOST, Near, PlaceProduct, Strided, Taps, WEIGHT_PLACES, WayOfWeights, Ways, products_of};
use super::winograd::{FEWEST, pays};
use super::{Geometry, weight_gradient::BLOCK};
use crate::isa::multiversion;
use crate::vectors::ask_for;
use crate::window::inside;
use crate::{Element, Isa};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};
use std::ops::Range;

/// The fewest tiles of an image that pay, and with a stride: its sums are transformed for themselves.
const FEWEST_TILES: usize = 16;
const FEWEST_STRIDED_TILES: usize = 36;
/// The most tiles that are transformed before they are multiplied; fewer, where each has more positions.
const TILES: usize = 64;
const STRIDED_TILES: usize = 32;
/// Places of the gradients of the weights, and how far apart they lie: not a power of two, or a cache would hold few of them at a time.
const PLACES: usize = WEIGHT_PLACES * WEIGHT_PLACES;
const PLACE_OF_SUMS: usize = BLOCK * BLOCK + LANES;
/// Numbers of a line that is transposed, with what is read in whole vectors.
const LINE: usize = 2 * TILES + 4 * LANES;
/// How many rows ahead of its loading a row is asked for.
const AHEAD: usize = 2;
/// The most positions that the tiles of a rectangle read, with those that are written in vain.
const POSITIONS: usize = 10 * TILES + 16;

#[derive(Debug)]
pub(super) struct WinogradWeights {
    isa: Isa,
    ways: Ways,
    taps: [Taps; 2],
    /// Products along both axes: those of a weight's place one after another.
    products: Vec<PlaceProduct>,
    /// Rectangles of tiles.
    rectangles: Vec<[Range<usize>; 2]>,
    /// The most tiles of a rectangle, and how far apart their places lie.
    pitch: usize,
    /// Where the gradients of each tile lie.
    offsets: Offsets,
}

/// The planes of a block of channels or filters, and which of their positions are read.
struct Positions<'a, T> {
    planes: &'a [T],
    size: [usize; 2],
    first: [isize; 2],
    counts: [usize; 2],
}

impl WinogradWeights {
    /// If the filters are such and it pays, which follows from the sizes of an image.
    pub fn of(isa: Isa, geometry: &Geometry, [rows, columns]: &[Axis; 2]) -> Option<WinogradWeights> {
        let of_weight = |product: &PlaceProduct| product.weight;
        let along = |axis: &Axis| Along::of(std::slice::from_ref(axis));
        let (ways, taps, [fewest, most], products) = match [along(rows)?, along(columns)?] {
            [Along::Near(rows), Along::Near(columns)] => {
                (Ways::Near, [rows, columns], [FEWEST_TILES, TILES], products_of::<Near>(of_weight))
            }
            [Along::Strided(rows), Along::Strided(columns)] => (
                Ways::Strided,
                [rows, columns],
                [FEWEST_STRIDED_TILES, STRIDED_TILES],
                products_of::<Strided>(of_weight),
            ),
            _ => return None,
        };
        let tiles = geometry.output.map(|size| size.div_ceil(2));
        if geometry.channels.min(geometry.filters) < FEWEST
            || tiles[0] * tiles[1] < fewest
            || !pays(geometry.output, products.len())
        {
            return None;
        }
        let across = tiles[1].min(most);
        let down = (most / across).min(tiles[0]);
        let cut = |size: usize, step: usize| (0..size).step_by(step).map(move |at| at..(at + step).min(size));
        let rectangles =
            cut(tiles[0], down).flat_map(|rows| cut(tiles[1], across).map(move |columns| [rows.clone(), columns]));
        Some(WinogradWeights {
            isa,
            ways,
            taps,
            products,
            rectangles: rectangles.collect(),
            pitch: most * BLOCK + LANES,
            offsets: Offsets::new((0..most).map(|tile| tile * BLOCK).collect()),
        })
    }

    /// Numbers of scratch besides the sums: for lines, positions, transformed inputs and gradients, and their sums.
    fn parts_of_scratch(&self) -> [usize; 5] {
        let [places, factors, _] = self.ways.counts();
        let places = [places, factors].map(|count| count * count * self.pitch);
        [LANES * LINE, POSITIONS * BLOCK, places[0], places[1], PLACES * PLACE_OF_SUMS]
    }

    pub fn scratch(&self) -> usize {
        self.parts_of_scratch().iter().sum()
    }

    /// Adds the products of an image's planes: `sums[channel * 9 + tap][filter]`.
    ///
    /// # Safety
    /// The machine must have the level.
    #[inline(always)]
    pub unsafe fn add_image<T: Element>(
        &self,
        geometry: &Geometry,
        [inputs, gradients]: [&[T]; 2],
        scratch: &mut [f32],
        sums: &mut [f32],
        lanes: usize,
    ) {
        let (multiply, transpose): (MultiplyPanel, Transpose) = (multiply_panels(self.isa), transposes(self.isa));
        let (transform, add_weights) = (transform_tiles::select(self.isa), add_weights::select(self.isa));
        let [line_numbers, position_numbers, places, factors, products] = self.parts_of_scratch();
        let (lines, rest) = scratch.split_at_mut(line_numbers);
        let (positions, rest) = rest.split_at_mut(position_numbers);
        let (transformed, rest) = rest.split_at_mut(places);
        let (factors, rest) = rest.split_at_mut(factors);
        let products = &mut rest[..products];
        let channels = inputs.len() / (geometry.input[0] * geometry.input[1]);
        let [sources, step] = self.ways.sources();
        for (index, rectangle) in self.rectangles.iter().enumerate() {
            let counts = [rectangle[0].len(), rectangle[1].len()];
            let [first_row, first_column] = [rectangle[0].start, rectangle[1].start];
            let first = |step: usize, low: [isize; 2]| {
                [(step * first_row) as isize + low[0], (step * first_column) as isize + low[1]]
            };
            let read = Positions {
                planes: inputs,
                size: geometry.input,
                first: first(step, [self.taps[0].low, self.taps[1].low]),
                counts: counts.map(|count| step * (count - 1) + sources),
            };
            read.load(self.isa, transpose, lines, positions);
            let tiles = Tiles { of: self, counts, are_inputs: true, positions, planes: channels };
            // SAFETY: the caller's promise.
            unsafe { transform(&tiles, transformed) };
            let read = Positions {
                planes: gradients,
                size: geometry.output,
                first: first(2, [0; 2]),
                counts: counts.map(|count| 2 * count),
            };
            read.load(self.isa, transpose, lines, positions);
            let tiles = Tiles { of: self, counts, are_inputs: false, positions, planes: lanes };
            // SAFETY: the caller's promise.
            unsafe { transform(&tiles, factors) };
            // The sums of few tiles are best added while a cache has them.
            let at_once = if self.rectangles.len() == 1 { PANEL } else { BLOCK };
            for first in (0..channels).step_by(at_once) {
                let block = first..(first + at_once).min(channels);
                for of in &self.products {
                    for channel in block.clone().step_by(PANEL) {
                        let product = PanelProduct {
                            isa: self.isa,
                            weights: &transformed[of.source * self.pitch + channel..],
                            panel: PANEL,
                            weight_step: BLOCK,
                            source: &factors[of.sum * self.pitch..],
                            offsets: &self.offsets,
                            depth: counts[0] * counts[1],
                            lanes,
                            continued: index > 0 || !of.is_first,
                        };
                        let products = &mut products[of.weight * PLACE_OF_SUMS + channel * BLOCK..];
                        // SAFETY: the caller's promise.
                        unsafe { multiply(&product, products, BLOCK) };
                    }
                }
                if index + 1 == self.rectangles.len() {
                    // SAFETY: the caller's promise.
                    unsafe { add_weights(self, products, &block, lanes, sums) };
                }
            }
        }
    }
}

impl<T: Element> Positions<'_, T> {
    /// Loads them, with zeros outside of the planes: for each position the numbers of all planes, [`BLOCK`] apart.
    #[inline(always)]
    fn load(&self, isa: Isa, transpose: Transpose, lines: &mut [f32], to: &mut [f32]) {
        let Positions { planes, size: [height, width], first, counts } = *self;
        let found = inside(1, first[1], width, counts[1]);
        let plane = height * width;
        for (group, planes) in planes.chunks(LANES * plane).enumerate() {
            for row in 0..counts[0] {
                let at = first[0] + row as isize;
                let is_inside = |at: isize| (0..height as isize).contains(&at) && !found.is_empty();
                let start = |at: isize| at as usize * width + found.start.wrapping_add_signed(first[1]);
                let to = &mut to[row * counts[1] * BLOCK + group * LANES..];
                if !is_inside(at) {
                    clear(to, 0..counts[1]);
                    continue;
                }
                let next = at + AHEAD as isize;
                if row + AHEAD < counts[0] && is_inside(next) {
                    let start = start(next);
                    planes.chunks_exact(plane).for_each(|plane| ask_for(&plane[start..start + found.len()]));
                }
                clear(to, 0..found.start);
                let in_place = numbers(&planes[start(at)..])
                    .filter(|numbers| (LANES - 1) * plane + found.len().next_multiple_of(4) <= numbers.len());
                let (from, pitch) = match in_place {
                    Some(numbers) => (numbers, plane),
                    None => {
                        for (plane, line) in planes.chunks_exact(plane).zip(lines.chunks_exact_mut(LINE)) {
                            load(&plane[start(at)..], &mut line[..found.len()]);
                        }
                        (&lines[..], LINE)
                    }
                };
                let lines = Lines { isa, from, pitch, numbers: found.len(), step: BLOCK };
                // SAFETY: the machine has the level, by the promise of whoever calls `add_image`.
                unsafe { transpose(&lines, &mut to[found.start * BLOCK..]) };
                clear(to, found.end..counts[1]);
            }
        }
    }
}

/// Zeros at some positions of as many planes as a vector has lanes.
#[inline(always)]
fn clear(to: &mut [f32], positions: Range<usize>) {
    for position in positions {
        to[position * BLOCK..][..LANES].copy_from_slice(&[0.0; LANES]);
    }
}

/// A rectangle of tiles of so many planes: of inputs, or of gradients of the output.
struct Tiles<'a> {
    of: &'a WinogradWeights,
    counts: [usize; 2],
    are_inputs: bool,
    positions: &'a [f32],
    planes: usize,
}

multiversion! {
    /// The transformed tiles: those of a place lie together.
    fn transform_tiles(tiles: &Tiles<'_>, to: &mut [f32]) {
        let Tiles { of, counts: [down, across], are_inputs, planes, .. } = *tiles;
        let ([sources, step], [places, factors, _]) = (of.ways.sources(), of.ways.counts());
        let ([side, step], places) = if are_inputs { ([sources, step], places) } else { ([2, 2], factors) };
        let positions = (step * (down - 1) + side) * (step * (across - 1) + side);
        assert!(planes <= BLOCK && positions * BLOCK <= tiles.positions.len(), "positions of tiles");
        assert!(down * across * BLOCK <= of.pitch && places * places * of.pitch <= to.len(), "places of tiles");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match of.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => tiles.transform::<__m512>(to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => tiles.transform::<__m256>(to.as_mut_ptr()),
                _ => tiles.transform::<Plain<true>>(to.as_mut_ptr()),
            }
        }
    }
}

impl Tiles<'_> {
    #[inline(always)]
    unsafe fn transform<V: Vector>(&self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.of.ways, self.are_inputs) {
                (Ways::Near, true) => self.transform_by::<V, Near, true>(Near, to),
                (Ways::Near, false) => self.transform_by::<V, Near, false>(Near, to),
                (_, true) => self.transform_by::<V, Strided, true>(Strided, to),
                (_, false) => self.transform_by::<V, Strided, false>(Strided, to),
            }
        }
    }

    /// Along columns, then along rows.
    #[inline(always)]
    unsafe fn transform_by<V: Vector, W: WayOfWeights, const INPUTS: bool>(&self, way: W, to: *mut f32) {
        let [down, across] = self.counts;
        let (side, step) = if INPUTS { (W::SOURCES, W::STEP) } else { (2, 2) };
        let places = if INPUTS { W::PLACES } else { W::SUMS };
        let pitch = step * (across - 1) + side;
        for tile in 0..down * across {
            let corner = (step * (tile / across) * pitch + step * (tile % across)) * BLOCK;
            for lane in (0..self.planes).step_by(V::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = self.positions.as_ptr().add(corner + lane);
                    let to = to.add(tile * BLOCK + lane);
                    let mut lines = [[V::all(0.0); MOST]; MOST];
                    for column in 0..side {
                        let mut numbers = [V::all(0.0); MOST];
                        for row in 0..side {
                            numbers[row] = V::load(from.add((row * pitch + column) * BLOCK));
                        }
                        let numbers = if INPUTS { way.places(numbers) } else { way.factors(numbers) };
                        for row in 0..places {
                            lines[row][column] = numbers[row];
                        }
                    }
                    for row in 0..places {
                        let numbers = if INPUTS { way.places(lines[row]) } else { way.factors(lines[row]) };
                        for column in 0..places {
                            numbers[column].store(to.add((places * row + column) * self.of.pitch));
                        }
                    }
                }
            }
        }
    }
}

multiversion! {
    /// Adds what the sums of 16 places are to those of 9 weights.
    fn add_weights(of: &WinogradWeights, products: &[f32], channels: &Range<usize>, lanes: usize, sums: &mut [f32]) {
        assert!(channels.end.max(lanes) <= BLOCK && PLACES * PLACE_OF_SUMS <= products.len(), "sums of places");
        assert!(channels.end * 9 * lanes <= sums.len(), "sums of weights");
        assert!(of.taps.iter().flat_map(|taps| taps.indices).all(|index| index < 3), "filters of 3 x 3");
        let (from, to) = (products.as_ptr(), sums.as_mut_ptr());
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match (of.isa, of.ways) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, Ways::Near) => of.add::<__m512, _>(Near, from, channels, lanes, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, _) => of.add::<__m512, _>(Strided, from, channels, lanes, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, Ways::Near) => of.add::<__m256, _>(Near, from, channels, lanes, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, _) => of.add::<__m256, _>(Strided, from, channels, lanes, to),
                (_, Ways::Near) => of.add::<Plain<true>, _>(Near, from, channels, lanes, to),
                _ => of.add::<Plain<true>, _>(Strided, from, channels, lanes, to),
            }
        }
    }
}

impl WinogradWeights {
    #[inline(always)]
    unsafe fn add<V: Vector, W: WayOfWeights>(
        &self,
        way: W,
        products: *const f32,
        channels: &Range<usize>,
        lanes: usize,
        sums: *mut f32,
    ) {
        let [row_taps, column_taps] = [self.taps[0].indices, self.taps[1].indices];
        for channel in channels.clone() {
            for lane in (0..lanes).step_by(V::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = products.add(channel * BLOCK + lane);
                    let to = sums.add(channel * 9 * lanes + lane);
                    let mut lines = [[V::all(0.0); WEIGHT_PLACES]; 3];
                    for column in 0..WEIGHT_PLACES {
                        let mut numbers = [V::all(0.0); WEIGHT_PLACES];
                        for (row, number) in numbers.iter_mut().enumerate() {
                            *number = V::load(from.add((WEIGHT_PLACES * row + column) * PLACE_OF_SUMS));
                        }
                        for (line, number) in lines.iter_mut().zip(way.weights(numbers)) {
                            line[column] = number;
                        }
                    }
                    for (line, row_tap) in lines.into_iter().zip(row_taps) {
                        for (number, column_tap) in way.weights(line).into_iter().zip(column_taps) {
                            let to = to.add((3 * row_tap + column_tap) * lanes);
                            V::load(to).plus(number).store(to);
                        }
                    }
                }
            }
        }
    }
}
