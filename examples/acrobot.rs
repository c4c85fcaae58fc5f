//! Two links are swung up by proximal policy optimization: solved when a hundred episodes have a mean return of -100.

#[path = "agents/mod.rs"]
mod agents;

use agents::acrobot::Acrobot;
use agents::command::{self, Learned, Options};
use agents::environment::Environment;
use agents::policy::Perceptron;
use agents::ppo::{Ppo, Settings};
use agents::vector::Vector;
use gradus::train::Result;
use std::process::ExitCode;

const GOAL: f32 = -100.0;

fn learn(options: &Options) -> Result<Learned> {
    let settings = Settings {
        environments: options.environments.unwrap_or(16),
        steps: 64,
        learning_rate: 1e-3,
        annealed_over: options.steps.unwrap_or(500_000),
        trace: 0.94,
        entropy_share: 0.01,
        seed: options.seed,
        threads: options.threads,
        ..Settings::default()
    };
    let limit = settings.annealed_over;
    let policy = Perceptron { width: 64, actions: Acrobot::ACTIONS };
    let mut vector = Vector::new(settings.environments, options.seed, Acrobot::default);
    let mut agent = Ppo::new(&policy, Acrobot::OBSERVATION, settings)?;
    command::until_solved(GOAL, limit, || {
        agent.learn(&mut vector)?;
        Ok((agent.taken(), vector.episodes.clone()))
    })
}

fn main() -> ExitCode {
    command::run("acrobot", learn)
}
