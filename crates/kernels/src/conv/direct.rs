//! Correlation by its definition: each product once, read where a [`Frame`] has the sources.

use super::PART_PRODUCTS;
use super::axis::Axis;
use super::correlation::{Operands, Planes};
use super::frame::Frame;
use super::tile::{LANES, Offsets, PanelProduct, widest_tile};
use crate::{Element, chunk, parts_of};
use std::ops::Range;

/// Target planes of a unit.
const BLOCK: usize = 128;
/// Positions of a unit, about: with the sums of its block, what a second-level cache can hold.
const POSITIONS: usize = 512;
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
/// Depths from which on it pays that all panels of weights pass by the lanes of a tile before the next.
const DEEP: usize = 64;

#[derive(Debug)]
pub(super) struct Direct {
    phases: Vec<Phase>,
    /// The phase and the rectangle of targets of each unit of a plane.
    rectangles: Vec<(usize, [Range<usize>; 2])>,
    /// The most numbers of a channel in a frame, times the channels in it.
    frame: usize,
    /// Sums of a target, with what is between rows.
    lanes: usize,
    /// Packed weights of one panel for each of its planes.
    pub panel_depth: usize,
}

/// Targets that share their taps, and where their weights start in a panel.
#[derive(Debug)]
struct Phase {
    frame: Frame,
    depth_start: usize,
    /// Channels that are in a frame at once.
    channels: usize,
    /// Where the sources of each depth lie, for so many channels.
    offsets: Offsets,
}

impl Phase {
    fn new(planes: &Planes, axes: [Axis; 2], depth_start: usize) -> Phase {
        let frame = Frame::new(axes.clone(), rectangle(&axes));
        let near = NEAR / (frame.rows_read() * ROW_BYTES).max(1);
        let channels = (FRAME / frame.channel().max(1)).min(near).clamp(1, planes.sources.max(1));
        let offsets = (0..channels).flat_map(|channel| frame.taps.iter().map(move |tap| (channel, tap)));
        let offsets = offsets.map(|(channel, tap)| channel * frame.channel() + tap);
        let offsets = Offsets::new(offsets.collect());
        Phase { frame, depth_start, channels, offsets }
    }
}

/// The size of the rectangles that targets are cut into: of about equal size.
pub(super) fn rectangle(axes: &[Axis; 2]) -> [usize; 2] {
    let even = |count: usize, most: usize| count.div_ceil(count.div_ceil(most).max(1)).max(1);
    let columns = if axes[1].count <= WIDEST { axes[1].count.max(1) } else { even(axes[1].count, WIDEST / 2) };
    [even(axes[0].count, (POSITIONS / columns).max(1)), columns]
}

impl Direct {
    pub fn new(planes: &Planes, [vertical, horizontal]: [Vec<Axis>; 2]) -> Direct {
        let mut phases = vec![];
        let mut rectangles = vec![];
        let mut panel_depth = 0;
        for rows in &vertical {
            for columns in &horizontal {
                let axes = [rows.clone(), columns.clone()];
                let [height, width] = rectangle(&axes);
                for row in (0..rows.count).step_by(height) {
                    for column in (0..columns.count).step_by(width) {
                        let ends = [(row + height).min(rows.count), (column + width).min(columns.count)];
                        rectangles.push((phases.len(), [row..ends[0], column..ends[1]]));
                    }
                }
                let phase = Phase::new(planes, axes, panel_depth);
                panel_depth += planes.sources * phase.frame.taps.len();
                phases.push(phase);
            }
        }
        // What reads the same sources comes one after another.
        rectangles.sort_by_key(|(phase, [rows, columns])| (rows.start, columns.start, *phase));
        let lanes = |(phase, [rows, columns]): &(usize, [Range<usize>; 2])| {
            (rows.len() - 1) * phases[*phase].frame.pitch + columns.len()
        };
        Direct {
            frame: phases.iter().map(|phase| phase.channels * phase.frame.channel()).max().unwrap_or(0),
            lanes: rectangles.iter().map(lanes).max().unwrap_or(0).next_multiple_of(LANES),
            phases,
            rectangles,
            panel_depth,
        }
    }

    /// Units of all targets, and of a part.
    pub fn units(&self, planes: &Planes) -> (usize, usize) {
        let units = planes.images * planes.groups * parts_of(planes.targets, BLOCK) * self.rectangles.len();
        let depth = self.panel_depth / self.phases.len().max(1);
        let products = (planes.targets.min(BLOCK) + 8) * self.lanes * depth.max(1);
        (units, parts_of(PART_PRODUCTS, products.max(1)))
    }

    /// Numbers of scratch for a frame, and for the sums of a block.
    pub fn scratch(&self, planes: &Planes) -> [usize; 2] {
        let targets = planes.targets.min(BLOCK).next_multiple_of(planes.panel);
        [self.frame + Frame::SLACK, targets * self.lanes]
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
        for Phase { frame, depth_start, .. } in &self.phases {
            let [rows, columns] = &frame.axes;
            let taps = frame.taps.len();
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
        let (unit, at) = (unit / self.rectangles.len(), unit % self.rectangles.len());
        let blocks = parts_of(planes.targets, BLOCK);
        let (unit, block) = (unit / blocks, unit % blocks);
        let (image, group) = (unit / planes.groups, unit % planes.groups);
        let targets = chunk(block, BLOCK, planes.targets);
        let (phase, [rows, columns]) = &self.rectangles[at];
        let phase = &self.phases[*phase];
        let [frame, sums] = self.scratch(planes);
        let (frame, sums) = scratch[..frame + sums].split_at_mut(frame);
        // SAFETY: nothing writes the source while this job runs.
        let source = unsafe { operands.sources(image, group) };
        let lanes = (rows.len() - 1) * phase.frame.pitch + columns.len();
        let taps = phase.frame.taps.len();
        if phase.offsets.len() == 0 || planes.sources == 0 {
            sums.fill(0.0);
        }
        for first in (0..planes.sources).step_by(phase.channels) {
            let channels = first..(first + phase.channels).min(planes.sources);
            for (index, channel) in channels.clone().enumerate() {
                let plane = &source[channel * planes.source_plane()..][..planes.source_plane()];
                phase.frame.fill(plane, [rows, columns], &mut frame[index * phase.frame.channel()..]);
            }
            let depths = (phase.depth_start + channels.start * taps)..(phase.depth_start + channels.end * taps);
            let at_once = if depths.len() < DEEP { lanes } else { widest_tile(planes.panel) };
            for lane in (0..lanes).step_by(at_once) {
                for (index, target) in targets.clone().step_by(planes.panel).enumerate() {
                    // SAFETY: nothing writes the packed weights while this job runs.
                    let weights = unsafe { operands.weights(group, target / planes.panel) };
                    let product = PanelProduct {
                        isa: planes.isa,
                        weights: &weights[depths.start * planes.panel..depths.end * planes.panel],
                        panel: planes.panel,
                        weight_step: planes.panel,
                        source: &frame[lane..],
                        offsets: &phase.offsets,
                        depth: depths.len(),
                        lanes: at_once.min(lanes - lane),
                        continued: first > 0,
                    };
                    let sums = &mut sums[index * planes.panel * self.lanes + lane..];
                    // SAFETY: the machine has the level.
                    unsafe { (operands.multiply)(&product, sums, self.lanes) };
                }
            }
        }
        for (target, sums) in targets.zip(sums.chunks_exact(self.lanes)) {
            let start = operands.target_start(image, group, target);
            // SAFETY: these positions of this plane are the unit's own.
            unsafe { phase.store(operands, start, [rows, columns], sums) };
        }
    }
}

impl Phase {
    /// Writes the sums of a rectangle of the plane that starts there.
    ///
    /// # Safety
    /// The target must be alive, and nothing else may touch these positions of the plane.
    #[inline(always)]
    unsafe fn store<T: Element>(
        &self,
        operands: &Operands<'_, T>,
        plane: usize,
        [rows, columns]: [&Range<usize>; 2],
        sums: &[f32],
    ) {
        let [vertical, horizontal] = &self.frame.axes;
        let width = operands.planes.target_size[1];
        for (index, row) in rows.clone().enumerate() {
            let sums = &sums[index * self.frame.pitch..][..columns.len()];
            let line = plane + (vertical.start + row * vertical.step) * width;
            if horizontal.step == 1 {
                let start = line + horizontal.start + columns.start;
                // SAFETY: the positions lie one after another and are the caller's own.
                let target = unsafe { operands.target.slice(start..start + columns.len()) };
                for (to, from) in target.iter_mut().zip(sums) {
                    *to = T::from_f32(*from);
                }
                continue;
            }
            for (column, sum) in columns.clone().zip(sums) {
                let at = line + horizontal.start + column * horizontal.step;
                debug_assert!(at < operands.target.len());
                // SAFETY: the position is inside the plane and the caller's own; what lies between is not touched.
                unsafe { *operands.target.as_ptr().add(at) = T::from_f32(*sum) };
            }
        }
    }
}
