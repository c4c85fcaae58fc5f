//! The gradient of a convolution with respect to its weights: a sum over images and positions.
//!
//! Images are added in their order, whatever the cut, so a batch that comes in pieces gives the bits of the whole.

use super::ahead::Ahead;
use super::axis::Axis;
use super::direct::{rectangle, rectangles};
use super::frame::Frame;
use super::plane::Plane;
use super::rows::{load, store, zero};
use super::slide::{Dots, SIDE, SlideDots, slides_dots};
use super::tile::{DOTS, LANES, Lines, PANEL, Product, RowsProduct, Transpose, products, transposes};
use super::ways::neighbours;
use super::winograd_weights::WinogradWeights;
use super::{APART, Geometry, PART_PRODUCTS};
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use std::ops::Range;
use std::sync::Arc;

/// The most filters of a unit: more of them share a frame. Winograd's way has fewer.
const FILTERS: usize = 128;
pub(super) const BLOCK: usize = 64;
/// With so many units, twice as many filters share one.
const UNITS: usize = 16;
/// Positions of a rectangle, about.
const POSITIONS: usize = 512;
/// The same of planes that filters slide over.
const SLID_POSITIONS: usize = 4096;
/// Weights of one filter in a unit, about.
const DEPTH: usize = 576;
/// Numbers of a frame, about: what a second-level cache can hold besides gradients and sums.
const FRAME: usize = 48 * 1024;
/// Numbers of a row that are transposed at a time.
const LINE: usize = 64;
/// Below so many filters, lanes run along the positions and not along the filters.
const FEW_FILTERS: usize = 8;

/// How the gradient of the weights is cut up: fixed by the problem.
#[derive(Debug)]
pub struct WeightGradientPlan {
    isa: Isa,
    geometry: Geometry,
    axes: [Axis; 2],
    frame: Frame,
    /// Elements of a filter that meet an input at all.
    taps: usize,
    rectangles: Vec<[Range<usize>; 2]>,
    /// Filters and channels of a unit.
    filters: usize,
    channels: usize,
    /// Where the inputs of each weight of a unit lie, with some of the last once more.
    offsets: Vec<usize>,
    /// Positions of the largest rectangle.
    positions: usize,
    /// Whether there are few filters, of 3 x 3, and their inputs are neighbours.
    slides: bool,
    /// If it is found in fewer products.
    winograd: Option<WinogradWeights>,
}

impl WeightGradientPlan {
    /// The plan for these sizes.
    pub fn new(isa: Isa, geometry: &Geometry) -> Arc<WeightGradientPlan> {
        let axes = [geometry.axis(0).forward(), geometry.axis(1).forward()];
        let channels = (DEPTH / geometry.taps()).clamp(1, geometry.channels.max(1));
        let counts = axes.each_ref().map(|axis| axis.count);
        let frame_of = |size: [usize; 2]| Frame::new(axes.each_ref().map(std::slice::from_ref), size);
        let slides = geometry.filters < FEW_FILTERS
            && axes.iter().all(|axis| axis.source_step == 1 && neighbours::<SIDE>(axis) == Some([0, 1, 2]));
        let [mut height, width] = rectangle(counts, if slides { SLID_POSITIONS } else { POSITIONS });
        while height > 1 && channels * frame_of([height, width]).channel() > FRAME {
            height = height.div_ceil(2);
        }
        let winograd = WinogradWeights::of(isa, geometry, &axes);
        let frame = frame_of([height, width]);
        let taps = frame.taps(axes.each_ref());
        let mut offsets: Vec<usize> = (0..channels)
            .flat_map(|channel| taps.iter().map(move |tap| (channel, tap)))
            .map(|(channel, tap)| channel * frame.channel() + tap)
            .collect();
        let last = offsets.last().copied().unwrap_or(0);
        offsets.resize(offsets.len().next_multiple_of(PANEL * DOTS), last);
        let positions = height * width.next_multiple_of(LANES);
        let blocks = |filters| geometry.filters / filters * parts_of(geometry.channels, channels);
        Arc::new(WeightGradientPlan {
            isa,
            geometry: *geometry,
            taps: taps.len(),
            filters: match winograd {
                Some(_) => BLOCK,
                None if blocks(2 * FILTERS) >= UNITS => 2 * FILTERS,
                None => FILTERS,
            },
            rectangles: rectangles(counts, [height, width]),
            axes,
            channels,
            slides,
            frame,
            offsets,
            positions,
            winograd,
        })
    }

    /// Elements of scratch for the sums of the images, where each has its own; none where they are summed in place.
    pub fn partials(&self) -> usize {
        if self.is_apart() { self.geometry.images * self.weights() } else { 0 }
    }

    /// Whether every image has a sum of its own.
    fn is_apart(&self) -> bool {
        self.geometry.images > 0 && self.weights() <= APART
    }

    fn weights(&self) -> usize {
        self.geometry.groups * self.geometry.filters * self.depth()
    }

    /// Weights of one filter.
    #[inline(always)]
    fn depth(&self) -> usize {
        self.geometry.channels * self.geometry.taps()
    }

    fn filter_blocks(&self) -> usize {
        parts_of(self.geometry.filters, self.filters)
    }

    fn channel_blocks(&self) -> usize {
        parts_of(self.geometry.channels, self.channels)
    }

    fn units(&self) -> usize {
        let times = if self.is_apart() { self.geometry.images } else { 1 };
        times * self.geometry.groups * self.filter_blocks() * self.channel_blocks()
    }

    fn units_per_part(&self) -> usize {
        let Geometry { filters, output, .. } = self.geometry;
        let products = filters.min(self.filters) * self.offsets.len() * output[0] * output[1];
        parts_of(PART_PRODUCTS, products.max(1))
    }

    #[inline(always)]
    fn has_few_filters(&self) -> bool {
        self.geometry.filters < FEW_FILTERS
    }

    /// Weights of a filter in a unit that meet an input.
    #[inline(always)]
    fn depth_of(&self, unit: &Unit) -> usize {
        unit.channels.len() * self.taps
    }

    /// Sums of one weight, for each filter of a block.
    fn lanes(&self) -> usize {
        match self.has_few_filters() {
            true => self.geometry.filters,
            false => self.geometry.filters.min(self.filters).next_multiple_of(LANES),
        }
    }

    /// Numbers of scratch for the inputs, the output's gradients, and the sums.
    fn scratch(&self) -> [usize; 3] {
        // With what is read when the last of them are transposed.
        let sums = self.lanes() * (self.offsets.len() + LANES);
        if let Some(winograd) = &self.winograd {
            return [winograd.scratch(), 0, sums];
        }
        let frame = self.channels * self.frame.channel() + Frame::SLACK;
        let gradients = if self.has_few_filters() { LANES } else { LANES * LINE + 4 * self.lanes() };
        [frame, self.lanes() * self.positions + gradients, sums]
    }
}

/// Sums over positions: those of each image for itself, or of all images after another.
pub struct WeightGradient<T> {
    plan: Arc<WeightGradientPlan>,
    x: In<T>,
    g: In<T>,
    partials: Out<f32>,
    y: Out<T>,
    accumulate: bool,
    body: unsafe fn(&WeightGradient<T>, usize, &mut [f32]),
}

impl<T: Element> WeightGradient<T> {
    /// Of dense inputs and gradients of the output: to scratch of [`WeightGradientPlan::partials`] elements, which
    /// [`super::SumImages`] adds up; or if it has none, to the result.
    pub fn new(plan: &Arc<WeightGradientPlan>, x: In<T>, g: In<T>, partials: Out<f32>, y: Out<T>) -> WeightGradient<T> {
        WeightGradient { plan: plan.clone(), x, g, partials, y, accumulate: false, body: units_of::select(plan.isa) }
    }

    /// Going on from what the result holds, where images are summed in place.
    pub fn accumulating(self, accumulate: bool) -> WeightGradient<T> {
        WeightGradient { accumulate, ..self }
    }
}

impl<T: Element> Job for WeightGradient<T> {
    fn parts(&self) -> usize {
        parts_of(self.plan.units(), self.plan.units_per_part())
    }

    fn worker_scratch(&self) -> usize {
        self.plan.scratch().iter().sum::<usize>() * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own weights, of its own images, and the machine has the
        // level, since whoever built the plan took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

/// A block of filters by a block of their weights.
struct Unit {
    index: usize,
    images: Range<usize>,
    group: usize,
    filters: Range<usize>,
    channels: Range<usize>,
}

multiversion! {
    /// The units of a part.
    fn units_of<T: Element>(job: &WeightGradient<T>, part: usize, scratch: &mut [f32]) {
        let plan = &*job.plan;
        for index in chunk(part, plan.units_per_part(), plan.units()) {
            let unit = plan.unit(index);
            let [frame, gradients, sums] = plan.scratch();
            let (frame, rest) = scratch.split_at_mut(frame);
            let (gradients, rest) = rest.split_at_mut(gradients);
            let sums = &mut rest[..sums];
            sums.fill(0.0);
            if job.accumulate && !plan.is_apart() {
                // SAFETY: these weights are the unit's own.
                unsafe { plan.exchange(&unit, &job.y, 0, |kept, weight| sums[kept] = weight.to_f32()) };
            }
            for image in unit.images.clone() {
                // SAFETY: nothing writes the operands while this job runs.
                unsafe { job.add_image(&unit, image, frame, gradients, sums) };
            }
            // SAFETY: these weights are the unit's own.
            unsafe {
                match plan.is_apart() {
                    true => plan.store(&unit, sums, &job.partials, unit.images.start * plan.weights(), false),
                    false => plan.store(&unit, sums, &job.y, 0, job.accumulate),
                }
            }
        }
    }
}

impl<T: Element> WeightGradient<T> {
    /// Adds the products of an image.
    ///
    /// # Safety
    /// The operands must be alive, and nothing may write them.
    #[inline(always)]
    unsafe fn add_image(&self, unit: &Unit, image: usize, frame: &mut [f32], gradients: &mut [f32], sums: &mut [f32]) {
        let plan = &*self.plan;
        let Geometry { groups, channels, filters, input, output, .. } = plan.geometry;
        let (input, width, output) = (input[0] * input[1], output[1], output[0] * output[1]);
        let planes = |planes: usize, block: &Range<usize>, size: usize| {
            let start = (image * groups + unit.group) * planes;
            (start + block.start) * size..(start + block.end) * size
        };
        // SAFETY: the caller's promise.
        let (x, g) = unsafe {
            (
                self.x.slice(planes(channels, &unit.channels, input)),
                self.g.slice(planes(filters, &unit.filters, output)),
            )
        };
        if let Some(winograd) = &plan.winograd {
            // SAFETY: the machine has the level.
            return unsafe { winograd.add_image(&plan.geometry, [x, g], frame, sums, plan.lanes()) };
        }
        if plan.slides {
            // SAFETY: the caller's promise.
            return unsafe { self.add_slid(unit, image, [x, g], [frame, gradients], sums) };
        }
        let depth = plan.depth_of(unit);
        let (multiply, at_once): (Product, usize) = match plan.has_few_filters() {
            true => (products(plan.isa, false), depth.max(1)),
            false => (products(plan.isa, true), PANEL),
        };
        for (at, [rows, columns]) in plan.rectangles.iter().enumerate() {
            // SAFETY: the caller's promise.
            let mut ahead = unsafe { self.ahead(unit, [image, at], parts_of(depth, at_once)) };
            ahead.iter_mut().for_each(Ahead::ask);
            for channel in 0..unit.channels.len() {
                let frame = &mut frame[channel * plan.frame.channel()..];
                plan.frame.fill(&x[channel * input..], [rows, columns], frame);
            }
            let g = (0..unit.filters.len()).map(|plane| &g[plane * output + rows.start * width + columns.start..]);
            match plan.has_few_filters() {
                true => {
                    load_rows(g, [rows.len(), columns.len()], [width, columns.len().next_multiple_of(LANES)], gradients)
                }
                false => load_columns(plan.isa, g, [rows.len(), columns.len()], width, plan.lanes(), gradients),
            }
            let gradients = if plan.has_few_filters() { &gradients[..] } else { &gradients[LANES * LINE..] };
            for first in (0..depth).step_by(at_once) {
                ahead.iter_mut().for_each(Ahead::ask);
                let product = RowsProduct {
                    isa: plan.isa,
                    source: frame,
                    offsets: &plan.offsets[first..],
                    depth: at_once.min(depth - first),
                    rows: rows.len(),
                    columns: columns.len(),
                    pitch: plan.frame.pitch,
                    lanes: plan.lanes(),
                };
                // SAFETY: the machine has the level.
                unsafe { multiply(&product, gradients, &mut sums[first * plan.lanes()..]) };
            }
        }
    }

    /// Adds the products of an image whose planes filters slide over.
    ///
    /// # Safety
    /// As for [`WeightGradient::add_image`].
    #[inline(always)]
    unsafe fn add_slid(
        &self,
        unit: &Unit,
        image: usize,
        [x, g]: [&[T]; 2],
        [frame, gradients]: [&mut [f32]; 2],
        sums: &mut [f32],
    ) {
        let plan = &*self.plan;
        let Geometry { input, output, .. } = plan.geometry;
        let dots_of: SlideDots = slides_dots(plan.isa);
        for (at, [rows, columns]) in plan.rectangles.iter().enumerate() {
            // SAFETY: the caller's promise.
            let ahead = unsafe { self.ahead(unit, [image, at], 1) };
            let next = [ahead[0].rows(input[1]), ahead[1].rows(output[1])];
            let counts = [rows.len(), columns.len()];
            let corners = [plan.frame.first([rows, columns]), [rows.start as isize, columns.start as isize]];
            for (channel, x) in x.chunks_exact(input[0] * input[1]).enumerate() {
                for (filter, g) in g.chunks_exact(output[0] * output[1]).enumerate() {
                    let of = Dots {
                        isa: plan.isa,
                        inputs: Plane::of(x, input[1], corners[0], counts.map(|count| count + SIDE - 1), frame),
                        gradients: Plane::of(g, output[1], corners[1], counts, gradients),
                        rows: rows.len(),
                        columns: columns.len(),
                        next,
                    };
                    let mut dots = [0.0; DOTS];
                    // SAFETY: the machine has the level.
                    unsafe { dots_of(&of, &mut dots) };
                    for (index, dot) in dots.iter().enumerate() {
                        sums[(channel * DOTS + index) * plan.lanes() + filter] += dot;
                    }
                }
            }
        }
    }

    /// The planes of the rectangle that comes next, in so many portions.
    ///
    /// # Safety
    /// The operands must be alive, and nothing may write them.
    #[inline(always)]
    unsafe fn ahead(&self, unit: &Unit, [image, at]: [usize; 2], portions: usize) -> [Ahead<'_, T>; 2] {
        let plan = &*self.plan;
        let Geometry { groups, channels, filters, input, output, .. } = plan.geometry;
        let next;
        let (unit, image, at) = if at + 1 < plan.rectangles.len() {
            (unit, image, at + 1)
        } else if image + 1 < unit.images.end {
            (unit, image + 1, 0)
        } else if unit.index + 1 < plan.units() {
            next = plan.unit(unit.index + 1);
            (&next, next.images.start, 0)
        } else {
            return [Ahead::new(&[], [0; 3], 1), Ahead::new(&[], [0; 3], 1)];
        };
        let rows = &plan.rectangles[at][0];
        let run = |of: &In<T>, [planes, first, count]: [usize; 3], rows: Range<usize>, [height, width]: [usize; 2]| {
            let start = ((image * groups + unit.group) * planes + first) * height * width;
            // SAFETY: the caller's promise.
            let planes = unsafe { of.slice(start..start + count * height * width) };
            Ahead::new(&planes[rows.start * width..], [count, rows.len() * width, height * width], portions)
        };
        [
            run(&self.x, [channels, unit.channels.start, unit.channels.len()], plan.frame.source_rows(rows), input),
            run(&self.g, [filters, unit.filters.start, unit.filters.len()], rows.clone(), output),
        ]
    }
}

impl WeightGradientPlan {
    #[inline(always)]
    fn unit(&self, index: usize) -> Unit {
        let (block, channel_block) = (index / self.channel_blocks(), index % self.channel_blocks());
        let (block, filter_block) = (block / self.filter_blocks(), block % self.filter_blocks());
        let (image, group) = (block / self.geometry.groups, block % self.geometry.groups);
        Unit {
            index,
            images: if self.is_apart() { image..image + 1 } else { 0..self.geometry.images },
            group,
            filters: chunk(filter_block, self.filters, self.geometry.filters),
            channels: chunk(channel_block, self.channels, self.geometry.channels),
        }
    }

    /// Writes the sums of a unit to the gradient that begins there. Weights that no input meets have none: they are zero,
    /// or what they were.
    ///
    /// # Safety
    /// The result must be alive, and these weights nobody else's.
    #[inline(always)]
    unsafe fn store<U: Element>(&self, unit: &Unit, sums: &[f32], to: &Out<U>, start: usize, continued: bool) {
        if self.taps < self.geometry.taps() && !continued {
            for filter in unit.filters.clone() {
                // SAFETY: the caller's promise.
                unsafe { to.slice(self.weights_of(unit, filter, start)) }.fill(U::from_f32(0.0));
            }
        }
        if self.taps == self.geometry.taps() && !self.has_few_filters() {
            // SAFETY: the caller's promise.
            return unsafe { self.store_rows(unit, sums, to, start) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.exchange(unit, to, start, |kept, weight| *weight = U::from_f32(sums[kept])) };
    }

    /// Writes the sums of a unit where each weight has one: filters are rows there, and lanes here.
    ///
    /// # Safety
    /// The result must be alive, these weights nobody else's, and the machine must have the level.
    #[inline(always)]
    unsafe fn store_rows<U: Element>(&self, unit: &Unit, sums: &[f32], to: &Out<U>, start: usize) {
        let (lanes, depth) = (self.lanes(), self.depth_of(unit));
        let transpose: Transpose = transposes(self.isa);
        let mut square = [0.0; LANES * LANES];
        for lane in (0..unit.filters.len()).step_by(LANES) {
            let to_first = self.weights_of(unit, unit.filters.start + lane, start).start;
            for first in (0..depth).step_by(LANES) {
                let weights = first..depth.min(first + LANES);
                let lines = Lines {
                    isa: self.isa,
                    from: &sums[first * lanes + lane..],
                    pitch: lanes,
                    numbers: LANES.min(lanes - lane),
                    step: LANES,
                };
                // SAFETY: the caller's promise.
                unsafe { transpose(&lines, &mut square) };
                for (filter, row) in square.as_chunks::<LANES>().0.iter().enumerate().take(unit.filters.len() - lane) {
                    let first = to_first + filter * self.depth() + weights.start;
                    // SAFETY: the caller's promise.
                    store(row, unsafe { to.slice(first..first + weights.len()) });
                }
            }
        }
    }

    /// The weights of a filter that are a unit's.
    #[inline(always)]
    fn weights_of(&self, unit: &Unit, filter: usize, start: usize) -> Range<usize> {
        let (start, taps) =
            (start + (unit.group * self.geometry.filters + filter) * self.depth(), self.geometry.taps());
        start + unit.channels.start * taps..start + unit.channels.end * taps
    }

    /// Calls `visit` with every weight of a unit and the place of its sum.
    ///
    /// # Safety
    /// The weights must be alive, and nobody else's.
    #[inline(always)]
    unsafe fn exchange<U: Element>(
        &self,
        unit: &Unit,
        to: &Out<U>,
        start: usize,
        mut visit: impl FnMut(usize, &mut U),
    ) {
        let (kept, lanes) = (self.taps, self.lanes());
        let [rows, columns] = &self.axes;
        for (lane, filter) in unit.filters.clone().enumerate() {
            // SAFETY: the caller's promise.
            let to = unsafe { to.slice(self.weights_of(unit, filter, start)) };
            for (channel, to) in to.chunks_exact_mut(self.geometry.taps()).enumerate() {
                let mut at = channel * kept;
                for row in &rows.taps {
                    for column in &columns.taps {
                        visit(at * lanes + lane, &mut to[row.index * self.geometry.kernel[1] + column.index]);
                        at += 1;
                    }
                }
            }
        }
    }
}

/// Loads rectangles of planes of that width, one after another: each row so far from the last, with zeros at its end.
#[inline(always)]
fn load_rows<'a, T: Element>(
    planes: impl Iterator<Item = &'a [T]>,
    [rows, columns]: [usize; 2],
    [width, pitch]: [usize; 2],
    to: &mut [f32],
) {
    // Whole rows are one.
    let [rows, columns, pitch] =
        if columns == width && columns == pitch { [1, rows * columns, rows * columns] } else { [rows, columns, pitch] };
    let mut at = 0;
    for plane in planes {
        for row in 0..rows {
            load(&plane[row * width..], &mut to[at..at + columns]);
            zero(&mut to[at + columns..], pitch - columns);
            at += pitch;
        }
    }
}

/// Loads rectangles of planes of that width as columns: for each position the numbers of all planes, `step` apart. Pieces of rows
/// of a vector's worth of planes are transposed at a time, in the first scratch.
#[inline(always)]
fn load_columns<'a, T: Element>(
    isa: Isa,
    planes: impl Iterator<Item = &'a [T]> + Clone,
    [rows, columns]: [usize; 2],
    width: usize,
    step: usize,
    scratch: &mut [f32],
) {
    let transpose: Transpose = transposes(isa);
    let (lines, to) = scratch.split_at_mut(LANES * LINE);
    // Whole rows are one.
    let [rows, columns] = if columns == width { [1, rows * columns] } else { [rows, columns] };
    for row in 0..rows {
        for start in (0..columns).step_by(LINE) {
            let numbers = LINE.min(columns - start);
            let mut planes = planes.clone();
            for group in (0..step).step_by(LANES) {
                for (line, plane) in lines.chunks_exact_mut(LINE).zip(&mut planes) {
                    load(&plane[row * width + start..], &mut line[..numbers]);
                }
                let lines = Lines { isa, from: lines, pitch: LINE, numbers, step };
                // SAFETY: the machine has the level, since whoever built the plan took it from `Isa::available`.
                unsafe { transpose(&lines, &mut to[(row * columns + start) * step + group..]) };
            }
        }
    }
}
