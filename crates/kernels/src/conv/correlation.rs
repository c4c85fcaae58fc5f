//! Correlation of planes with weights: convolution, and its gradient with respect to the input.

use super::gather::{Axis, gather};
use super::tile::{Factors, Lanes, multiply_add};
use super::{BLOCK, Geometry, PART_PRODUCTS, ROWS, chunk_positions};
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of};
use std::ops::Range;
use std::sync::Arc;

/// Weights that a part of [`PackWeights`] moves.
const PART_WEIGHTS: usize = 8 * 1024;

/// Target planes that are computed side by side in a tile, unless there is only one.
const PANEL: usize = 4;

/// How a correlation is cut up: fixed by the problem.
#[derive(Debug)]
pub struct CorrelationPlan {
    isa: Isa,
    images: usize,
    groups: usize,
    /// Planes of the source and the target in each group.
    sources: usize,
    targets: usize,
    source_plane: usize,
    target_plane: usize,
    target_width: usize,
    /// Steps in the weights from one target or source plane to the next.
    target_step: usize,
    source_step: usize,
    kernel: [usize; 2],
    phases: Vec<Phase>,
    /// Chunks of positions: the phase, and the first position in it.
    chunks: Vec<(usize, usize)>,
    positions: usize,
    /// Rows that are gathered at once.
    rows: usize,
    /// Target planes that are computed side by side in a tile.
    panel: usize,
    /// Packed weights of one panel for each of its planes.
    panel_depth: usize,
}

/// Targets that share their taps, and where their weights start in a panel.
#[derive(Debug)]
struct Phase {
    axes: [Axis; 2],
    depth_start: usize,
    depth: usize,
}

impl Phase {
    fn positions(&self) -> usize {
        self.axes[0].count * self.axes[1].count
    }

    /// Whether its targets lie one after another.
    #[inline(always)]
    fn is_dense(&self) -> bool {
        self.axes[0].step == 1 && self.axes[1].step == 1
    }

    /// The source plane and the taps of a row of the gathered matrix.
    #[inline(always)]
    fn row(&self, depth: usize) -> (usize, [super::gather::Tap; 2]) {
        let [rows, columns] = &self.axes;
        let (row, column) = (depth / columns.taps.len(), depth % columns.taps.len());
        (row / rows.taps.len(), [rows.taps[row % rows.taps.len()], columns.taps[column]])
    }
}

impl CorrelationPlan {
    /// Convolution: from input planes to output planes.
    pub fn forward(isa: Isa, geometry: &Geometry) -> Arc<CorrelationPlan> {
        let g = geometry;
        let axes = [vec![g.axis(0).forward()], vec![g.axis(1).forward()]];
        let steps = [g.channels * g.taps(), g.taps()];
        CorrelationPlan::new(isa, g, [g.channels, g.filters], [g.input, g.output], steps, axes)
    }

    /// The gradient with respect to the input: from output planes to input planes.
    pub fn backward(isa: Isa, geometry: &Geometry) -> Arc<CorrelationPlan> {
        let g = geometry;
        let axes = [g.axis(0).backward(), g.axis(1).backward()];
        let steps = [g.taps(), g.channels * g.taps()];
        CorrelationPlan::new(isa, g, [g.filters, g.channels], [g.output, g.input], steps, axes)
    }

    fn new(
        isa: Isa,
        geometry: &Geometry,
        [sources, targets]: [usize; 2],
        [source_size, target_size]: [[usize; 2]; 2],
        [target_step, source_step]: [usize; 2],
        [vertical, horizontal]: [Vec<Axis>; 2],
    ) -> Arc<CorrelationPlan> {
        let mut phases = vec![];
        let mut panel_depth = 0;
        for rows in &vertical {
            for columns in &horizontal {
                let depth = sources * rows.taps.len() * columns.taps.len();
                phases.push(Phase { axes: [rows.clone(), columns.clone()], depth_start: panel_depth, depth });
                panel_depth += depth;
            }
        }
        let depth = phases.iter().map(|phase| phase.depth).max().unwrap_or(0);
        let positions = chunk_positions(depth, phases.iter().map(Phase::positions).max().unwrap_or(0)).max(1);
        let starts = |(at, phase): (usize, &Phase)| {
            (0..phase.positions()).step_by(positions).map(move |first| (at, first)).collect::<Vec<_>>()
        };
        Arc::new(CorrelationPlan {
            isa,
            images: geometry.images,
            groups: geometry.groups,
            sources,
            targets,
            source_plane: source_size[0] * source_size[1],
            target_plane: target_size[0] * target_size[1],
            target_width: target_size[1],
            target_step,
            source_step,
            kernel: geometry.kernel,
            chunks: phases.iter().enumerate().flat_map(starts).collect(),
            phases,
            positions,
            rows: depth.min(ROWS),
            panel: if targets == 1 { 1 } else { PANEL },
            panel_depth,
        })
    }

    /// Elements of scratch for the packed weights.
    pub fn packed(&self) -> usize {
        self.groups * self.panels() * self.panel_elements()
    }

    fn panels(&self) -> usize {
        parts_of(self.targets, self.panel)
    }

    #[inline(always)]
    fn panel_elements(&self) -> usize {
        self.panel_depth * self.panel
    }

    fn blocks(&self) -> usize {
        parts_of(self.targets, BLOCK)
    }

    fn units(&self) -> usize {
        self.images * self.groups * self.blocks() * self.chunks.len()
    }

    /// Numbers of scratch for the gathered rows, and for the sums of a block.
    fn scratch(&self) -> [usize; 2] {
        let sums = self.targets.min(BLOCK).next_multiple_of(self.panel);
        [self.rows * self.positions, sums * self.positions]
    }

    /// Units of a part. Gathering an element costs about as much as multiplying it eight times.
    fn units_per_part(&self) -> usize {
        let depth = self.panel_depth / self.phases.len().max(1);
        let products = (self.targets.min(BLOCK) + 8) * self.positions * depth.max(1);
        parts_of(PART_PRODUCTS, products)
    }
}

/// Puts the weights, as f32, in the order in which [`Correlation`] reads them.
pub struct PackWeights<T> {
    plan: Arc<CorrelationPlan>,
    weights: In<T>,
    packed: Out<f32>,
    panels_per_part: usize,
    body: unsafe fn(&PackWeights<T>, usize),
}

impl<T: Element> PackWeights<T> {
    /// From dense weights to scratch of [`CorrelationPlan::packed`] elements.
    pub fn new(plan: &Arc<CorrelationPlan>, weights: In<T>, packed: Out<f32>) -> PackWeights<T> {
        let panels_per_part = (PART_WEIGHTS / plan.panel_elements().max(1)).max(1);
        PackWeights { plan: plan.clone(), weights, packed, panels_per_part, body: panels_of::select(plan.isa) }
    }
}

impl<T: Element> Job for PackWeights<T> {
    fn parts(&self) -> usize {
        parts_of(self.plan.groups * self.plan.panels(), self.panels_per_part)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own panels, and the machine has the level, since whoever
        // built the plan took it from `Isa::available`.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The panels of a part. A panel that reaches past the last target is filled up with zeros.
    fn panels_of<T: Element>(job: &PackWeights<T>, part: usize) {
        let plan = &*job.plan;
        // SAFETY: nothing writes the weights in this step.
        let weights = unsafe { job.weights.slice(0..job.weights.len()) };
        for index in chunk(part, job.panels_per_part, plan.groups * plan.panels()) {
            let (group, panel) = (index / plan.panels(), index % plan.panels());
            let group_start = group * plan.targets * plan.sources * plan.kernel[0] * plan.kernel[1];
            let range = index * plan.panel_elements()..(index + 1) * plan.panel_elements();
            // SAFETY: the panel is this part's own.
            let packed = unsafe { job.packed.slice(range) };
            for phase in &plan.phases {
                for depth in 0..phase.depth {
                    let (source, [row, column]) = phase.row(depth);
                    let tap = row.index * plan.kernel[1] + column.index;
                    let start = group_start + source * plan.source_step + tap;
                    let numbers = &mut packed[(phase.depth_start + depth) * plan.panel..][..plan.panel];
                    for (lane, number) in numbers.iter_mut().enumerate() {
                        let target = panel * plan.panel + lane;
                        let inside = target < plan.targets;
                        *number = if inside { weights[start + target * plan.target_step].to_f32() } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// `target = source` correlated with packed weights.
pub struct Correlation<T> {
    plan: Arc<CorrelationPlan>,
    source: In<T>,
    packed: In<f32>,
    target: Out<T>,
    body: unsafe fn(&Correlation<T>, usize, &mut [f32]),
}

impl<T: Element> Correlation<T> {
    /// Of dense planes, with what [`PackWeights`] wrote.
    pub fn new(plan: &Arc<CorrelationPlan>, source: In<T>, packed: In<f32>, target: Out<T>) -> Correlation<T> {
        Correlation { plan: plan.clone(), source, packed, target, body: units_of::select(plan.isa) }
    }
}

impl<T: Element> Job for Correlation<T> {
    fn parts(&self) -> usize {
        parts_of(self.plan.units(), self.plan.units_per_part())
    }

    fn worker_scratch(&self) -> usize {
        self.plan.scratch().iter().sum::<usize>() * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own planes or positions of planes, and the machine has
        // the level, since whoever built the plan took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// The units of a part: each is a block of target planes at a chunk of positions.
    fn units_of<T: Element>(job: &Correlation<T>, part: usize, scratch: &mut [f32]) {
        let plan = &*job.plan;
        let [gathered, sums] = plan.scratch();
        let (gathered, sums) = scratch[..gathered + sums].split_at_mut(gathered);
        for unit in chunk(part, plan.units_per_part(), plan.units()) {
            let (unit, at) = (unit / plan.chunks.len(), unit % plan.chunks.len());
            let (group, block) = (unit / plan.blocks(), unit % plan.blocks());
            let (phase, first) = plan.chunks[at];
            let phase = &plan.phases[phase];
            let positions = first..(first + plan.positions).min(phase.positions());
            let targets = chunk(block, BLOCK, plan.targets);
            // SAFETY: nothing writes the source or the packed weights while this job runs.
            let (source, packed) = unsafe {
                let planes = plan.sources * plan.source_plane;
                let panels = group % plan.groups * plan.panels() + targets.start / plan.panel;
                let count = parts_of(targets.len(), plan.panel);
                (
                    job.source.slice(group * planes..(group + 1) * planes),
                    job.packed.slice(panels * plan.panel_elements()..(panels + count) * plan.panel_elements()),
                )
            };
            sums.fill(0.0);
            for depth in (0..phase.depth).step_by(ROWS) {
                let depths = depth..(depth + ROWS).min(phase.depth);
                for (row, depth) in gathered.chunks_exact_mut(plan.positions).zip(depths.clone()) {
                    let (plane, taps) = phase.row(depth);
                    let plane = &source[plane * plan.source_plane..][..plan.source_plane];
                    gather(plane, [&phase.axes[0], &phase.axes[1]], taps, positions.clone(), row);
                }
                let depths = phase.depth_start + depths.start..phase.depth_start + depths.end;
                match (plan.panel, plan.isa) {
                    (1, _) => plan.multiply::<1, 64>(gathered, packed, depths, positions.len(), sums),
                    (_, Isa::Avx512 | Isa::Avx512Bf16) => plan.multiply::<PANEL, 32>(gathered, packed, depths, positions.len(), sums),
                    _ => plan.multiply::<PANEL, 16>(gathered, packed, depths, positions.len(), sums),
                }
            }
            for (target, sums) in targets.zip(sums.chunks_exact(plan.positions)) {
                let plane = (group * plan.targets + target) * plan.target_plane;
                // SAFETY: these positions of this plane are this part's own.
                unsafe { plan.store(&job.target, plane, phase, positions.clone(), sums) };
            }
        }
    }
}

impl CorrelationPlan {
    /// Adds the products of the gathered rows with every panel to the sums.
    #[inline(always)]
    fn multiply<const ROWS: usize, const WIDTH: usize>(
        &self,
        gathered: &[f32],
        packed: &[f32],
        depths: Range<usize>,
        positions: usize,
        sums: &mut [f32],
    ) {
        let panels = packed.chunks_exact(self.panel_elements());
        for (panel, sums) in panels.zip(sums.chunks_exact_mut(ROWS * self.positions)) {
            let weights = Factors { data: &panel[depths.start * ROWS..], depth_step: ROWS, row_step: 1 };
            for lane in (0..positions).step_by(WIDTH) {
                let lanes = Lanes { data: &gathered[lane..], depth_step: self.positions };
                multiply_add::<ROWS, WIDTH>(weights, lanes, depths.len(), &mut sums[lane..], self.positions);
            }
        }
    }

    /// Writes the sums of some positions of the plane that starts at `plane`.
    ///
    /// # Safety
    /// The target must be alive, and nothing else may touch these positions of the plane.
    #[inline(always)]
    unsafe fn store<T: Element>(
        &self,
        target: &Out<T>,
        plane: usize,
        phase: &Phase,
        positions: Range<usize>,
        sums: &[f32],
    ) {
        if phase.is_dense() {
            // SAFETY: the positions lie one after another and are the caller's own.
            let target = unsafe { target.slice(plane + positions.start..plane + positions.end) };
            for (to, from) in target.iter_mut().zip(sums) {
                *to = T::from_f32(*from);
            }
            return;
        }
        let [rows, columns] = &phase.axes;
        let (mut row, mut column) = (positions.start / columns.count, positions.start % columns.count);
        for sum in &sums[..positions.len()] {
            let line = (rows.start + row * rows.step) * self.target_width;
            let at = plane + line + columns.start + column * columns.step;
            debug_assert!(at < target.len());
            // SAFETY: the position is inside the plane and the caller's own; what lies between is not touched.
            unsafe { *target.as_ptr().add(at) = T::from_f32(*sum) };
            column += 1;
            if column == columns.count {
                (row, column) = (row + 1, 0);
            }
        }
    }
}
