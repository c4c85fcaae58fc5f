//! The sums of the last lane that is computed here are added to those that wait as soon as a bucket of them is there, so that its
//! exchange need not wait for the others.

use crate::Result;
use crate::ranks::Exchange;
use gradus_engine::Program;
use gradus_engine::plan::{Moment, Plan, PlannedRoutine, verify::verify_after};
use std::ops::Range;

/// The routine that joins the last lane to those before it, cut where each bucket is done.
pub(super) struct Joining {
    routine: String,
    /// In the order of its steps: a bucket, and the steps after which its sums are whole.
    pieces: Vec<(usize, Range<usize>)>,
    /// By piece: whether the last lane's sums of its bucket are there; and how many pieces are done.
    ready: Vec<bool>,
    done: usize,
}

impl Joining {
    /// Of this routine, after the one that leaves the last lane's sums; none if it gives something else between that one's steps.
    pub fn of(plan: &Plan, joins: &str, last: &str) -> Option<Joining> {
        let routine = |name: &str| plan.routines.iter().find(|routine| routine.name == name);
        let (joining, last) = (routine(joins)?, routine(last)?);
        verify_after(plan, joining, last).ok()?;
        let pieces = pieces(joining);
        Some(Joining { routine: joins.to_string(), ready: vec![false; pieces.len()], pieces, done: 0 })
    }

    /// The last lane's sums of a bucket are there: it is joined and exchanged, with those after it that were there before.
    pub fn go_on(&mut self, bucket: usize, exchange: &mut Exchange, program: &mut Program) -> Result<()> {
        let Joining { routine, pieces, ready, done } = self;
        pieces.iter().zip(&mut *ready).filter(|((of, _), _)| *of == bucket).for_each(|(_, ready)| *ready = true);
        while ready.get(*done).copied().unwrap_or(false) {
            let (bucket, steps) = &pieces[*done];
            program.run_steps(&routine[..], steps.clone())?;
            exchange.ready(*bucket, program)?;
            *done += 1;
        }
        if *done == pieces.len() {
            ready.fill(false);
            *done = 0;
        }
        Ok(())
    }
}

/// What a routine does from one bucket's start up to the next.
fn pieces(routine: &PlannedRoutine) -> Vec<(usize, Range<usize>)> {
    let starts = routine.marks.iter().filter(|mark| mark.moment == Moment::Start);
    let mut from = 0;
    let piece = |(group, at)| (group, std::mem::replace(&mut from, at)..at);
    starts.map(|mark| (mark.group, mark.at)).map(piece).collect()
}
