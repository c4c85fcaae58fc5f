//! What the replays of a training step take, when that is asked for.

use crate::Result;
use crate::profiler::replays;
use gradus_engine::Program;
use gradus_engine::backend::Timing;
use std::time::{Duration, Instant};

/// Replays of a step that are kept one by one, besides the last; the others are only added up.
const KEPT_APART: usize = 8;

/// What a training step took, by the steps of its plan.
#[derive(Clone, Debug)]
pub struct StepTimes {
    /// By routine of the plan: the steps of all its replays together.
    pub routines: Vec<Timing>,
    /// How often each was replayed.
    pub counts: Vec<usize>,
    /// The first replays, and the last, as they came.
    pub replays: Vec<Replay>,
    /// How many of those belong to the step at hand; the others are room.
    kept: usize,
    /// Whether the memory of the process is looked at after each step of the plan.
    with_memory: bool,
}

/// One replay of a routine.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The routine's place in the plan.
    pub routine: usize,
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
    /// What its steps took.
    pub timing: Timing,
}

impl StepTimes {
    /// Room for what the routines of a program take.
    pub fn new(program: &Program, with_memory: bool) -> StepTimes {
        let routines = &program.plan().routines;
        StepTimes {
            routines: routines.iter().map(|routine| Timing::new(routine.steps.len())).collect(),
            counts: vec![0; routines.len()],
            replays: vec![],
            kept: 0,
            with_memory,
        }
    }

    /// The replays of the step at hand that are kept.
    pub fn replays(&self) -> &[Replay] {
        &self.replays[..self.kept]
    }

    /// Another step begins.
    pub(super) fn begin(&mut self) {
        self.routines.iter_mut().for_each(Timing::clear);
        self.counts.fill(0);
        self.kept = 0;
    }

    /// Replays a routine. Allocates nothing in the second step of the same routines.
    pub(super) fn run(&mut self, program: &mut Program, name: &str, is_last: bool) -> Result<()> {
        let known = program.plan().routines.iter().position(|routine| routine.name == name);
        let routine = known.expect("a step replays its own routines");
        replays(routine);
        self.counts[routine] += 1;
        if self.kept >= KEPT_APART && !is_last {
            return Ok(program.run_timed(name, &mut self.routines[routine])?);
        }
        let steps = self.routines[routine].steps.len();
        if self.kept == self.replays.len() {
            let (now, timing) = (Instant::now(), Timing::default());
            self.replays.push(Replay { routine, begin: now, end: now, timing });
        }
        let replay = &mut self.replays[self.kept];
        if replay.timing.steps.len() != steps {
            replay.timing = Timing::new(steps);
            if self.with_memory {
                replay.timing = std::mem::take(&mut replay.timing).with_memory();
            }
        }
        replay.timing.clear();
        (replay.routine, replay.begin) = (routine, Instant::now());
        program.run_timed(name, &mut replay.timing)?;
        replay.end = Instant::now();
        self.kept += 1;
        add(&mut self.routines[routine], &replay.timing);
        Ok(())
    }
}

fn add(sum: &mut Timing, timing: &Timing) {
    sum.busy.resize(timing.busy.len(), Duration::ZERO);
    let pairs =
        |sum: &mut [Duration], timing: &[Duration]| sum.iter_mut().zip(timing).for_each(|(sum, time)| *sum += *time);
    pairs(&mut sum.steps, &timing.steps);
    pairs(&mut sum.busy, &timing.busy);
}
