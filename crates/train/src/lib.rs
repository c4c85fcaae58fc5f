//! Models and how they are trained: plain functions on the engine's tensors.

pub mod config;
mod error;
pub mod models;
pub mod optimisers;
pub mod tokenizer;

pub use error::{Error, Result};
