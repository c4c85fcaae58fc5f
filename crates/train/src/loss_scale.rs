//! Dynamic loss scaling: in f16 small gradients are rounded to zero, so the loss is multiplied by as large a scale as no
//! gradient overflows with, and gradients are divided by it where they are used.
//!
//! The scale and its counts are states of the program, so that a checkpoint has them. A step whose gradients are not finite
//! ends as a fault and changes nothing; the routine [`BACK_OFF`], which is run then, lowers the scale and counts the step
//! as skipped.

use gradus_engine::{Array, DType, Role, Routine, Tensor, TensorType, Trace};

/// The state that holds the scale.
pub const SCALE: &str = "loss_scale";
/// The state that counts good steps since the scale last changed.
pub const GOOD_STEPS: &str = "loss_scale.good_steps";
/// The state that counts all steps that were skipped.
pub const SKIPPED_STEPS: &str = "loss_scale.skipped_steps";
/// The routine that follows a step whose gradients are not finite.
pub const BACK_OFF: &str = "back_off";

/// Where gradients overflow with a scale below this, it is not the scale that makes them.
pub const SMALLEST: f32 = 1e-4;
/// The scale grows no further: 2^96, whose inverse is a normal number.
pub const LARGEST: f32 = (1u128 << 96) as f32;
/// Counts are exact in f32 up to here.
const INTERVAL_MAX: u32 = 1 << 24;

/// How the scale of a loss follows the gradients, in the words of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The scale of the first step.
    pub initial: f32,
    /// What it is multiplied by after `interval` good steps in a row.
    pub growth: f32,
    /// What it is multiplied by after a step that was skipped.
    pub backoff: f32,
    /// Good steps in a row after which it grows.
    pub interval: u32,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

impl LossScale {
    /// What is wrong with it, and what to give instead.
    pub(crate) fn problem(&self) -> Option<String> {
        let LossScale { initial, growth, backoff, interval } = *self;
        if !(SMALLEST..=LARGEST).contains(&initial) {
            return Some(format!("the initial loss scale is {initial}; give a number from {SMALLEST} to {LARGEST:e}"));
        }
        if !(1.0..=LARGEST).contains(&growth) {
            return Some(format!("the growth of the loss scale is {growth}; give a number from 1 up, such as 2"));
        }
        if !(f32::MIN_POSITIVE..1.0).contains(&backoff) {
            return Some(format!(
                "the backoff of the loss scale is {backoff}; give a number between 0 and 1, such as 0.5"
            ));
        }
        let fits = (1..=INTERVAL_MAX).contains(&interval);
        (!fits).then(|| format!("the interval of the loss scale is {interval}; give 1 to {INTERVAL_MAX} steps"))
    }
}

/// A loss scale in a trace.
///
/// ```
/// use gradus_engine::backend::Cpu;
/// use gradus_engine::{Array, DType, Error, Routine, Tensor, Trace, gradient};
/// use gradus_train::loss_scale::{BACK_OFF, LossScale, LossScaler, SCALE};
///
/// let trace = Trace::new();
/// let x = trace.input("x", DType::F16, [2, 3]);
/// let w = trace.state("w", Array::new([3, 1], &[0.5f32; 3])?);
/// let scaler = LossScaler::new(&trace, LossScale { initial: 1e9, ..LossScale::default() });
/// let y = x.matmul(&w.cast(DType::F16)).cast(DType::F32); // [2, 1]
/// let loss = (&y * &y).mean_all();
/// let slope = &gradient(&(&loss * scaler.scale()), &[&w])?[0]; // times the scale
/// let finite = Tensor::global_norm(&[slope]).check_finite("the gradient norm");
/// let step = Routine::new("step").output("norm", &(finite * scaler.inverse()));
/// let step = scaler.good_step(step.assign(&w, &(&w - slope * scaler.inverse() * 0.1)));
///
/// let mut program = trace.compile(&Cpu::new(1)?, &[step, scaler.back_off()])?;
/// program.write_array("x", &Array::from_f64(x.ty(), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?)?;
/// while let Err(Error::NonFinite { .. }) = program.run("step") {
///     program.run(BACK_OFF)?; // nothing else has changed
/// }
/// assert!(program.scalar(SCALE)? < 1e5 && program.scalar("norm")? > 1.0);
/// # Ok::<(), gradus_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LossScaler {
    settings: LossScale,
    scale: Tensor,
    good_steps: Tensor,
    skipped_steps: Tensor,
}

impl LossScaler {
    /// Makes its states.
    #[track_caller]
    pub fn new(trace: &Trace, settings: LossScale) -> LossScaler {
        let initial = Array::from_f64(TensorType::new(DType::F32, []), &[settings.initial as f64]);
        let scale = trace.state_with_role(SCALE, Role::Optimizer, initial.expect("a type of one number"));
        if let Some(problem) = settings.problem() {
            scale.parameter_error("LossScaler::new", problem);
        }
        let good_steps = trace.zero_state_with_role(GOOD_STEPS, Role::Optimizer, DType::F32, []);
        let skipped_steps = trace.zero_state_with_role(SKIPPED_STEPS, Role::Optimizer, DType::F32, []);
        LossScaler { settings, scale, good_steps, skipped_steps }
    }

    /// What the loss is multiplied by before it is differentiated: one f32.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    /// What gradients, or their norm, are multiplied by to be those of the loss itself: one f32.
    #[track_caller]
    pub fn inverse(&self) -> Tensor {
        1.0 / &self.scale
    }

    /// Adds to the routine of a step that it was good, and that the scale grows if enough were. The routine must check
    /// that its gradients are finite.
    #[track_caller]
    pub fn good_step(&self, routine: Routine) -> Routine {
        let counted = &self.good_steps + 1.0;
        let grows = &counted.greater_equal(&counted.full_like(self.settings.interval as f32));
        let grown = (&self.scale * self.settings.growth).minimum(&self.scale.full_like(LARGEST));
        let routine = routine.assign(&self.scale, &grows.select(&grown, &self.scale));
        routine.assign(&self.good_steps, &grows.select(&counted.zeros_like(), &counted))
    }

    /// The routine [`BACK_OFF`], to be run after a step whose gradients were not finite.
    #[track_caller]
    pub fn back_off(&self) -> Routine {
        Routine::new(BACK_OFF)
            .assign(&self.scale, &(&self.scale * self.settings.backoff))
            .assign(&self.good_steps, &self.good_steps.zeros_like())
            .assign(&self.skipped_steps, &(&self.skipped_steps + 1.0))
    }
}
