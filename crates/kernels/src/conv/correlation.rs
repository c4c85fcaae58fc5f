//! Correlation of planes with weights: convolution, and its gradient with respect to the input.

use super::Geometry;
use super::axis::Axis;
use super::direct::Direct;
use super::slide::{SlideFilter, slides};
use super::tile::{MultiplyPanel, multiply_panels, panel_rows};
use super::winograd::Winograd;
use crate::isa::multiversion;
use crate::strided::Writer;
use crate::{Element, In, Isa, Job, Out, chunk, parts_of, streaming};
use std::sync::Arc;

/// Weights that a part of [`PackWeights`] moves.
const PART_WEIGHTS: usize = 8 * 1024;

/// How a correlation is cut up: fixed by the problem.
#[derive(Debug)]
pub struct CorrelationPlan {
    pub(super) planes: Planes,
    method: Method,
}

/// What is correlated.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub isa: Isa,
    pub images: usize,
    pub groups: usize,
    /// Planes of the source and the target in each group.
    pub sources: usize,
    pub targets: usize,
    pub source_size: [usize; 2],
    pub target_size: [usize; 2],
    /// Steps in the weights from one target or source plane to the next.
    target_step: usize,
    source_step: usize,
    pub kernel: [usize; 2],
    /// Target planes that are computed side by side.
    pub panel: usize,
}

/// How the products are found. Which one follows from the sizes of an image, so that an image's bits do not depend on
/// its batch.
#[derive(Debug)]
enum Method {
    Direct(Direct),
    Winograd(Winograd),
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
        axes: [Vec<Axis>; 2],
    ) -> Arc<CorrelationPlan> {
        let planes = Planes {
            isa,
            images: geometry.images,
            groups: geometry.groups,
            sources,
            targets,
            source_size,
            target_size,
            target_step,
            source_step,
            kernel: geometry.kernel,
            panel: panel_rows(targets),
        };
        let method = match Winograd::of(&planes, &axes) {
            Some(winograd) => Method::Winograd(winograd),
            None => Method::Direct(Direct::new(&planes, axes)),
        };
        Arc::new(CorrelationPlan { planes, method })
    }

    /// Elements of scratch for the packed weights.
    pub fn packed(&self) -> usize {
        self.planes.groups * self.planes.panels() * self.panel_elements()
    }

    /// Packed weights of a panel.
    fn panel_elements(&self) -> usize {
        let depth = match &self.method {
            Method::Direct(direct) => direct.panel_depth,
            Method::Winograd(_) => Winograd::panel_depth(&self.planes),
        };
        depth * self.planes.panel
    }
}

impl Planes {
    #[inline(always)]
    pub fn source_plane(&self) -> usize {
        self.source_size[0] * self.source_size[1]
    }

    #[inline(always)]
    pub fn target_plane(&self) -> usize {
        self.target_size[0] * self.target_size[1]
    }

    pub fn panels(&self) -> usize {
        parts_of(self.targets, self.panel)
    }

    /// Targets of a panel: fewer in the last.
    #[inline(always)]
    pub fn panel_targets(&self, panel: usize) -> usize {
        self.panel.min(self.targets - panel * self.panel)
    }

    /// The filter from a source to a target of a group.
    #[inline(always)]
    pub fn filter<'a, T>(&self, weights: &'a [T], [group, target, source]: [usize; 3]) -> &'a [T] {
        let taps = self.kernel[0] * self.kernel[1];
        let start = group * self.targets * self.sources * taps + target * self.target_step + source * self.source_step;
        &weights[start..start + taps]
    }
}

/// Puts the weights, as f32, in the order and form in which [`Correlation`] reads them.
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
        PackWeights { plan: plan.clone(), weights, packed, panels_per_part, body: panels_of::select(plan.planes.isa) }
    }
}

impl<T: Element> Job for PackWeights<T> {
    fn parts(&self) -> usize {
        parts_of(self.plan.planes.groups * self.plan.planes.panels(), self.panels_per_part)
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
    /// The panels of a part.
    fn panels_of<T: Element>(job: &PackWeights<T>, part: usize) {
        let planes = &job.plan.planes;
        // SAFETY: nothing writes the weights in this step.
        let weights = unsafe { job.weights.slice(0..job.weights.len()) };
        let elements = job.plan.panel_elements();
        for index in chunk(part, job.panels_per_part, planes.groups * planes.panels()) {
            let at = [index / planes.panels(), index % planes.panels()];
            // SAFETY: the panel is this part's own.
            let packed = unsafe { job.packed.slice(index * elements..(index + 1) * elements) };
            match &job.plan.method {
                Method::Direct(direct) => direct.pack_panel(planes, weights, at, packed),
                Method::Winograd(winograd) => winograd.pack_panel(planes, weights, at, packed),
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
        Correlation { plan: plan.clone(), source, packed, target, body: units_of::select(plan.planes.isa) }
    }

    fn units(&self) -> (usize, usize) {
        match &self.plan.method {
            Method::Direct(direct) => direct.units(&self.plan.planes),
            Method::Winograd(winograd) => (winograd.units(&self.plan.planes), 1),
        }
    }
}

impl<T: Element> Job for Correlation<T> {
    fn parts(&self) -> usize {
        let (units, units_per_part) = self.units();
        parts_of(units, units_per_part)
    }

    fn worker_scratch(&self) -> usize {
        let numbers = match &self.plan.method {
            Method::Direct(direct) => direct.scratch(&self.plan.planes),
            Method::Winograd(winograd) => winograd.scratch(&self.plan.planes),
        };
        numbers.iter().sum::<usize>() * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own planes or positions of planes, and the machine has
        // the level, since whoever built the plan took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// The units of a part: each is a block of target planes at some of their positions.
    fn units_of<T: Element>(job: &Correlation<T>, part: usize, scratch: &mut [f32]) {
        let (units, units_per_part) = job.units();
        let planes = &job.plan.planes;
        let operands = Operands {
            planes,
            source: job.source,
            packed: job.packed,
            panel_elements: job.plan.panel_elements(),
            target: job.target,
            writer: Writer::new(planes.isa, job.target),
            multiply: multiply_panels(planes.isa),
            slide: slides(planes.isa),
        };
        for unit in chunk(part, units_per_part, units) {
            // SAFETY: the caller's promise is the unit's.
            unsafe {
                match &job.plan.method {
                    Method::Direct(direct) => direct.unit(&operands, unit, scratch),
                    Method::Winograd(winograd) => winograd.unit(&operands, unit, scratch),
                }
            }
        }
        streaming::fence();
    }
}

/// Where a correlation's operands lie.
pub(super) struct Operands<'a, T> {
    pub planes: &'a Planes,
    source: In<T>,
    packed: In<f32>,
    panel_elements: usize,
    pub target: Out<T>,
    pub writer: Writer,
    pub multiply: MultiplyPanel,
    pub slide: SlideFilter,
}

impl<T: Element> Operands<'_, T> {
    /// The source planes of a group of an image.
    ///
    /// # Safety
    /// Nothing may write the source while the borrow is used.
    #[inline(always)]
    pub unsafe fn sources(&self, image: usize, group: usize) -> &[T] {
        let elements = self.planes.sources * self.planes.source_plane();
        let start = (image * self.planes.groups + group) * elements;
        // SAFETY: the caller's promise.
        unsafe { self.source.slice(start..start + elements) }
    }

    /// The packed weights of a panel of a group.
    ///
    /// # Safety
    /// Nothing may write them while the borrow is used.
    #[inline(always)]
    pub unsafe fn weights(&self, group: usize, panel: usize) -> &[f32] {
        let start = (group * self.planes.panels() + panel) * self.panel_elements;
        // SAFETY: the caller's promise.
        unsafe { self.packed.slice(start..start + self.panel_elements) }
    }

    /// Where a target plane begins.
    #[inline(always)]
    pub fn target_start(&self, image: usize, group: usize, target: usize) -> usize {
        ((image * self.planes.groups + group) * self.planes.targets + target) * self.planes.target_plane()
    }
}
