//! Ranks that wait for as long as their plan says that computing takes, and exchange what they would exchange: a real step on more ranks
//! than there are cores, beside the one on paper. `bench/paper` runs it.
//!
//! `mpirun.openmpi -n RANKS paper STRETCH SHARD OVERLAP`: computing takes STRETCH times what one thread of this machine is reckoned to
//! take; SHARD and OVERLAP are true or false.

use gradus_engine::backend::{Backend, Cpu, DeviceMemory, Executable, Timing};
use gradus_engine::ops::{Elementwise, Matmul, Operation};
use gradus_engine::plan::{Absorption, BufferId, FusionLimits, Machine, Operand, Plan, Reading, Scratch, Step};
use gradus_engine::{DType, Error, Layout, Result};
use gradus_train::config::{HealthInterval, Sharding};
use gradus_train::lanes::{Lanes, Place};
use gradus_train::language::LanguageModel;
use gradus_train::models::ModelConfig;
use gradus_train::ranks::{Link, Ranks, join, leave};
use gradus_train::run::{Event, Observer, Stop};
use gradus_train::step::{Batch, StepConfig};
use gradus_train::trainer::{Settings, Trainer};
use std::ops::Range;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Sequences of a rank.
const EACH: usize = 32;
const STEPS: u64 = 14;
/// Steps in which the first rank finds out how much is best gathered early.
const FIRST: usize = 4;

/// Plans as the CPU does, and takes so many times as long.
struct Waiting {
    planner: Cpu,
    stretch: f64,
}

/// Keeps what it is given, and computes nothing.
struct WaitingExecutable {
    /// In words, so that every buffer is aligned.
    arena: Vec<u64>,
    plan: Plan,
    /// How much longer than it should the last wait took.
    late: Duration,
}

impl Machine for Waiting {
    fn alignment(&self) -> usize {
        self.planner.alignment()
    }

    fn workers(&self) -> usize {
        self.planner.workers()
    }

    fn fusion(&self) -> FusionLimits {
        self.planner.fusion()
    }

    fn absorbs(&self, product: &Matmul, epilogue: &Elementwise) -> Absorption {
        self.planner.absorbs(product, epilogue)
    }

    fn gives_aside(&self, product: &Matmul, epilogue: &Elementwise, aside: &Elementwise) -> bool {
        self.planner.gives_aside(product, epilogue, aside)
    }

    fn shares_columns(&self, product: &Matmul, rows: usize) -> bool {
        self.planner.shares_columns(product, rows)
    }

    fn holds_logits(&self) -> bool {
        self.planner.holds_logits()
    }

    fn multiplies_tf32(&self) -> bool {
        self.planner.multiplies_tf32()
    }

    fn takes_in(&self, op: &dyn Operation) -> bool {
        self.planner.takes_in(op)
    }

    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading {
        self.planner.reads(op, input, dtype, layout)
    }

    fn scratch(&self, step: &Step) -> Result<Scratch> {
        self.planner.scratch(step)
    }

    fn seconds(&self, step: &Step) -> f64 {
        self.stretch * self.planner.seconds(step)
    }
}

impl Backend for Waiting {
    fn name(&self) -> &'static str {
        "CPU that waits"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(None)
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        let arena = vec![0; plan.regions.total().div_ceil(8)];
        Ok(Box::new(WaitingExecutable { arena, plan: plan.clone(), late: Duration::ZERO }))
    }
}

impl WaitingExecutable {
    fn bytes(&self, buffer: BufferId) -> Range<usize> {
        let buffer = &self.plan.buffers[buffer];
        buffer.offset..buffer.offset + buffer.bytes()
    }

    fn arena(&self) -> &[u8] {
        bytemuck::cast_slice(&self.arena)
    }

    fn arena_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.arena)
    }

    /// Sleeps are a little too long, so the next is so much shorter.
    fn wait(&mut self, seconds: f64) {
        let (start, asked) = (Instant::now(), Duration::from_secs_f64(seconds));
        match asked.checked_sub(self.late) {
            Some(pause) => {
                thread::sleep(pause);
                self.late = start.elapsed().saturating_sub(pause);
            }
            None => self.late -= asked,
        }
    }
}

impl Executable for WaitingExecutable {
    fn run(&mut self, routine: usize) -> Result<()> {
        self.run_steps(routine, 0..self.plan.routines[routine].steps.len())
    }

    fn run_steps(&mut self, routine: usize, steps: Range<usize>) -> Result<()> {
        let seconds = self.plan.routines[routine].steps[steps].iter().map(|step| step.seconds).sum();
        self.wait(seconds);
        Ok(())
    }

    fn run_timed(&mut self, routine: usize, _timing: &mut Timing) -> Result<()> {
        self.run(routine)
    }

    fn relink(&mut self, _plan: &Plan) -> Result<()> {
        Err(Error::OtherMachine { problem: "a rank that waits has one plan".to_string() })
    }

    fn addresses(&self) -> Option<Range<usize>> {
        let range = self.arena().as_ptr_range();
        Some(range.start.addr()..range.end.addr())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        let range = self.bytes(buffer);
        self.arena_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        let start = self.bytes(operand.buffer).start + operand.layout.offset * operand.dtype.size();
        bytes.copy_from_slice(&self.arena()[start..start + bytes.len()]);
        Ok(())
    }

    fn look(&self, buffer: BufferId) -> Option<&[u8]> {
        Some(&self.arena()[self.bytes(buffer)])
    }

    fn look_mut(&mut self, buffer: BufferId) -> Option<&mut [u8]> {
        let range = self.bytes(buffer);
        Some(&mut self.arena_mut()[range])
    }
}

/// The time of each step.
#[derive(Default)]
struct Times(Vec<f64>);

impl Observer for Times {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step(step) = event {
            self.0.push(step.step_ms);
        }
    }

    fn should_stop(&self) -> Stop {
        Stop::No
    }
}

fn reference() -> LanguageModel {
    LanguageModel::new(Rc::new(ModelConfig::gpt2(788, 256, 6, 8, 128)))
}

/// Tokens that nobody reads.
fn zeros(_step: u64, batch: &mut Batch) -> gradus_train::Result<()> {
    batch.numbers_mut::<i32>("tokens")?.fill(0);
    batch.numbers_mut::<i32>("targets")?.fill(0);
    Ok(())
}

/// An argument, as what it is to be.
fn argument<T: FromStr>(place: usize, what: &str) -> T {
    std::env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("argument {place}: {what}"))
}

fn main() {
    let stretch = argument(1, "how many times as long computing takes");
    let shard = if argument(2, "whether ranks update parts") { Sharding::Optimizer } else { Sharding::None };
    let overlap = argument(3, "whether they compute while they exchange");
    let mut transport = join().expect("MPI is there").expect("it is started by mpirun.openmpi");
    let place = Place { rank: transport.rank(), ranks: transport.ranks() };
    let link = Link::measure(&mut *transport).expect("it is measured").expect("there are several ranks");
    let settings = Settings {
        batch: EACH * place.ranks,
        lanes: place.ranks,
        micro_batch: EACH,
        steps: Some(STEPS),
        health: HealthInterval::Off,
        shard,
        overlap,
        ..Settings::default()
    };
    let config = StepConfig {
        lanes: Lanes::at(place.ranks, place),
        shard,
        overlap,
        ..StepConfig::new(Rc::new(reference()), EACH, settings.optimizer.clone())
    };
    let backend = Arc::new(Waiting { planner: Cpu::new(1).expect("it has a thread"), stretch });
    let ranks = Ranks::new(transport);
    let mut trainer = Trainer::on_ranks(reference(), settings, backend.clone(), ranks).expect("it is planned");
    let paper =
        config.on_link(trainer.program().plan(), &link, &*backend).expect("it is told").expect("there are ranks");
    let mut times = Times::default();
    trainer.train(zeros, &mut times).expect("it goes through");
    if place.rank == 0 {
        let mut steps = times.0.split_off(FIRST);
        steps.sort_by(f64::total_cmp);
        let (step, predicted) = (steps[steps.len() / 2], 1000.0 * paper.step);
        println!(
            "{} ranks at {:.0} Mbit/s, shard {shard:?}, overlap {overlap}: {step:.0} ms, on paper {predicted:.0} ({:+.1} %), computing {:.0}, exchanging {:.0}",
            place.ranks,
            8e-6 * link.bytes_per_second,
            100.0 * (predicted / step - 1.0),
            1000.0 * paper.computing,
            1000.0 * paper.exchanging
        );
    }
    leave().expect("all are done");
}
