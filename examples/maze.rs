//! The way through a maze is found from pictures of it by deep Q-learning: solved when a hundred episodes have a mean return within
//! 0.05 of that of the shortest ways, which is two and a half steps more.

#[path = "agents/mod.rs"]
mod agents;

use agents::command::{self, Learned, Options};
use agents::dqn::{Dqn, Settings};
use agents::maze::Maze;
use agents::vector::Vector;
use gradus::train::Result;
use std::process::ExitCode;

/// What the mean return may be short of that of the shortest ways.
const SHORT: f32 = 0.05;

fn learn(options: &Options) -> Result<Learned> {
    let mut settings = Settings { seed: options.seed, threads: options.threads, ..Settings::default() };
    settings.environments = options.environments.unwrap_or(settings.environments);
    let maze = Maze::new(options.seed);
    let goal = maze.best_return() - SHORT;
    let mut vector = Vector::new(settings.environments, options.seed, || maze.clone());
    let mut agent = Dqn::new::<Maze>(settings)?;
    command::until_solved(goal, options.steps.unwrap_or(100_000), || {
        for _ in 0..64 {
            agent.learn(&mut vector)?;
        }
        Ok((agent.taken(), vector.episodes.clone()))
    })
}

fn main() -> ExitCode {
    command::run("maze", learn)
}
