//! A pole is balanced on a cart by proximal policy optimization: solved when a hundred episodes have a mean return of 475.

#[path = "agents/mod.rs"]
mod agents;

use agents::cartpole::CartPole;
use agents::command::{self, Learned, Options};
use agents::environment::Environment;
use agents::policy::Perceptron;
use agents::ppo::{Ppo, Settings};
use agents::vector::Vector;
use gradus::Clip;
use gradus::train::Result;
use std::process::ExitCode;

const GOAL: f32 = 475.0;

/// What single-file implementations in Python have, to be compared with.
fn usual() -> Settings {
    Settings { clip: Clip::Norm(0.5), ..Settings::default() }
}

fn quick() -> Settings {
    Settings {
        environments: 8,
        steps: 64,
        epochs: 10,
        learning_rate: 1e-3,
        annealed_over: 300_000,
        discount: 0.98,
        trace: 0.9,
        entropy_share: 0.0,
        ..Settings::default()
    }
}

fn learn(options: &Options) -> Result<Learned> {
    let mut settings = if options.speed { usual() } else { quick() };
    (settings.seed, settings.threads) = (options.seed, options.threads);
    settings.environments = options.environments.unwrap_or(settings.environments);
    let limit = options.steps.unwrap_or(settings.annealed_over);
    let goal = if options.speed { f32::INFINITY } else { GOAL };
    let policy = Perceptron { width: 64, actions: CartPole::ACTIONS };
    let mut vector = Vector::new(settings.environments, options.seed, CartPole::default);
    let mut agent = Ppo::new(&policy, CartPole::OBSERVATION, settings)?;
    command::until_solved(goal, limit, || {
        agent.learn(&mut vector)?;
        Ok((agent.taken(), vector.episodes.clone()))
    })
}

fn main() -> ExitCode {
    command::run("cartpole", learn)
}
