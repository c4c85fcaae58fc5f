//! What the test files share.

#![allow(dead_code)]

pub mod numbers;
