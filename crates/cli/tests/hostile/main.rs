//! The real binary with what nobody means to give it: numbers at the edges of their types, names that are no text, text
//! that would steer a terminal.

mod numbers;
#[cfg(unix)]
mod outside;
#[path = "../support/mod.rs"]
#[allow(dead_code)] // Other tests use the rest of it.
mod support;
