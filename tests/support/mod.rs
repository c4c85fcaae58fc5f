//! What the test files share.

#![allow(dead_code)]

pub mod fixture;
pub mod numbers;
pub mod training;
