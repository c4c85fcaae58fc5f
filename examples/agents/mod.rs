//! Reinforcement learning by a user of the crate: environments, PPO and DQN. The examples `cartpole`, `acrobot`, `memory` and
//! `maze` share it, and `docs/agents.md` says what they come to.

// Each example takes a part of it.
#![allow(dead_code)]

pub mod acrobot;
pub mod attention;
pub mod cartpole;
pub mod command;
pub mod curve;
pub mod dqn;
pub mod environment;
pub mod maze;
pub mod policy;
pub mod ppo;
pub mod random;
pub mod recall;
pub mod replay;
pub mod rollout;
pub mod vector;
