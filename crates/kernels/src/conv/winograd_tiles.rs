//! The transforms of Winograd's method for tiles in lanes: a row of tiles at a time.

use super::plane::Plane;
use super::tile::{LANES, PANEL};
use super::vector::{Plain, Vector};
use super::ways::{MOST, Near, Strided, Taps, WEIGHT_PLACES, Way, Ways};
use crate::Isa;
use crate::isa::multiversion;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

/// The most tiles of a row.
pub(super) const TILES: usize = 4 * LANES;
/// Numbers of a residue of a row of sources, of a row of them, with what is read in whole vectors, and of a row of targets.
pub(super) const RESIDUE: usize = TILES + LANES;
pub(super) const ROW: usize = 4 * RESIDUE;
pub(super) const TARGET_ROW: usize = 4 * TILES;

/// Scratch for the sources of every residue of every place.
pub(super) type Residues = [[f32; RESIDUE]; 4 * MOST];

/// A row of tiles: its sources.
pub(super) struct SourceRows<'a> {
    pub isa: Isa,
    pub ways: Ways,
    pub sources: Plane<'a>,
    pub tiles: usize,
    /// How far apart places lie.
    pub pitch: usize,
}

/// Tiles of a target: the sums of all places, and how far apart they lie.
pub(super) struct Sums<'a> {
    pub isa: Isa,
    pub ways: Ways,
    pub sums: &'a [f32],
    pub tiles: usize,
    pub pitch: usize,
}

/// The filters of 3 x 3 from a source to the targets of a panel, one a line.
pub(super) struct Filters<'a> {
    pub isa: Isa,
    pub ways: Ways,
    pub taps: &'a [Taps; 2],
    pub lines: &'a [[f32; FILTER]; PANEL],
    /// How far apart places lie.
    pub pitch: usize,
}

/// Numbers of a filter, with what is read in whole vectors.
pub(super) const FILTER: usize = 12;

/// Functions of a level.
pub(super) type TransformFilters = unsafe fn(&Filters<'_>, &mut [f32]);
pub(super) type TransformSources = unsafe fn(&SourceRows<'_>, &mut Residues, &mut [f32]);
pub(super) type MakeTargets = unsafe fn(&Sums<'_>, &mut [[f32; TARGET_ROW]; 4]);

pub(super) fn transforms(isa: Isa) -> (TransformSources, MakeTargets) {
    (transform_sources::select(isa), make_targets::select(isa))
}

pub(super) fn transforms_filters(isa: Isa) -> TransformFilters {
    transform_filters::select(isa)
}

multiversion! {
    /// Transforms filters: a panel of numbers for each place.
    fn transform_filters(filters: &Filters<'_>, to: &mut [f32]) {
        assert!((WEIGHT_PLACES * WEIGHT_PLACES - 1) * filters.pitch + PANEL <= to.len(), "places of filters");
        assert!(filters.taps.iter().flat_map(|taps| taps.indices).all(|index| index < 3), "filters of 3 x 3");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match filters.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::Avx2 => filters.transform::<__m256>(to.as_mut_ptr()),
                _ => filters.transform::<Plain<false>>(to.as_mut_ptr()),
            }
        }
    }
}

multiversion! {
    /// Transforms a row of tiles. It is written in whole vectors: up to the next multiple of [`LANES`].
    fn transform_sources(rows: &SourceRows<'_>, residues: &mut Residues, to: &mut [f32]) {
        let places = rows.ways.counts()[0];
        assert!(rows.tiles <= TILES && rows.sources.is_whole(), "tiles of a row");
        assert!((places * places - 1) * rows.pitch + rows.tiles.next_multiple_of(LANES) <= to.len(), "places of a row");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match rows.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => rows.transform::<__m512>(residues, to.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => rows.transform::<__m256>(residues, to.as_mut_ptr()),
                _ => rows.transform::<Plain<false>>(residues, to.as_mut_ptr()),
            }
        }
    }
}

multiversion! {
    /// Makes rows of targets, in whole vectors.
    fn make_targets(sums: &Sums<'_>, rows: &mut [[f32; TARGET_ROW]; 4]) {
        let places = sums.ways.counts()[1];
        assert!(sums.tiles <= TILES, "tiles of a row");
        assert!((places * places - 1) * sums.pitch + sums.tiles.next_multiple_of(LANES) <= sums.sums.len(), "sums of a row");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match sums.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => sums.targets::<__m512>(rows),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => sums.targets::<__m256>(rows),
                _ => sums.targets::<Plain<false>>(rows),
            }
        }
    }
}

impl Filters<'_> {
    #[inline(always)]
    unsafe fn transform<V: Vector>(&self, to: *mut f32) {
        for lane in (0..PANEL).step_by(V::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut weights = [V::all(0.0); FILTER];
                for first in (0..FILTER).step_by(4) {
                    let four = V::transposed(self.lines[lane].as_ptr().add(first), FILTER);
                    weights[first..first + 4].copy_from_slice(&four);
                }
                let mut columns = [[V::all(0.0); 3]; WEIGHT_PLACES];
                for (row, &row_tap) in self.taps[0].indices.iter().enumerate() {
                    let [a, b, c] = self.taps[1].indices;
                    let line = [weights[3 * row_tap + a], weights[3 * row_tap + b], weights[3 * row_tap + c]];
                    for (column, weights) in self.ways.weights(line).into_iter().enumerate() {
                        columns[column][row] = weights;
                    }
                }
                for (column, line) in columns.into_iter().enumerate() {
                    for (row, weights) in self.ways.weights(line).into_iter().enumerate() {
                        weights.store(to.add((WEIGHT_PLACES * row + column) * self.pitch + lane));
                    }
                }
            }
        }
    }
}

impl SourceRows<'_> {
    #[inline(always)]
    unsafe fn transform<V: Vector>(&self, residues: &mut Residues, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.ways {
                Ways::Near => self.transform_by::<V, _>([Near; 2], residues, to),
                Ways::Strided => self.transform_by::<V, _>([Strided; 2], residues, to),
                Ways::Phased(ways) => self.transform_by::<V, _>(ways, residues, to),
            }
        }
    }

    /// Along columns, whose numbers are then parted by their place in a tile, and along rows.
    #[inline(always)]
    unsafe fn transform_by<V: Vector, W: Way>(&self, ways: [W; 2], residues: &mut Residues, to: *mut f32) {
        let residues = residues.as_mut_ptr().cast::<f32>();
        let mut lines = [None; MOST];
        for (row, line) in lines.iter_mut().enumerate().take(W::SOURCES) {
            *line = self.sources.row(row);
        }
        // A tile reads from the next one too.
        for tile in (0..self.tiles + 1).step_by(V::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut vectors = [[V::all(0.0); 4]; MOST];
                for vector in 0..W::STEP {
                    let column = W::STEP * tile + vector * V::LANES;
                    let [start, end] = self.sources.lanes::<V>(column);
                    let mut sources = [V::all(0.0); MOST];
                    for row in 0..W::SOURCES {
                        if let Some(line) = lines[row] {
                            sources[row] = V::load_some(line.wrapping_add(column), start, end);
                        }
                    }
                    let places = ways[0].places(sources);
                    for place in 0..W::PLACES {
                        vectors[place][vector] = places[place];
                    }
                }
                for place in 0..W::PLACES {
                    let parts = parted_by_step::<V, W>(vectors[place]);
                    for residue in 0..W::STEP {
                        parts[residue].store(residues.add((4 * place + residue) * RESIDUE + tile));
                    }
                }
            }
        }
        for tile in (0..self.tiles).step_by(V::LANES) {
            for row in 0..W::PLACES {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut sources = [V::all(0.0); MOST];
                    for index in 0..W::SOURCES {
                        let residue = residues.add((4 * row + index % W::STEP) * RESIDUE);
                        sources[index] = V::load(residue.add(tile + index / W::STEP));
                    }
                    let places = ways[1].places(sources);
                    for column in 0..W::PLACES {
                        places[column].store(to.add((row * W::PLACES + column) * self.pitch + tile));
                    }
                }
            }
        }
    }
}

/// Numbers that follow each other, by their place in a tile.
#[inline(always)]
unsafe fn parted_by_step<V: Vector, W: Way>([a, b, c, d]: [V; 4]) -> [V; 4] {
    // SAFETY: whoever has vectors has a machine that has them.
    unsafe {
        let [even, odd] = a.parted(b);
        if W::STEP == 2 {
            return [even, odd, V::all(0.0), V::all(0.0)];
        }
        let [more_even, more_odd] = c.parted(d);
        let ([first, third], [second, fourth]) = (even.parted(more_even), odd.parted(more_odd));
        [first, second, third, fourth]
    }
}

impl Sums<'_> {
    #[inline(always)]
    unsafe fn targets<V: Vector>(&self, rows: &mut [[f32; TARGET_ROW]; 4]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.ways {
                Ways::Near => self.targets_by::<V, _>([Near; 2], rows),
                Ways::Strided => self.targets_by::<V, _>([Strided; 2], rows),
                Ways::Phased(ways) => self.targets_by::<V, _>(ways, rows),
            }
        }
    }

    /// Along columns, then along rows, whose targets are joined.
    #[inline(always)]
    unsafe fn targets_by<V: Vector, W: Way>(&self, ways: [W; 2], rows: &mut [[f32; TARGET_ROW]; 4]) {
        for tile in (0..self.tiles).step_by(V::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut lines = [[V::all(0.0); MOST]; 4];
                for column in 0..W::SUMS {
                    let mut sums = [V::all(0.0); MOST];
                    for row in 0..W::SUMS {
                        sums[row] = V::load(self.sums.as_ptr().add((row * W::SUMS + column) * self.pitch + tile));
                    }
                    let targets = ways[0].targets(sums);
                    for line in 0..W::TARGETS {
                        lines[line][column] = targets[line];
                    }
                }
                for line in 0..W::TARGETS {
                    let [a, b, c, d] = ways[1].targets(lines[line]);
                    let to = rows[line].as_mut_ptr().add(W::TARGETS * tile);
                    if W::TARGETS == 2 {
                        store_all(a.joined(b), to);
                    } else {
                        let (outer, inner) = (a.joined(c), b.joined(d));
                        store_all(outer[0].joined(inner[0]), to);
                        store_all(outer[1].joined(inner[1]), to.add(2 * V::LANES));
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store_all<V: Vector>(vectors: [V; 2], to: *mut f32) {
    for (index, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { vector.store(to.add(index * V::LANES)) };
    }
}
