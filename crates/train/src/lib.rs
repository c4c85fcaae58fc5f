//! Models and how they are trained: plain functions on the engine's tensors.

pub mod config;
pub mod data;
mod error;
pub mod models;
pub mod optimisers;

pub use error::{Error, Result};
