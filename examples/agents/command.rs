//! What the examples share as programs: their options, the loop until a task is solved, and the line that they end with.

use super::curve::{self, Curve};
use super::vector::Episodes;
use gradus::train::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// What can be asked of an example.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub seed: u64,
    /// So many seeds, one after another from the seed on.
    pub seeds: u64,
    pub threads: usize,
    /// Environments side by side, if not as many as is usual.
    pub environments: Option<usize>,
    /// Steps of all environments after which it is given up, if not after as many as is usual.
    pub steps: Option<u64>,
    /// Where the learning curve is drawn.
    pub curve: Option<PathBuf>,
    /// Only how fast it is: with the usual settings of others, until it is given up.
    pub speed: bool,
}

/// How a task went.
pub struct Learned {
    /// Steps of all environments until it was solved, if it was.
    pub solved_after: Option<u64>,
    /// The mean return that counts as solved.
    pub goal: f32,
    pub curve: Curve,
    /// How long it took, once the agent was made.
    pub seconds: f64,
}

impl Options {
    /// From the command's arguments. `None`: only help was asked for, and given.
    fn parse(name: &str, arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
        let mut options = Options { seeds: 1, threads: 1, ..Options::default() };
        let mut arguments = arguments.skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let given = arguments.next().unwrap_or_default();
                let problem = || Error::Config(format!("{argument} takes a whole number from 0 up, not {given:?}"));
                given.parse::<u64>().map_err(|_| problem())
            };
            match &argument[..] {
                "--seed" => options.seed = number()?,
                "--seeds" => options.seeds = number()?,
                "--threads" => options.threads = number()? as usize,
                "--envs" => options.environments = Some(number()? as usize),
                "--steps" => options.steps = Some(number()?),
                "--curve" => options.curve = Some(arguments.next().unwrap_or_default().into()),
                "--speed" => options.speed = true,
                "--help" => {
                    println!(
                        "{name} [--seed N] [--seeds N] [--threads N] [--envs N] [--steps N] [--curve FILE.svg] [--speed]"
                    );
                    return Ok(None);
                }
                _ => return Err(Error::Config(format!("{argument:?} is no option of {name}; --help lists them"))),
            }
        }
        if options.speed && (name != "cartpole" || options.curve.is_some()) {
            return Err(Error::Config("--speed is for cartpole alone, and draws no curve".into()));
        }
        match options.seeds {
            0 => Err(Error::Config("--seeds 0 is nothing to do; give a number from 1 up".into())),
            _ => Ok(Some(options)),
        }
    }
}

/// Runs a task for each seed that is asked for; fails unless all of them solve it.
pub fn run(name: &str, task: impl Fn(&Options) -> Result<Learned>) -> ExitCode {
    match run_all(name, task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every seed solved it.
fn run_all(name: &str, task: impl Fn(&Options) -> Result<Learned>) -> Result<bool> {
    let Some(options) = Options::parse(name, std::env::args())? else { return Ok(true) };
    let (mut curves, mut goal, mut failed) = (vec![], 0.0, 0);
    for seed in (0..options.seeds).map(|index| options.seed.wrapping_add(index)) {
        let learned = task(&Options { seed, ..options.clone() })?;
        let seconds = learned.seconds;
        let (last, mean) = learned.curve.last().copied().unwrap_or_default();
        let speed = last as f64 / seconds;
        println!("{name}, seed {seed}: mean return {mean:.2} after {last} steps, {seconds:.2} s, {speed:.0} steps/s");
        match learned.solved_after {
            Some(steps) => println!("solved after {steps} steps"),
            None if options.speed => {}
            None => failed += 1,
        }
        goal = learned.goal;
        curves.push(learned.curve);
    }
    if let Some(path) = &options.curve {
        let title = format!("{name}: mean return of the last 100 episodes, {} seeds", options.seeds);
        std::fs::write(path, curve::drawn(&title, &curves, goal)).map_err(Error::io("write", path))?;
    }
    if failed > 0 {
        eprintln!("not solved for {failed} of {} seeds", options.seeds);
    }
    Ok(failed == 0)
}

/// Learns until a hundred episodes have the mean return, or so many steps were taken. `learn` gives how many were.
pub fn until_solved(goal: f32, limit: u64, mut learn: impl FnMut() -> Result<(u64, Episodes)>) -> Result<Learned> {
    let (mut curve, begun) = (Curve::new(), Instant::now());
    let solved_after = loop {
        let (taken, episodes) = learn()?;
        curve.extend(episodes.mean().map(|mean| (taken, mean)));
        if episodes.reach(goal) {
            break Some(taken);
        }
        if taken >= limit {
            break None;
        }
    };
    Ok(Learned { solved_after, goal, curve, seconds: begun.elapsed().as_secs_f64() })
}
