//! Gradus: a training engine for neural networks.
//!
//! A training step is a fixed program: it is traced once, differentiated, planned to the byte, linked to kernels and
//! replayed. So nothing is allocated while it runs, a stated memory is kept, and the bits are the same on any number of
//! threads. The guide (`docs/guide.md`) goes through all of this with examples; here is the way in short.
//!
//! # Look at numbers: a tape
//!
//! ```
//! use gradus::{Array, GradientTape};
//!
//! let tape = GradientTape::new()?;
//! let x = tape.watch(Array::new([2], &[1.0f32, 2.0])?);
//! let y = (&x * &x * &x).sum_all();
//! let slope = &tape.gradient(&y, &[&x])?[0];
//! assert_eq!(tape.read(slope)?.to_f64(), [3.0, 12.0]);
//! # Ok::<(), gradus::Error>(())
//! ```
//!
//! # Compile a step: a trace
//!
//! Trace a computation on [`Tensor`] handles, differentiate it with [`gradient`], state what a step gives and assigns as a
//! [`Routine`], compile it with [`Trace::compile`], and replay the [`Program`].
//!
//! ```
//! use gradus::backend::Cpu;
//! use gradus::{Array, DType, Routine, Trace, gradient};
//!
//! let trace = Trace::new();
//! let x = trace.input("x", DType::F32, [4, 3]);
//! let y = trace.input("y", DType::F32, [4, 1]);
//! let w = trace.state("w", Array::zeros(DType::F32, [3, 1])?);
//! let error = x.matmul(&w) - &y;
//! let loss = (&error * &error).mean_all();
//! let slope = &gradient(&loss, &[&w])?[0];
//! let step = Routine::new("step").output("loss", &loss).assign(&w, &(&w - slope * 0.1));
//!
//! let mut program = trace.compile(&Cpu::new(2)?, &[step])?;
//! program.write(&x, &[1f32, 0., 0., 0., 1., 0., 0., 0., 1., 1., 1., 1.])?;
//! program.write(&y, &[1f32, 2., 3., 6.])?;
//! for _ in 0..200 {
//!     program.run("step")?;
//! }
//! assert!(program.scalar("loss")? < 1e-4);
//! # Ok::<(), gradus::Error>(())
//! ```
//!
//! # Train a model: layers and a trainer
//!
//! [`layers`] find their weights by name in [`Parameters`]; a [`Trainer`] takes the losses of a batch, traced once, and
//! brings the rest: the budget, micro-batches and recomputation, optimizer, schedule, clipping, checkpoints, metrics.
//!
//! ```
//! use gradus::backend::Cpu;
//! use gradus::layers::Linear;
//! use gradus::{Batch, Budget, DType, Inputs, Parameters, Settings, Trainer, Unwatched};
//! use std::sync::Arc;
//!
//! let losses = |parameters: &Parameters, inputs: &Inputs| {
//!     let (x, y) = (inputs.get("x", DType::F32, [2]), inputs.get("y", DType::F32, [1])); // [b, 2], [b, 1]
//!     let error = Linear::new(&parameters.within("line"), 2, 1).forward(&x) - y;
//!     &error * &error // [b, 1]
//! };
//! let settings = Settings { steps: Some(200), learning_rate: 0.05, memory: Some(Budget::megabytes(64)), ..Settings::default() };
//! let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
//! let points = |step: u64, batch: &mut Batch| {
//!     let x: Vec<f32> = (0..2 * batch.rows()).map(|i| (i as f32 + step as f32).sin()).collect();
//!     batch.write("y", &x.chunks(2).map(|x| 3.0 * x[0] - x[1]).collect::<Vec<_>>())?;
//!     batch.write("x", &x)
//! };
//! assert!(trainer.train(points, &mut Unwatched)?.loss < 1e-2);
//! # Ok::<(), gradus::train::Error>(())
//! ```
//!
//! # Further
//!
//! - Language models of one's own: [`models::CausalModel`], which training, evaluation and [`generate`] take.
//! - Optimizers of one's own: [`optimizers::Optimizer`]; operations, functions and gradients of one's own:
//!   [`ops::Operation`], [`Tensor::elementwise`], [`custom_gradient`]; and how they are tested: [`testing`].
//! - What time and memory go to: [`Profiler`], [`Benchmark`], [`Trainer::profile`].
//! - What training does to a model, and what goes wrong in it: [`watch`].
//! - Gradients in fewer bytes, for slow links: [`compression::Compressor`].
//! - Other machines: [`backend::Backend`], and what a planner asks of one: [`plan::Machine`].
//! - The library behind the command `gradus`: [`train`].

/// The examples of the README and the guide, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide.md")]
struct Examples;

pub use gradus_comm::compression;
pub use gradus_engine::{
    Array, DType, Error, GradientTape, Handles, Layout, Mismatch, Native, Program, Result, Role, Routine, RoutineKey,
    Shape, Tensor, TensorKey, TensorType, Trace, custom_gradient, fisher_diagonal, gauss_newton_vector_product,
    gradient, gradient_or_zeros, gradient_terms, hessian, hessian_vector_product, jacobian, jacobian_vector_product,
    loss_and_hessian_vector_product, vector_jacobian_product,
};
pub use gradus_engine::{backend, curvature, graph, ops, plan, testing};
pub use gradus_train::config::{Clip, Precision, ScheduleKind};
pub use gradus_train::loss_scale::LossScale;
pub use gradus_train::memory::Budget;
pub use gradus_train::parameters::{Initializer, Parameters};
pub use gradus_train::profiler::{Benchmark, Profile, Profiler};
pub use gradus_train::run::{Event, Observer, Stop, Unwatched};
pub use gradus_train::step::{Batch, Inputs, Objective, TrainingStep};
pub use gradus_train::trainer::{GoesOn, Hooks, Settings, Trainer};
pub use gradus_train::watch::HealthInterval;
pub use gradus_train::{
    self as train, generate, layers, loss_scale, losses, models, optimizers, parameters, profiler, schedule, watch,
};
