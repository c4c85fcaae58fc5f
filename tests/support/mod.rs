//! What the test files share.

#![allow(dead_code)]

pub mod comparison;
pub mod fixture;
pub mod numbers;
pub mod rounding;
pub mod second_machine;
pub mod training;
