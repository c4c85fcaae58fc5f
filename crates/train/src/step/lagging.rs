//! The end of a step with other ranks, and what of it is left for the next one to do as it goes along: weights are gathered, or
//! updated, where the forward pass first needs them.

use super::{SQUARES, TrainingStep};
use crate::Result;
use crate::ranks::{Exchange, Ranks};
use gradus_engine::Program;
use gradus_engine::plan::{Moment, Plan, PlannedRoutine, verify::verify_between};

/// Where the update of the last step stands.
#[derive(Default)]
pub(super) struct Lagging {
    /// Whether the next step is taken without anything between: then the update may be left to it.
    allowed: bool,
    /// Whether weights, or sums, are still to be gathered and awaited.
    is_behind: bool,
    /// The update, if it can be cut.
    update: Option<Cut>,
}

/// A routine that is replayed in pieces: each from where it needs a bucket up to where it needs the next.
struct Cut {
    /// By piece: the bucket that it needs, and its first step.
    pieces: Vec<(usize, usize)>,
    steps: usize,
    /// Steps that are done, and pieces that were begun.
    done: usize,
    begun: usize,
}

impl Lagging {
    /// Of the routines of a plan.
    pub fn of(plan: &Plan, is_sharded: bool) -> Lagging {
        let routine = |name: &str| plan.routines.iter().find(|routine| routine.name == name);
        let (Some(update), Some(first)) = (routine("update"), routine("first")) else { return Lagging::default() };
        let is_fit = !is_sharded && verify_between(plan, update, first).is_ok() && gives_early(update);
        Lagging { update: is_fit.then(|| Cut::of(update)), ..Lagging::default() }
    }

    /// Cuts the update only where all ranks can: those with more lanes than others have other plans, and ranks must exchange in
    /// the same order.
    pub fn agreed(mut self, ranks: &mut Ranks) -> Result<Lagging> {
        if ranks.least(self.update.is_some().into())? == 0 {
            self.update = None;
        }
        Ok(self)
    }

    pub fn is_allowed(&self) -> bool {
        self.allowed
    }
}

/// Whether all that a routine gives is there when it needs the first bucket.
fn gives_early(routine: &PlannedRoutine) -> bool {
    let first = routine.marks.first().map_or(0, |mark| mark.at);
    let made = |id: usize| routine.steps[..first].iter().any(|step| step.outputs.iter().any(|made| made.buffer == id));
    routine.outputs.iter().all(|(_, output)| made(output.buffer))
}

impl Cut {
    fn of(routine: &PlannedRoutine) -> Cut {
        let pieces = routine.marks.iter().map(|mark| (mark.group, mark.at)).collect();
        Cut { pieces, steps: routine.steps.len(), done: 0, begun: 0 }
    }

    /// The end of the piece that needs a bucket.
    fn end_of(&self, bucket: usize) -> usize {
        let piece = self.pieces.iter().position(|(known, _)| *known == bucket);
        piece.map_or(self.steps, |piece| self.pieces.get(piece + 1).map_or(self.steps, |(_, at)| *at))
    }
}

impl TrainingStep {
    /// From now on a step may leave a part of its update to the next one, which must follow at once or [`TrainingStep::finish`].
    pub(crate) fn may_lag(&mut self, allowed: bool) {
        self.lagging.allowed = allowed;
    }

    /// Whether a step computes while others are written to.
    fn overlaps(&self) -> bool {
        self.may_overlap() && !self.is_timed()
    }

    /// Whether it would if it was not timed.
    fn may_overlap(&self) -> bool {
        self.config().overlap && self.exchange.as_ref().is_some_and(|exchange| exchange.is_beside())
    }

    /// Whether the last lane is joined to those before it while it is computed.
    pub(super) fn joins_early(&self) -> bool {
        self.exchange.is_some() && self.joining.is_some() && self.overlaps()
    }

    /// Replays a routine that leaves sums. The first of a step meets what is left of the step before, and the last gives what it
    /// has to be exchanged as soon as it has it.
    pub(super) fn run_summing(&mut self, name: &str, is_first: bool, is_last: bool) -> Result<()> {
        let (is_behind, overlaps) = (self.lagging.is_behind, self.overlaps());
        let TrainingStep { exchange: Some(exchange), .. } = self else { return self.run_routine(name) };
        if is_behind {
            exchange.gather()?;
        }
        let gives = exchange.gives();
        if !overlaps || !(is_first || is_last) {
            self.finish()?;
            if !gives {
                return self.run_routine(name);
            }
        }
        let TrainingStep { exchange, lagging, joining, program, .. } = self;
        let exchange = exchange.as_mut().expect("there are other ranks");
        program.run_marked(name, |program, moment, bucket| match moment {
            Moment::Await => lagging.catch_up(exchange, program, Some(bucket)),
            Moment::Start if is_last => {
                lagging.catch_up(exchange, program, None)?;
                match joining {
                    Some(joining) => joining.go_on(bucket, exchange, program)?,
                    None => exchange.ready(bucket, program)?,
                }
                if overlaps { Ok(()) } else { exchange.wait_for_last() }
            }
            Moment::Start => Ok(()),
        })?;
        lagging.catch_up(exchange, program, None)
    }

    /// Makes the sums of all ranks such that the step is refused by all.
    pub(super) fn spoil(&mut self) -> Result<()> {
        let TrainingStep { exchange, program, .. } = self;
        exchange.as_mut().map_or(Ok(()), |exchange| exchange.spoil(program))
    }

    /// The end of a step with other ranks, by the routine that updates: what can be left to the next step is.
    pub(super) fn update_shared(&mut self, last: &str) -> Result<()> {
        self.exchanged(Exchange::scattered)?;
        let parts = self.parts.as_ref().expect("each of several ranks has its part");
        let is_sharded = parts.is_sharded();
        if !parts.squares.is_empty() {
            self.run_routine(SQUARES)?;
        }
        self.exchanged(Exchange::share_squares)?;
        let lags = self.lagging.allowed && self.may_overlap();
        if is_sharded {
            self.run_routine(last)?;
            self.exchanged(Exchange::take_parts)?;
            self.lagging.is_behind = true;
        } else if lags && last == "update" && self.lagging.update.is_some() {
            self.begin_update()?;
        } else {
            self.gather_all()?;
            self.run_routine(last)?;
        }
        if lags { Ok(()) } else { self.finish() }
    }

    /// Replays what an update does before it needs a bucket: after that, nothing refuses the step.
    fn begin_update(&mut self) -> Result<()> {
        let TrainingStep { program, lagging: Lagging { is_behind, update, .. }, .. } = self;
        let cut = update.as_mut().expect("an update that can be cut");
        let first = cut.pieces.first().map_or(cut.steps, |(_, at)| *at);
        if let Err(error) = program.run_steps("update", 0..first) {
            // All refuse it, and look at all gradients.
            self.gather_all()?;
            return Err(error.into());
        }
        (cut.done, cut.begun, *is_behind) = (first, 0, true);
        Ok(())
    }

    /// Gathers all that is left of a step.
    fn gather_all(&mut self) -> Result<()> {
        let exchange = self.exchange.as_mut().expect("there are other ranks");
        exchange.gather()?;
        exchange.all_gathered()
    }

    /// Does what is left of the last step's update. All ranks must do so at the same time.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let TrainingStep { exchange: Some(exchange), lagging, program, .. } = self else { return Ok(()) };
        if lagging.is_behind {
            exchange.gather()?;
        }
        lagging.catch_up(exchange, program, None)
    }

    /// Does something with the other ranks.
    fn exchanged(&mut self, exchanged: impl FnOnce(&mut Exchange, &mut Program) -> Result<()>) -> Result<()> {
        exchanged(self.exchange.as_mut().expect("there are other ranks"), &mut self.program)
    }
}

impl Lagging {
    /// Does what is left of the update as far as a bucket needs it, or all of it. What is left is being gathered.
    fn catch_up(&mut self, exchange: &mut Exchange, program: &mut Program, bucket: Option<usize>) -> Result<()> {
        if !self.is_behind {
            return Ok(());
        }
        match (&mut self.update, bucket) {
            (Some(cut), bucket) => {
                cut.go_on(bucket.map_or(cut.steps, |bucket| cut.end_of(bucket)), exchange, program)?
            }
            (None, Some(bucket)) => exchange.gathered(bucket)?,
            (None, None) => exchange.all_gathered()?,
        }
        self.is_behind = bucket.is_some();
        Ok(())
    }
}

impl Cut {
    /// Replays up to a step, and waits for every bucket on the way.
    fn go_on(&mut self, end: usize, exchange: &mut Exchange, program: &mut Program) -> Result<()> {
        while self.done < end || (end == self.steps && self.begun < self.pieces.len()) {
            let next = self.pieces.get(self.begun).copied().filter(|(_, at)| *at < end || end == self.steps);
            let until = next.map_or(end, |(_, at)| at);
            if self.done < until {
                program.run_steps("update", self.done..until)?;
                self.done = until;
            }
            if let Some((bucket, _)) = next {
                exchange.gathered(bucket)?;
                self.begun += 1;
            }
        }
        Ok(())
    }
}
