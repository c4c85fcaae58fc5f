//! A tape for small experiments: compute, differentiate and look at numbers with no ceremony. It is a trace with a
//! backend at hand; a value that is read is compiled and replayed on the spot.

use crate::backend::{Backend, Cpu};
use crate::{Array, Result, Routine, Tensor, Trace, gradient};

/// Records what is done with tensors, gives gradients, and reads values when asked to.
///
/// ```
/// use gradus_engine::{Array, GradientTape};
///
/// let tape = GradientTape::new()?;
/// let x = tape.watch(Array::scalar(3.0f32));
/// let y = &x * &x;
/// let slope = &tape.gradient(&y, &[&x])?[0];
/// let bend = &tape.gradient(slope, &[&x])?[0];
/// assert_eq!(tape.read(slope)?, Array::scalar(6.0f32));
/// assert_eq!(tape.read(bend)?, Array::scalar(2.0f32));
/// # Ok::<(), gradus_engine::Error>(())
/// ```
pub struct GradientTape {
    trace: Trace,
    backend: Box<dyn Backend>,
}

impl GradientTape {
    /// A tape that computes on this thread.
    pub fn new() -> Result<GradientTape> {
        Ok(GradientTape::on(Cpu::new(1)?))
    }

    /// A tape that computes on this backend.
    pub fn on(backend: impl Backend + 'static) -> GradientTape {
        GradientTape { trace: Trace::new(), backend: Box::new(backend) }
    }

    /// Numbers to compute with, and to differentiate by.
    #[track_caller]
    pub fn watch(&self, numbers: Array) -> Tensor {
        self.trace.constant(numbers)
    }

    /// The gradients of `output`, summed over its elements, with respect to each of `inputs`: tensors like others,
    /// to be read, used or differentiated again.
    #[track_caller]
    pub fn gradient(&self, output: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        gradient(output, inputs)
    }

    /// The numbers of a tensor, wherever it stands in the computation.
    #[track_caller]
    pub fn read(&self, tensor: &Tensor) -> Result<Array> {
        let routine = Routine::new("read").output("value", tensor);
        let mut program = self.trace.compile(self.backend.as_ref(), &[routine])?;
        program.run("read")?;
        program.read("value")
    }

    /// The trace under the tape: to compile what was tried out.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}
