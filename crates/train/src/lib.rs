//! Models and how they are trained: plain functions on the engine's tensors.

pub mod models;
pub mod optimisers;
