//! The gradient of 3 x 3 filters by the transposes of Winograd's transforms: tiles of 4 x 4 inputs and of 2 x 2 gradients of
//! the output are transformed, multiplied element by element and summed over the tiles of an image, and the sums are
//! transformed once. That takes 16 products where the definition has 36.
//!
//! Channels and filters lie in lanes, so that the transforms are sums of vectors, whatever the size of the planes.

use super::axis::Axis;
use super::rows::{load, zero};
use super::tile::{LANES, Lines, MultiplyPanel, Offsets, PANEL, PanelProduct, Transpose, multiply_panels, transposes};
use super::vector::{Plain, Vector};
use super::winograd::{FEWEST, PLACES, neighbours, pays};
use super::{Geometry, weight_gradient::BLOCK};
use crate::isa::multiversion;
use crate::window::inside;
use crate::{Element, Isa};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};
use std::ops::Range;

/// The most tiles that are transformed before they are multiplied.
const TILES: usize = 64;
/// The fewest tiles of an image that pay: its sums are transformed for themselves.
const FEWEST_TILES: usize = 36;
/// How far apart places lie: not a power of two, or a cache would hold few of them at a time.
const PLACE: usize = TILES * BLOCK + LANES;
const PLACE_OF_SUMS: usize = BLOCK * BLOCK + LANES;
/// Numbers of a line that is transposed, with what is read in whole vectors.
const LINE: usize = 2 * TILES + 4 * LANES;
/// The most positions that the tiles of a rectangle read, with those that are written in vain.
const POSITIONS: usize = 10 * TILES + 16;

#[derive(Debug)]
pub(super) struct WinogradWeights {
    isa: Isa,
    /// Rectangles of tiles.
    rectangles: Vec<[Range<usize>; 2]>,
    /// The input that output 0 reads under the first tap.
    low: [isize; 2],
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
        let tiles = geometry.output.map(|size| size.div_ceil(2));
        if geometry.channels.min(geometry.filters) < FEWEST
            || tiles[0] * tiles[1] < FEWEST_TILES
            || !pays(geometry.output)
        {
            return None;
        }
        neighbours(rows)?;
        neighbours(columns)?;
        let across = tiles[1].min(TILES);
        let down = (TILES / across).min(tiles[0]);
        let cut = |size: usize, step: usize| (0..size).step_by(step).map(move |at| at..(at + step).min(size));
        let rectangles =
            cut(tiles[0], down).flat_map(|rows| cut(tiles[1], across).map(move |columns| [rows.clone(), columns]));
        let low = |axis: &Axis| axis.taps.iter().map(|tap| tap.offset).min();
        Some(WinogradWeights {
            isa,
            rectangles: rectangles.collect(),
            low: [low(rows)?, low(columns)?],
            offsets: Offsets::new((0..TILES).map(|tile| tile * BLOCK).collect()),
        })
    }

    /// Numbers of scratch besides the sums: for lines, positions, transformed inputs and gradients, and their sums.
    pub fn scratch() -> usize {
        LANES * LINE + POSITIONS * BLOCK + PLACES * (2 * PLACE + PLACE_OF_SUMS)
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
        let (lines, rest) = scratch[..WinogradWeights::scratch()].split_at_mut(LANES * LINE);
        let (positions, rest) = rest.split_at_mut(POSITIONS * BLOCK);
        let (transformed, rest) = rest.split_at_mut(PLACES * PLACE);
        let (factors, products) = rest.split_at_mut(PLACES * PLACE);
        let channels = inputs.len() / (geometry.input[0] * geometry.input[1]);
        for (index, [rows, columns]) in self.rectangles.iter().enumerate() {
            let (down, across) = (rows.len(), columns.len());
            let first = [rows.start, columns.start].map(|tile| (2 * tile) as isize);
            let read = Positions {
                planes: inputs,
                size: geometry.input,
                first: [first[0] + self.low[0], first[1] + self.low[1]],
                counts: [2 * down + 2, 2 * across + 2],
            };
            read.load(self.isa, transpose, lines, positions);
            let tiles = Tiles { isa: self.isa, counts: [down, across], side: 4, positions, planes: channels };
            // SAFETY: the caller's promise.
            unsafe { transform(&tiles, transformed) };
            let read = Positions { planes: gradients, size: geometry.output, first, counts: [2 * down, 2 * across] };
            read.load(self.isa, transpose, lines, positions);
            let tiles = Tiles { isa: self.isa, counts: [down, across], side: 2, positions, planes: lanes };
            // SAFETY: the caller's promise.
            unsafe { transform(&tiles, factors) };
            for place in 0..PLACES {
                for channel in (0..channels).step_by(PANEL) {
                    let product = PanelProduct {
                        isa: self.isa,
                        weights: &transformed[place * PLACE + channel..],
                        panel: PANEL,
                        weight_step: BLOCK,
                        source: &factors[place * PLACE..],
                        offsets: &self.offsets,
                        depth: down * across,
                        lanes,
                        continued: index > 0,
                    };
                    let products = &mut products[place * PLACE_OF_SUMS + channel * BLOCK..];
                    // SAFETY: the caller's promise.
                    unsafe { multiply(&product, products, BLOCK) };
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { add_weights(self.isa, products, [channels, lanes], sums) };
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
                let is_inside = (0..height as isize).contains(&at) && !found.is_empty();
                for (plane, line) in planes.chunks_exact(plane).zip(lines.chunks_exact_mut(LINE)) {
                    if !is_inside {
                        zero(line, counts[1]);
                        continue;
                    }
                    let start = at as usize * width + found.start.wrapping_add_signed(first[1]);
                    zero(line, found.start);
                    load(&plane[start..], &mut line[found.clone()]);
                    zero(&mut line[found.end..], counts[1] - found.end);
                }
                let lines = Lines { isa, from: lines, pitch: LINE, numbers: counts[1], step: BLOCK };
                // SAFETY: the machine has the level, by the promise of whoever calls `add_image`.
                unsafe { transpose(&lines, &mut to[row * counts[1] * BLOCK + group * LANES..]) };
            }
        }
    }
}

/// Tiles of `side` x `side` positions that lie two apart, of so many planes.
struct Tiles<'a> {
    isa: Isa,
    counts: [usize; 2],
    side: usize,
    positions: &'a [f32],
    planes: usize,
}

multiversion! {
    /// The transformed tiles: those of a place lie together.
    fn transform_tiles(tiles: &Tiles<'_>, to: &mut [f32]) {
        let Tiles { counts: [down, across], side, planes, .. } = *tiles;
        let positions = (2 * down + side - 2) * (2 * across + side - 2);
        assert!(planes <= BLOCK && positions * BLOCK <= tiles.positions.len(), "positions of tiles");
        assert!(down * across <= TILES && PLACES * PLACE <= to.len(), "places of tiles");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match (tiles.isa, side) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, 4) => tiles.transform::<__m512, 4>(of_inputs, to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, _) => tiles.transform::<__m512, 2>(of_targets, to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, 4) => tiles.transform::<__m256, 4>(of_inputs, to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, _) => tiles.transform::<__m256, 2>(of_targets, to.as_mut_ptr()),
                (_, 4) => tiles.transform::<Plain<true>, 4>(of_inputs, to.as_mut_ptr()),
                _ => tiles.transform::<Plain<true>, 2>(of_targets, to.as_mut_ptr()),
            }
        }
    }
}

impl Tiles<'_> {
    /// Along columns, then along rows.
    #[inline(always)]
    unsafe fn transform<V: Vector, const SIDE: usize>(&self, along: impl Fn([V; SIDE]) -> [V; 4], to: *mut f32) {
        let [down, across] = self.counts;
        let pitch = 2 * across + SIDE - 2;
        for tile in 0..down * across {
            let corner = (2 * (tile / across) * pitch + 2 * (tile % across)) * BLOCK;
            for lane in (0..self.planes).step_by(V::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = self.positions.as_ptr().add(corner + lane);
                    let to = to.add(tile * BLOCK + lane);
                    let mut lines = [[V::all(0.0); SIDE]; 4];
                    for column in 0..SIDE {
                        let mut numbers = [V::all(0.0); SIDE];
                        for (row, number) in numbers.iter_mut().enumerate() {
                            *number = V::load(from.add((row * pitch + column) * BLOCK));
                        }
                        for (line, number) in lines.iter_mut().zip(along(numbers)) {
                            line[column] = number;
                        }
                    }
                    for (row, line) in lines.into_iter().enumerate() {
                        for (column, number) in along(line).into_iter().enumerate() {
                            number.store(to.add((4 * row + column) * PLACE));
                        }
                    }
                }
            }
        }
    }
}

/// Four inputs along one axis.
#[inline(always)]
fn of_inputs<V: Vector>([a, b, c, d]: [V; 4]) -> [V; 4] {
    // SAFETY: whoever has vectors has a machine that has them.
    unsafe { [a.minus(c), b.plus(c), c.minus(b), b.minus(d)] }
}

/// Two gradients of targets along one axis: the transpose of what makes targets of sums.
#[inline(always)]
fn of_targets<V: Vector>([a, b]: [V; 2]) -> [V; 4] {
    // SAFETY: whoever has vectors has a machine that has them.
    unsafe { [a, a.plus(b), a.minus(b), V::all(0.0).minus(b)] }
}

/// The gradients of three weights along one axis: the transpose of what transforms weights.
#[inline(always)]
fn of_sums<V: Vector>([a, b, c, d]: [V; 4]) -> [V; 3] {
    // SAFETY: whoever has vectors has a machine that has them.
    unsafe {
        let half = V::all(0.5);
        let outer = half.times(b.plus(c));
        [a.plus(outer), half.times(b.minus(c)), outer.plus(d)]
    }
}

multiversion! {
    /// Adds what the sums of 16 places are to those of 9 weights.
    fn add_weights(isa: Isa, products: &[f32], sizes: [usize; 2], sums: &mut [f32]) {
        let [channels, lanes] = sizes;
        assert!(channels.max(lanes) <= BLOCK && PLACES * PLACE_OF_SUMS <= products.len(), "sums of places");
        assert!(channels * 9 * lanes <= sums.len(), "sums of weights");
        let (from, to) = (products.as_ptr(), sums.as_mut_ptr());
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => add_weights_of::<__m512>(from, sizes, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => add_weights_of::<__m256>(from, sizes, to),
                _ => add_weights_of::<Plain<true>>(from, sizes, to),
            }
        }
    }
}

#[inline(always)]
unsafe fn add_weights_of<V: Vector>(products: *const f32, [channels, lanes]: [usize; 2], sums: *mut f32) {
    for channel in 0..channels {
        for lane in (0..lanes).step_by(V::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let from = products.add(channel * BLOCK + lane);
                let to = sums.add(channel * 9 * lanes + lane);
                let mut lines = [[V::all(0.0); 4]; 3];
                for column in 0..4 {
                    let mut numbers = [V::all(0.0); 4];
                    for (row, number) in numbers.iter_mut().enumerate() {
                        *number = V::load(from.add((4 * row + column) * PLACE_OF_SUMS));
                    }
                    for (line, number) in lines.iter_mut().zip(of_sums(numbers)) {
                        line[column] = number;
                    }
                }
                for (row, line) in lines.into_iter().enumerate() {
                    for (column, number) in of_sums(line).into_iter().enumerate() {
                        let to = to.add((3 * row + column) * lanes);
                        V::load(to).plus(number).store(to);
                    }
                }
            }
        }
    }
}
