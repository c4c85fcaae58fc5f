//! The gradient of a convolution with respect to its weights: a sum over images and positions.

use super::gather::{Axis, gather};
use super::tile::{Factors, LANES, Lanes, multiply_add};
use super::{BLOCK, Geometry, PART_PRODUCTS, ROWS, chunk_positions};
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, parts_of};
use std::ops::Range;
use std::sync::Arc;

/// Parts to aim for: where the weights alone are fewer blocks, the positions are split too.
const PARTS: usize = 64;
/// Below so many filters, lanes run along the positions and not along the filters.
const FEW_FILTERS: usize = 8;
/// The most rows of a tile.
const TILE_ROWS: usize = 8;
/// Elements of a part of [`SumPartials`].
const PART_ELEMENTS: usize = 16 * 1024;

/// How the gradient of the weights is cut up: fixed by the problem.
#[derive(Debug)]
pub struct WeightGradientPlan {
    isa: Isa,
    geometry: Geometry,
    axes: [Axis; 2],
    /// Weights of one filter.
    depth: usize,
    /// Positions that are gathered at once, and such chunks in an image.
    positions: usize,
    chunks_per_image: usize,
    /// Ranges of chunks, over all images, whose sums are kept apart and added at the end.
    splits: usize,
}

impl WeightGradientPlan {
    /// The plan for these sizes.
    pub fn new(isa: Isa, geometry: &Geometry) -> Arc<WeightGradientPlan> {
        let depth = geometry.channels * geometry.taps();
        let plane = geometry.output[0] * geometry.output[1];
        let positions = chunk_positions(depth, plane).max(1);
        let chunks_per_image = parts_of(plane, positions);
        let products = geometry.filters.min(BLOCK) * depth.min(ROWS) * geometry.images * plane;
        let blocks = geometry.groups * parts_of(geometry.filters, BLOCK) * parts_of(depth, ROWS);
        let splits = parts_of(products, PART_PRODUCTS).min(parts_of(PARTS, blocks.max(1))).max(1);
        let axes = [geometry.axis(0).forward(), geometry.axis(1).forward()];
        Arc::new(WeightGradientPlan { isa, geometry: *geometry, axes, depth, positions, chunks_per_image, splits })
    }

    /// Elements of scratch for the sums of the splits.
    pub fn partials(&self) -> usize {
        self.splits * self.weights()
    }

    fn weights(&self) -> usize {
        self.geometry.groups * self.geometry.filters * self.depth
    }

    fn filter_blocks(&self) -> usize {
        parts_of(self.geometry.filters, BLOCK)
    }

    fn depth_blocks(&self) -> usize {
        parts_of(self.depth, ROWS)
    }

    /// The chunks of a split.
    fn chunks(&self, split: usize) -> Range<usize> {
        let total = self.geometry.images * self.chunks_per_image;
        split * total / self.splits..(split + 1) * total / self.splits
    }

    #[inline(always)]
    fn has_few_filters(&self) -> bool {
        self.geometry.filters < FEW_FILTERS
    }

    /// The filters of a block as they lie in scratch.
    fn padded_filters(&self) -> usize {
        self.geometry.filters.min(BLOCK).next_multiple_of(LANES)
    }

    /// Numbers of scratch for the gathered inputs, the output's gradients, and the sums.
    fn scratch(&self) -> [usize; 3] {
        let rows = self.depth.min(ROWS).next_multiple_of(TILE_ROWS);
        [rows * self.positions, self.padded_filters() * self.positions, rows * self.padded_filters()]
    }
}

/// Sums over the chunks of each split: one gradient of the weights for each, in f32.
pub struct WeightGradient<T> {
    plan: Arc<WeightGradientPlan>,
    x: In<T>,
    g: In<T>,
    partials: Out<f32>,
    body: unsafe fn(&WeightGradient<T>, usize, &mut [f32]),
}

impl<T: Element> WeightGradient<T> {
    /// Of dense inputs and gradients of the output, to scratch of [`WeightGradientPlan::partials`] elements.
    pub fn new(plan: &Arc<WeightGradientPlan>, x: In<T>, g: In<T>, partials: Out<f32>) -> WeightGradient<T> {
        WeightGradient { plan: plan.clone(), x, g, partials, body: block_of::select(plan.isa) }
    }
}

impl<T: Element> Job for WeightGradient<T> {
    fn parts(&self) -> usize {
        let plan = &self.plan;
        plan.splits * plan.geometry.groups * plan.filter_blocks() * plan.depth_blocks()
    }

    fn worker_scratch(&self) -> usize {
        self.plan.scratch().iter().sum::<usize>() * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own block of the sums of its split, and the machine has
        // the level, since whoever built the plan took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// A part: a block of filters by a block of their weights, over the chunks of a split.
    fn block_of<T: Element>(job: &WeightGradient<T>, part: usize, scratch: &mut [f32]) {
        let plan = &*job.plan;
        let Geometry { groups, channels, filters, input, output, .. } = plan.geometry;
        let (part, depth_block) = (part / plan.depth_blocks(), part % plan.depth_blocks());
        let (part, filter_block) = (part / plan.filter_blocks(), part % plan.filter_blocks());
        let (split, group) = (part / groups, part % groups);
        let depths = chunk(depth_block, ROWS, plan.depth);
        let block = chunk(filter_block, BLOCK, filters);
        let (input, output) = (input[0] * input[1], output[0] * output[1]);
        let [gathered, gradients, sums] = plan.scratch();
        let (gathered, rest) = scratch.split_at_mut(gathered);
        let (gradients, rest) = rest.split_at_mut(gradients);
        let sums = &mut rest[..sums];
        sums.fill(0.0);
        for at in plan.chunks(split) {
            let (image, at) = (at / plan.chunks_per_image, at % plan.chunks_per_image);
            let positions = chunk(at, plan.positions, output);
            let (x_start, g_start) = ((image * groups + group) * channels, (image * groups + group) * filters);
            // SAFETY: nothing writes the operands while this job runs.
            let (x, g) = unsafe {
                let g_start = g_start + block.start;
                (
                    job.x.slice(x_start * input..(x_start + channels) * input),
                    job.g.slice(g_start * output..(g_start + block.len()) * output),
                )
            };
            for (row, depth) in gathered.chunks_exact_mut(plan.positions).zip(depths.clone()) {
                let [rows, columns] = &plan.axes;
                let (line, column) = (depth / columns.taps.len(), depth % columns.taps.len());
                let (channel, line) = (line / rows.taps.len(), line % rows.taps.len());
                let taps = [rows.taps[line], columns.taps[column]];
                gather(&x[channel * input..][..input], [rows, columns], taps, positions.clone(), row);
            }
            let planes = g.chunks_exact(output).map(|plane| &plane[positions.clone()]);
            if plan.has_few_filters() {
                load_rows(planes, plan.positions, gradients);
                plan.add_dots(gathered, gradients, depths.len(), positions.len(), sums);
            } else {
                load_columns(planes, plan.padded_filters(), gradients);
                match plan.isa {
                    Isa::Avx512 | Isa::Avx512Bf16 => {
                        plan.add_products::<TILE_ROWS>(gathered, gradients, depths.len(), positions.len(), sums);
                    }
                    _ => plan.add_products::<4>(gathered, gradients, depths.len(), positions.len(), sums),
                }
            }
        }
        for (index, filter) in block.enumerate() {
            let start = split * plan.weights() + (group * filters + filter) * plan.depth;
            // SAFETY: these weights of this filter, in the sums of this split, are this part's own.
            let partial = unsafe { job.partials.slice(start + depths.start..start + depths.end) };
            for (to, row) in partial.iter_mut().zip(sums.chunks_exact(plan.padded_filters())) {
                *to = row[index];
            }
        }
    }
}

impl WeightGradientPlan {
    /// Adds the products to the sums, with the filters in lanes.
    #[inline(always)]
    fn add_products<const TILE: usize>(
        &self,
        gathered: &[f32],
        gradients: &[f32],
        depths: usize,
        positions: usize,
        sums: &mut [f32],
    ) {
        let pitch = self.padded_filters();
        for row in (0..depths).step_by(TILE) {
            // Rows past the last depth hold what was left in scratch; their sums are not read.
            let data = &gathered[row * self.positions..];
            let factors = Factors { data, depth_step: 1, row_step: self.positions };
            for lane in (0..pitch).step_by(LANES) {
                let lanes = Lanes { data: &gradients[lane..], depth_step: pitch };
                multiply_add::<TILE, LANES>(factors, lanes, positions, &mut sums[row * pitch + lane..], pitch);
            }
        }
    }

    /// Adds the products to the sums, with the positions in lanes.
    #[inline(always)]
    fn add_dots(&self, gathered: &[f32], gradients: &[f32], depths: usize, positions: usize, sums: &mut [f32]) {
        let rows = gathered.chunks_exact(self.positions).zip(sums.chunks_exact_mut(self.padded_filters()));
        for (row, sums) in rows.take(depths) {
            let filters = gradients.chunks_exact(self.positions).take(self.geometry.filters);
            for (gradient, sum) in filters.zip(sums) {
                *sum += lanes::dot(&row[..positions], &gradient[..positions]);
            }
        }
    }
}

/// Loads planes as rows.
#[inline(always)]
fn load_rows<'a, T: Element>(planes: impl Iterator<Item = &'a [T]>, pitch: usize, rows: &mut [f32]) {
    for (row, plane) in rows.chunks_exact_mut(pitch).zip(planes) {
        for (to, from) in row.iter_mut().zip(plane) {
            *to = from.to_f32();
        }
    }
}

/// Loads planes as columns.
#[inline(always)]
fn load_columns<'a, T: Element>(planes: impl Iterator<Item = &'a [T]>, pitch: usize, columns: &mut [f32]) {
    for (index, plane) in planes.enumerate() {
        for (row, from) in columns.chunks_exact_mut(pitch).zip(plane) {
            row[index] = from.to_f32();
        }
    }
}

/// Adds the sums of the splits, in their order.
pub struct SumPartials<T> {
    partials: In<f32>,
    y: Out<T>,
    body: unsafe fn(&SumPartials<T>, usize),
}

impl<T: Element> SumPartials<T> {
    /// From what [`WeightGradient`] wrote to the gradient of the weights.
    pub fn new(plan: &Arc<WeightGradientPlan>, partials: In<f32>, y: Out<T>) -> SumPartials<T> {
        SumPartials { partials, y, body: sums_of::select(plan.isa) }
    }
}

impl<T: Element> Job for SumPartials<T> {
    fn parts(&self) -> usize {
        parts_of(self.y.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own elements, and the machine has the level.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The elements of a part, a register's worth after another.
    fn sums_of<T: Element>(job: &SumPartials<T>, part: usize) {
        const STRIP: usize = 256;
        let range = chunk(part, PART_ELEMENTS, job.y.len());
        for start in range.clone().step_by(STRIP) {
            let strip = start..(start + STRIP).min(range.end);
            let mut sums = [0.0; STRIP];
            for split in (0..job.partials.len()).step_by(job.y.len()) {
                // SAFETY: nothing writes the sums of the splits while this job runs.
                let partial = unsafe { job.partials.slice(split + strip.start..split + strip.end) };
                for (sum, partial) in sums.iter_mut().zip(partial) {
                    *sum += partial;
                }
            }
            // SAFETY: these elements are this part's own.
            for (to, sum) in unsafe { job.y.slice(strip) }.iter_mut().zip(sums) {
                *to = T::from_f32(sum);
            }
        }
    }
}
