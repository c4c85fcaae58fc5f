//! What the test files share.

#![allow(dead_code, unused_imports)]

pub use gradus::testing::{comparison, numbers, rounding};

pub mod fixture;
pub mod training;
