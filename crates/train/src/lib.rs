//! Models and how they are trained: plain functions on the engine's tensors.

pub mod accumulation;
pub mod checkpoint;
pub mod clipping;
pub mod config;
pub mod data;
pub mod device;
mod error;
pub mod evaluate;
pub mod export;
pub mod files;
pub mod generate;
pub mod images;
mod initializer;
pub mod lanes;
pub mod language;
pub mod layers;
pub mod loss_scale;
pub mod losses;
pub mod memory;
pub mod metrics;
pub mod models;
pub mod optimizers;
pub mod parameters;
pub mod planning;
pub mod profiler;
pub mod ranks;
pub mod run;
pub mod schedule;
pub mod step;
pub mod tensorboard;
pub mod tokenizer;
pub mod trainer;
pub mod training;
pub mod watch;

pub use error::{Error, Result};
