//! The real binary as a person meets it: on a terminal and in scripts, stopped and resumed, and with bad input.
#![cfg(unix)]

mod bad_input;
mod default_run;
mod interruption;
mod kept;
mod live;
mod no_effect;
mod place;
mod pseudo_terminal;
