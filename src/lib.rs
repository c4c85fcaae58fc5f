//! Gradus: a training engine for neural networks.
//!
//! A training step is a fixed program. Trace it once on [`Tensor`] handles, differentiate it with [`gradient`],
//! state what a step gives and assigns as a [`Routine`], compile it with [`Trace::compile`], and replay the
//! [`Program`]: nothing is allocated, and the bits are the same on any number of threads.
//!
//! ```
//! use gradus::backend::Cpu;
//! use gradus::{Array, DType, Routine, Trace, gradient};
//!
//! let trace = Trace::new();
//! let x = trace.input("x", DType::F32, [4, 3]);
//! let y = trace.input("y", DType::F32, [4, 1]);
//! let w = trace.state("w", Array::zeros(DType::F32, [3, 1]));
//! let error = x.matmul(&w) - &y;
//! let loss = (&error * &error).mean_all();
//! let slope = &gradient(&loss, &[&w])?[0];
//! let step = Routine::new("step").output("loss", &loss).assign(&w, &(&w - slope * 0.1));
//!
//! let mut program = trace.compile(&Cpu::new(2)?, &[step])?;
//! program.write("x", &[1f32, 0., 0., 0., 1., 0., 0., 0., 1., 1., 1., 1.])?;
//! program.write("y", &[1f32, 2., 3., 6.])?;
//! for _ in 0..200 {
//!     program.run("step")?;
//! }
//! assert!(program.scalar("loss")? < 1e-4);
//! # Ok::<(), gradus::Error>(())
//! ```

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

pub use gradus_engine::*;
pub use gradus_train::{self as train, config, generate, layers, losses, models, optimizers, parameters};
