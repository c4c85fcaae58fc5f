//! Models and how they are trained: plain functions on the engine's tensors.

pub mod checkpoint;
pub mod config;
mod error;
pub mod export;
pub mod files;
pub mod models;
pub mod optimisers;

pub use error::{Error, Result};
