//! Correlation by its definition: each product once, read where a [`Frame`] has the sources.

use super::PART_PRODUCTS;
use super::ahead::Ahead;
use super::axis::Axis;
use super::correlation::{Operands, Planes};
use super::frame::Frame;
use super::plane::Plane;
use super::rows::{store, store_pairs};
use super::slide::{NextRows, SIDE, Slide};
use super::tile::{LANES, Offsets, PanelProduct, widest_tile};
use crate::{Element, chunk, parts_of};
use std::ops::Range;

/// The most target planes of a unit.
const BLOCK: usize = 128;
/// Positions of a unit, about: with the sums of its block, what a second-level cache can hold.
const POSITIONS: usize = 1024;
/// Fewer targets than these have more positions in a unit, about: so many all together.
const FEW: usize = 4;
const FEW_POSITIONS: usize = 4096;
/// Sums of a unit, about: where targets have many phases, it has fewer planes.
const SUMS: usize = 128 * 1024;
/// The widest rows that are not cut.
const WIDEST: usize = 512;
/// Numbers of a frame, about: what a second-level cache can hold besides.
const FRAME: usize = 48 * 1024;
/// Bytes of the sources of a tile's lanes, about: what a first-level cache can hold besides the weights of a panel.
const NEAR: usize = 16 * 1024;
/// Bytes of the lines of the cache that a row of a tile's lanes lies in.
const ROW_BYTES: usize = 192;
/// Sources whose weights are packed at a time, so that a first-level cache holds them while all targets of a panel pass by.
const PACKED_SOURCES: usize = 16;
/// Depths from which on it pays that all panels of weights pass by the lanes of a tile before the next, and how many lanes they pass
/// by where products are shallower.
const DEEP: usize = 64;
const SHALLOW_LANES: usize = 512;

/// Lanes of products with a panel of so many rows that all panels pass by before the next.
fn lanes_at_once(panel: usize, depth: usize) -> usize {
    if depth < DEEP { SHALLOW_LANES } else { widest_tile(panel) }
}

#[derive(Debug)]
pub(super) struct Direct {
    /// What all phases read.
    frame: Frame,
    /// Channels that are in a frame at once.
    channels: usize,
    /// Those of a row of phases one after another.
    phases: Vec<Phase>,
    /// Phases of a row.
    across: usize,
    /// Rectangles of targets, of every phase alike.
    rectangles: Vec<[Range<usize>; 2]>,
    /// Sums of a target in a phase, with what is between rows.
    lanes: usize,
    /// Target planes of a unit.
    block: usize,
    /// Of filters that slide over one plane for themselves, the tap of each source.
    slide: Option<[usize; 9]>,
    /// Packed weights of one panel for each of its planes.
    pub panel_depth: usize,
}

/// Targets that share their taps, and where their weights start in a panel.
#[derive(Debug)]
struct Phase {
    axes: [Axis; 2],
    depth_start: usize,
    taps: usize,
    /// Where the sources of each depth lie, for as many channels as are in a frame.
    offsets: Offsets,
}

impl Phase {
    /// The part of a rectangle that is inside of the plane.
    #[inline(always)]
    fn inside(&self, [rows, columns]: &[Range<usize>; 2]) -> [Range<usize>; 2] {
        let inside = |range: &Range<usize>, axis: &Axis| range.start.min(axis.count)..range.end.min(axis.count);
        [inside(rows, &self.axes[0]), inside(columns, &self.axes[1])]
    }
}

/// The size of the rectangles of about so many positions that targets are cut into: of about equal size.
pub(super) fn rectangle(counts: [usize; 2], positions: usize) -> [usize; 2] {
    let even = |count: usize, most: usize| count.div_ceil(count.div_ceil(most).max(1)).max(1);
    let columns = if counts[1] <= WIDEST { counts[1].max(1) } else { even(counts[1], WIDEST / 2) };
    [even(counts[0], (positions / columns).max(1)), columns]
}

/// All rectangles of this size.
pub(super) fn rectangles(counts: [usize; 2], [height, width]: [usize; 2]) -> Vec<[Range<usize>; 2]> {
    let cut = |count: usize, size: usize| (0..count).step_by(size).map(move |at| at..(at + size).min(count));
    cut(counts[0], height).flat_map(|rows| cut(counts[1], width).map(move |columns| [rows.clone(), columns])).collect()
}

impl Direct {
    pub fn new(planes: &Planes, [vertical, horizontal]: [Vec<Axis>; 2]) -> Direct {
        let most = |axes: &[Axis], of: fn(&Axis) -> usize| axes.iter().map(of).max().unwrap_or(0);
        let counts = [most(&vertical, |axis| axis.count), most(&horizontal, |axis| axis.count)];
        let count = vertical.len() * horizontal.len();
        // The fewer the targets, the more of their positions a first-level cache holds.
        let positions = if planes.targets < FEW { FEW_POSITIONS / planes.targets.max(1) } else { POSITIONS };
        let size = rectangle(counts, 2 * positions / count.max(2));
        let frame = Frame::new([&vertical, &horizontal], size);
        let near = NEAR / (frame.rows_read(most(&vertical, |axis| axis.taps.len())) * ROW_BYTES).max(1);
        let channels = (FRAME / frame.channel().max(1)).min(near).clamp(1, planes.sources.max(1));
        let mut phases = vec![];
        let mut panel_depth = 0;
        for rows in &vertical {
            for columns in &horizontal {
                let taps = frame.taps([rows, columns]);
                let offsets = (0..channels).flat_map(|channel| taps.iter().map(move |tap| (channel, tap)));
                let offsets = offsets.map(|(channel, tap)| channel * frame.channel() + tap).collect();
                let axes = [rows.clone(), columns.clone()];
                phases.push(Phase { axes, depth_start: panel_depth, taps: taps.len(), offsets: Offsets::new(offsets) });
                panel_depth += planes.sources * taps.len();
            }
        }
        // Filters slide over the plane itself, so neighbours in a frame must be neighbours there.
        let is_alone = [planes.sources, planes.targets, count] == [1; 3]
            && [&vertical, &horizontal].iter().all(|axes| axes.iter().all(|axis| axis.source_step == 1));
        let slide = phases.first().filter(|_| is_alone).and_then(|phase| phase.offsets.that_slide(frame.pitch));
        // Targets that slide are written in whole vectors, the last ones over the end.
        let lanes =
            ((size[0] - 1) * frame.pitch + size[1] + if slide.is_some() { LANES } else { 0 }).next_multiple_of(LANES);
        let block = SUMS / (count.max(1) * lanes) / planes.panel * planes.panel;
        Direct {
            block: block.clamp(planes.panel, BLOCK.max(planes.panel)),
            rectangles: rectangles(counts, size),
            across: horizontal.len(),
            frame,
            channels,
            phases,
            lanes,
            slide,
            panel_depth,
        }
    }

    /// Units of all targets, and of a part.
    pub fn units(&self, planes: &Planes) -> (usize, usize) {
        let units = planes.images * planes.groups * parts_of(planes.targets, self.block) * self.rectangles.len();
        let products = (planes.targets.min(self.block) + 8) * self.lanes * self.panel_depth.max(1);
        (units, parts_of(PART_PRODUCTS, products.max(1)))
    }

    /// Numbers of the sums of a phase.
    fn phase_sums(&self, planes: &Planes) -> usize {
        planes.targets.min(self.block).next_multiple_of(planes.panel) * self.lanes
    }

    /// Numbers of scratch for a frame, and for the sums of a block.
    pub fn scratch(&self, planes: &Planes) -> [usize; 2] {
        [self.channels * self.frame.channel() + Frame::SLACK, self.phases.len() * self.phase_sums(planes)]
    }

    #[inline(always)]
    pub fn pack_panel<T: Element>(
        &self,
        planes: &Planes,
        weights: &[T],
        [group, panel]: [usize; 2],
        packed: &mut [f32],
    ) {
        packed.fill(0.0);
        for Phase { axes: [rows, columns], depth_start, taps, .. } in &self.phases {
            for first in (0..planes.sources).step_by(PACKED_SOURCES) {
                let sources = first..(first + PACKED_SOURCES).min(planes.sources);
                for lane in 0..planes.panel_targets(panel) {
                    for source in sources.clone() {
                        let filter = planes.filter(weights, [group, panel * planes.panel + lane, source]);
                        let start = depth_start + source * taps;
                        let to = &mut packed[start * planes.panel..(start + taps) * planes.panel];
                        let mut at = lane;
                        for row in &rows.taps {
                            for column in &columns.taps {
                                to[at] = filter[row.index * planes.kernel[1] + column.index].to_f32();
                                at += planes.panel;
                            }
                        }
                    }
                }
            }
        }
    }

    /// A block of target planes at a rectangle of positions.
    ///
    /// # Safety
    /// The operands must be alive, and these positions of the targets nobody else's.
    #[inline(always)]
    pub unsafe fn unit<T: Element>(&self, operands: &Operands<'_, T>, unit: usize, scratch: &mut [f32]) {
        let planes = operands.planes;
        let [image, group, block, at] = self.place(planes, unit);
        let targets = chunk(block, self.block, planes.targets);
        let [rows, columns] = &self.rectangles[at];
        let [frame, sums] = self.scratch(planes);
        let phase_sums = self.phase_sums(planes);
        let (frame, sums) = scratch[..frame + sums].split_at_mut(frame);
        if let Some(taps) = &self.slide {
            // SAFETY: the caller's promise.
            return unsafe { self.slide(operands, taps, unit, [frame, sums]) };
        }
        // SAFETY: nothing writes the source while this job runs.
        let source = unsafe { operands.sources(image, group) };
        for (phase, sums) in self.phases.iter().zip(sums.chunks_exact_mut(phase_sums)) {
            if phase.taps == 0 || planes.sources == 0 {
                sums.fill(0.0);
            }
        }
        for first in (0..planes.sources).step_by(self.channels) {
            let channels = first..(first + self.channels).min(planes.sources);
            for (index, channel) in channels.clone().enumerate() {
                let plane = &source[channel * planes.source_plane()..];
                self.frame.fill(plane, [rows, columns], &mut frame[index * self.frame.channel()..]);
            }
            let next = if channels.end < planes.sources { (unit, channels.end) } else { (unit + 1, 0) };
            // SAFETY: the caller's promise.
            let mut ahead = unsafe { self.ahead(operands, next, targets.len()) };
            for (index, phase) in self.phases.iter().enumerate().filter(|(_, phase)| phase.taps > 0) {
                let sums = &mut sums[index * phase_sums..];
                let [rows, columns] = phase.inside(&self.rectangles[at]);
                if !rows.is_empty() && !columns.is_empty() {
                    let lanes = (rows.len() - 1) * self.frame.pitch + columns.len();
                    // SAFETY: the caller's promise.
                    unsafe {
                        self.multiply(operands, phase, [group, lanes], [&targets, &channels], [frame, sums], &mut ahead)
                    };
                }
            }
        }
        for (index, target) in targets.enumerate() {
            let start = operands.target_start(image, group, target);
            for line in 0..self.phases.len() / self.across.max(1) {
                let sums = &sums[line * self.across * phase_sums + index * self.lanes..];
                // SAFETY: these positions of this plane are the unit's own.
                unsafe { self.store(operands, start, [line, at], sums, phase_sums) };
            }
        }
    }

    /// A rectangle of the only plane of a group, whose filter slides over it.
    ///
    /// # Safety
    /// The operands must be alive, and these positions of the target nobody else's.
    #[inline(always)]
    unsafe fn slide<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        taps: &[usize; 9],
        unit: usize,
        [frame, targets]: [&mut [f32]; 2],
    ) {
        let planes = operands.planes;
        let [image, group, _, at] = self.place(planes, unit);
        let [rows, columns] = &self.rectangles[at];
        // SAFETY: nothing writes the operands while this job runs.
        let (source, packed) = unsafe { (operands.sources(image, group), operands.weights(group, 0)) };
        let first = self.frame.first([rows, columns]);
        let counts = [rows.len() + SIDE - 1, columns.len() + SIDE - 1];
        let mut weights = [0.0; 9];
        for (weight, &tap) in weights.iter_mut().zip(taps) {
            *weight = packed[tap];
        }
        let [next_image, next_group, _, next] = self.place(planes, unit + 1);
        let next = match next_image < planes.images {
            // SAFETY: as above.
            true => unsafe { operands.sources(next_image, next_group) }
                .get(self.frame.source_rows(&self.rectangles[next][0]).start * planes.source_size[1]..)
                .unwrap_or_default(),
            false => &[],
        };
        let slide = Slide {
            isa: planes.isa,
            weights: &weights,
            sources: Plane::of(source, planes.source_size[1], first, counts, frame),
            rows: rows.len(),
            columns: columns.len(),
            next: NextRows::of(next, planes.source_size[1]),
        };
        // SAFETY: the machine has the level, since whoever built the plan took it from `Isa::available`.
        unsafe { (operands.slide)(&slide, targets) };
        let width = planes.target_size[1];
        let start = operands.target_start(image, group, 0) + rows.start * width + columns.start;
        // Whole rows are one.
        let [rows, columns] =
            if columns.len() == width { [1, rows.len() * width] } else { [rows.len(), columns.len()] };
        for row in 0..rows {
            let (from, start) = (&targets[row * columns..(row + 1) * columns], start + row * width);
            // SAFETY: these positions are the caller's own.
            unsafe {
                match operands.writer.should_stream() {
                    true => operands.writer.stream(start, from),
                    false => store(from, operands.target.slice(start..start + columns)),
                }
            }
        }
    }

    /// Image, group, block of targets and rectangle of a unit.
    #[inline(always)]
    fn place(&self, planes: &Planes, unit: usize) -> [usize; 4] {
        let (unit, at) = (unit / self.rectangles.len(), unit % self.rectangles.len());
        let blocks = parts_of(planes.targets, self.block);
        let (unit, block) = (unit / blocks, unit % blocks);
        [unit / planes.groups, unit % planes.groups, block, at]
    }

    /// The sources of a unit from a channel on that will be copied next, in as many portions as there are products of so many targets
    /// before.
    ///
    /// # Safety
    /// Nothing may write the source while this is used.
    #[inline(always)]
    unsafe fn ahead<'a, T: Element>(
        &self,
        operands: &'a Operands<'_, T>,
        (unit, channel): (usize, usize),
        targets: usize,
    ) -> Ahead<'a, T> {
        let planes = operands.planes;
        let [image, group, _, at] = self.place(planes, unit);
        if image == planes.images {
            return Ahead::new(&[], [0; 3], 1);
        }
        // SAFETY: the caller's promise.
        let sources = unsafe { operands.sources(image, group) };
        let rows = self.frame.source_rows(&self.rectangles[at][0]);
        let start = channel * planes.source_plane() + rows.start * planes.source_size[1];
        let runs = self.channels.min(planes.sources - channel);
        let at_once = lanes_at_once(planes.panel, runs * self.phases[0].taps);
        let products = self.phases.len() * parts_of(targets, planes.panel) * parts_of(self.lanes, at_once);
        Ahead::new(&sources[start..], [runs, rows.len() * planes.source_size[1], planes.source_plane()], products)
    }

    /// The products of a phase with some channels: of few lanes at a time, by which all panels of weights pass.
    ///
    /// # Safety
    /// Nothing may write the packed weights, and the machine must have the level.
    #[inline(always)]
    unsafe fn multiply<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        phase: &Phase,
        [group, lanes]: [usize; 2],
        [targets, channels]: [&Range<usize>; 2],
        [frame, sums]: [&mut [f32]; 2],
        ahead: &mut Ahead<'_, T>,
    ) {
        let panel = operands.planes.panel;
        let start = |channel: usize| phase.depth_start + channel * phase.taps;
        let depths = start(channels.start)..start(channels.end);
        let at_once = lanes_at_once(panel, depths.len());
        for lane in (0..lanes).step_by(at_once) {
            for (index, target) in targets.clone().step_by(panel).enumerate() {
                ahead.ask();
                // SAFETY: the caller's promise.
                let weights = unsafe { operands.weights(group, target / panel) };
                let product = PanelProduct {
                    isa: operands.planes.isa,
                    weights: &weights[depths.start * panel..depths.end * panel],
                    panel,
                    weight_step: panel,
                    source: &frame[lane..],
                    offsets: &phase.offsets,
                    depth: depths.len(),
                    lanes: at_once.min(lanes - lane),
                    continued: channels.start > 0,
                };
                // SAFETY: the caller's promise.
                unsafe { (operands.multiply)(&product, &mut sums[index * panel * self.lanes + lane..], self.lanes) };
            }
        }
    }

    /// Writes the sums of a row of phases, which lie so far apart, at a rectangle of the plane that starts there.
    ///
    /// # Safety
    /// The target must be alive, and nothing else may touch these positions of the plane.
    #[inline(always)]
    unsafe fn store<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        plane: usize,
        [line, at]: [usize; 2],
        sums: &[f32],
        apart: usize,
    ) {
        let width = operands.planes.target_size[1];
        let phases = &self.phases[line * self.across..(line + 1) * self.across];
        let [rows, _] = phases[0].inside(&self.rectangles[at]);
        let vertical = &phases[0].axes[0];
        for (index, row) in rows.enumerate() {
            let start = plane + (vertical.start + row * vertical.step) * width;
            let columns = |phase: usize| phases[phase].inside(&self.rectangles[at])[1].clone();
            let of_phase = |phase: usize| &sums[phase * apart + index * self.frame.pitch..][..columns(phase).len()];
            let whole = |from: usize, count: usize| start + from..start + from + count;
            match (phases.len(), phases[0].axes[1].step) {
                (1, 1) if operands.writer.should_stream() => {
                    // SAFETY: these positions are the caller's own.
                    unsafe { operands.writer.stream(start + columns(0).start, of_phase(0)) };
                }
                (1, 1) => {
                    // SAFETY: these positions are the caller's own.
                    let target = unsafe { operands.target.slice(whole(columns(0).start, columns(0).len())) };
                    store(of_phase(0), target);
                }
                (2, 2) => {
                    let count = columns(0).len() + columns(1).len();
                    // SAFETY: these positions are the caller's own.
                    let target = unsafe { operands.target.slice(whole(2 * columns(0).start, count)) };
                    store_pairs([of_phase(0), of_phase(1)], target);
                }
                _ => {
                    for (index, phase) in phases.iter().enumerate() {
                        let horizontal = &phase.axes[1];
                        for (column, sum) in columns(index).zip(of_phase(index)) {
                            let at = start + horizontal.start + column * horizontal.step;
                            debug_assert!(at < operands.target.len());
                            // SAFETY: the position is inside the plane and the caller's own.
                            unsafe { *operands.target.as_ptr().add(at) = T::from_f32(*sum) };
                        }
                    }
                }
            }
        }
    }
}
