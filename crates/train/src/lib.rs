//! Models and how they are trained: plain functions on the engine's tensors.

pub mod config;
mod error;
pub mod generate;
pub mod models;
pub mod optimisers;
pub mod run;

pub use error::{Error, Result};
