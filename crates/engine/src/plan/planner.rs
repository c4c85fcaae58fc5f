//! The stages one after another, as far as they go without a limit; and for every limit the fastest plan that keeps it.

use super::recompute::{Rung, Ways};
use super::text::RoutineText;
use super::{Buffer, Machine, Options, Parts, Plan, PlannedRoutine, Regions, Report, Request, debug_check, wrong_plan};
use super::{lower, memory, schedule, simplify, verify};
use crate::graph::Graph;
use crate::{Error, Handles, Result};
use std::cell::OnceCell;

/// Routines that are ordered and weighed, and wait for a limit: the fastest plan that keeps it is found quickly.
pub struct Planner<'a> {
    machine: &'a dyn Machine,
    options: Options,
    /// What persists has its place already.
    buffers: Vec<Buffer>,
    /// All but the transients, which depend on the limit.
    regions: Regions,
    routines: Vec<Measured>,
    worker_scratch: usize,
    handles: Handles,
}

/// The ways to carry a routine out, and what each comes to, by its rung, once known.
struct Measured {
    ways: Ways,
    sizes: Vec<OnceCell<Size>>,
}

/// What a way to carry a routine out comes to.
#[derive(Clone, Copy)]
struct Size {
    /// What its transients span.
    bytes: usize,
    seconds: f64,
}

/// What a plan comes to, without the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The size of the arena.
    pub arena: usize,
    /// How long a training step takes, about: every routine as often as it occurs in one.
    pub seconds: f64,
}

/// Of the last ways, that many are tried when none fits: the last one has least alive at once, but another may leave
/// fewer gaps.
const LAST_TRIED: usize = 8;

/// More bytes than any machine has, and few enough to be added up a few times.
const MOST_BYTES: usize = usize::MAX / 8;

impl<'a> Planner<'a> {
    /// Takes routines over one graph as far as it goes without a limit. What each stage made is shown to `report`,
    /// with the stage's name.
    pub(crate) fn new(
        graph: &Graph,
        requests: &[Request],
        machine: &'a dyn Machine,
        options: Options,
        report: &mut Report<'_>,
    ) -> Result<Planner<'a>> {
        let mut buffers = lower::Buffers::of_leaves(graph);
        let mut scheduled = vec![];
        let mut worker_scratch = 0;
        for request in requests {
            let simple = simplify::simplify(graph, request, machine, options.simplify);
            let (graph, request) = if options.simplify { shared(simple, &buffers, machine, options) } else { simple };
            debug_check(|| graph.verify());
            report("simplify", &graph);
            let lowered = lower::lower(&graph, &request, &mut buffers, machine);
            check_countable(&buffers.all, 0)?;
            shown("lower", &lowered.0, &buffers.all, report);
            let routine = schedule::schedule(lowered, &mut buffers, machine, options)?;
            shown("schedule", &routine.routine, &buffers.all, report);
            worker_scratch = worker_scratch.max(routine.worker_scratch);
            scheduled.push(routine);
        }
        let worker_scratch = worker_scratch.next_multiple_of(machine.alignment());
        let mut buffers = buffers.all;
        let workers = machine.workers().saturating_mul(worker_scratch);
        check_countable(&buffers, workers)?;
        let regions = Regions { workers, ..memory::place_what_persists(&mut buffers, machine.alignment()) };
        let measured = |routine| Ways::of(routine, &buffers, machine, options.recompute).map(Measured::new);
        let routines = scheduled.into_iter().map(measured).collect::<Result<_>>()?;
        Ok(Planner { machine, options, buffers, regions, routines, worker_scratch, handles: Handles::default() })
    }

    /// The same planner, whose plans know these handles.
    pub(crate) fn with_handles(self, handles: Handles) -> Planner<'a> {
        Planner { handles, ..self }
    }

    /// The fastest plan whose arena has at most this many bytes; if there is none, the smallest there is.
    pub fn plan(&self, limit: usize) -> Plan {
        self.plan_in_stages(limit, &mut |_, _| {})
    }

    /// As [`Planner::plan`]; what the last stages made is shown to `report`.
    pub(crate) fn plan_in_stages(&self, limit: usize, report: &mut Report<'_>) -> Plan {
        let mut buffers = self.buffers.clone();
        let mut regions = self.regions;
        let mut routines = vec![];
        for measured in &self.routines {
            let rung = measured.ways.rungs()[self.fastest_within(measured, limit)];
            let (mut routine, bytes) = self.placed(measured, &rung, &mut buffers, report);
            routine.place_marks();
            regions.transients = regions.transients.max(self.apart_before(measured) + bytes);
            routines.push(routine);
        }
        let (worker_scratch, alignment, handles) =
            (self.worker_scratch, self.machine.alignment(), self.handles.clone());
        let parts = Parts { buffers, routines, regions, worker_scratch, alignment, handles };
        let plan = Plan::new(parts).unwrap_or_else(|problem| wrong_plan(&problem));
        report("memory", &plan);
        plan
    }

    /// What [`Planner::plan`] would give for this limit: much sooner, if it was asked for similar limits before.
    pub fn estimate(&self, limit: usize) -> Estimate {
        let mut estimate = Estimate { arena: 0, seconds: 0.0 };
        let mut transients = 0;
        for measured in &self.routines {
            let size = self.size(measured, self.fastest_within(measured, limit));
            transients = transients.max(self.apart_before(measured) + size.bytes);
            estimate.seconds += measured.ways.times_per_step() as f64 * size.seconds;
        }
        estimate.arena = self.regions.total() + transients;
        estimate
    }

    /// A routine in one of its ways, its buffers placed; and what its transients span.
    fn placed(
        &self,
        measured: &Measured,
        rung: &Rung,
        buffers: &mut Vec<Buffer>,
        report: &mut Report<'_>,
    ) -> (PlannedRoutine, usize) {
        let recomputed = measured.ways.at(rung, buffers);
        shown("recompute", &recomputed.0, buffers, report);
        let Regions { states, inputs, constants, .. } = self.regions;
        let base = states + inputs + constants + self.apart_before(measured);
        let bytes = memory::place(&recomputed, buffers, base, self.machine.alignment(), self.options);
        (recomputed.0, bytes)
    }

    /// Bytes of transients before those of a routine: those of routines that are apart, which come first, each after those
    /// before it.
    fn apart_before(&self, measured: &Measured) -> usize {
        let before = |other: &&Measured| !std::ptr::eq(*other, measured);
        let others = self.routines.iter().take_while(|other| !measured.ways.is_apart() || before(other));
        others.filter(|other| other.ways.is_apart()).map(|other| self.size(other, 0).bytes).sum()
    }

    /// The size of one of a routine's ways. Placing takes long, so that it is done once for each way and only if asked
    /// for.
    fn size(&self, measured: &Measured, rung: usize) -> Size {
        *measured.sizes[rung].get_or_init(|| {
            let rung = &measured.ways.rungs()[rung];
            let (routine, bytes) = self.placed(measured, rung, &mut self.buffers.clone(), &mut |_, _| {});
            Size { bytes, seconds: routine.seconds() }
        })
    }

    /// The fastest way that keeps the arena within the limit, or else the smallest.
    fn fastest_within(&self, measured: &Measured, limit: usize) -> usize {
        let limit = limit.saturating_sub(self.regions.total() + self.apart_before(measured));
        let rungs = measured.ways.rungs();
        if measured.ways.is_apart() {
            return 0;
        }
        // No placement needs less than what is alive at once.
        let fits = |&rung: &usize| rungs[rung].alive <= limit && self.size(measured, rung).bytes <= limit;
        (0..rungs.len()).find(fits).unwrap_or_else(|| self.smallest(measured))
    }

    fn smallest(&self, measured: &Measured) -> usize {
        let rungs = measured.ways.rungs();
        let last = (1..rungs.len()).rev().take(LAST_TRIED);
        let bytes = |rung: usize| self.size(measured, rung).bytes;
        let smaller = |best: usize, rung: usize| {
            if rungs[rung].alive < bytes(best) && bytes(rung) < bytes(best) { rung } else { best }
        };
        last.chain([0]).reduce(smaller).expect("a ladder has a rung")
    }
}

/// A graph with products that share their columns, where the machine would have that and no more is alive at once than without.
fn shared(
    simple: (Graph, Request),
    buffers: &lower::Buffers,
    machine: &dyn Machine,
    options: Options,
) -> (Graph, Request) {
    let Some(sharing) = simplify::sharing_columns(&simple.0, &simple.1, machine) else { return simple };
    let alive = |(graph, request): &(Graph, Request)| {
        let mut buffers = buffers.clone();
        let lowered = lower::lower(graph, request, &mut buffers, machine);
        // What cannot be counted is refused, whichever way is taken.
        check_countable(&buffers.all, 0).map_or(usize::MAX, |()| schedule::least_alive(&lowered, &buffers, options))
    };
    if alive(&sharing) <= alive(&simple) { sharing } else { simple }
}

/// Refuses buffers that are too many bytes to be counted, with room to spare: where these pass, sums of some of them, of
/// copies that are made again and of the gaps between them do not overflow.
fn check_countable(buffers: &[Buffer], workers: usize) -> Result<()> {
    let needed = buffers.iter().fold(workers, |sum, buffer| sum.saturating_add(buffer.bytes()));
    if needed <= MOST_BYTES {
        return Ok(());
    }
    Err(Error::TooLarge { needed, available: MOST_BYTES })
}

/// Verifies and shows what a stage made of a routine.
fn shown(stage: &str, routine: &PlannedRoutine, buffers: &[Buffer], report: &mut Report<'_>) {
    debug_check(|| verify::verify_draft(routine, buffers));
    report(stage, &RoutineText { routine, buffers });
}

impl Measured {
    fn new(ways: Ways) -> Measured {
        let sizes = ways.rungs().iter().map(|_| OnceCell::new()).collect();
        Measured { ways, sizes }
    }
}
