//! What was shown at the beginning of an episode is asked for at its end. A policy with attention over the whole episode learns it:
//! solved when a hundred episodes have a mean return of 0.95, where guessing has a third.

#[path = "agents/mod.rs"]
mod agents;

use agents::attention::Attention;
use agents::command::{self, Learned, Options};
use agents::environment::Environment;
use agents::ppo::{Ppo, Settings};
use agents::recall::{Recall, STEPS};
use agents::vector::Vector;
use gradus::train::Result;
use std::process::ExitCode;

const GOAL: f32 = 0.95;

fn learn(options: &Options) -> Result<Learned> {
    let settings = Settings {
        environments: options.environments.unwrap_or(32),
        steps: STEPS,
        learning_rate: 3e-3,
        annealed_over: options.steps.unwrap_or(1_000_000),
        discount: 0.5,
        trace: 0.5,
        entropy_share: 0.003,
        seed: options.seed,
        threads: options.threads,
        ..Settings::default()
    };
    let limit = settings.annealed_over;
    let policy = Attention { width: 32, heads: 2, steps: STEPS, actions: Recall::ACTIONS };
    let mut vector = Vector::new(settings.environments, options.seed, Recall::new);
    let mut agent = Ppo::new(&policy, Recall::OBSERVATION, settings)?;
    command::until_solved(GOAL, limit, || {
        agent.learn(&mut vector)?;
        Ok((agent.taken(), vector.episodes.clone()))
    })
}

fn main() -> ExitCode {
    command::run("memory", learn)
}
