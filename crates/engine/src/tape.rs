//! A tape for small experiments: compute, differentiate and look at numbers with no ceremony. It is a trace with a
//! backend at hand; what is read is compiled and replayed on the spot, and compiled once: a loop that records the same
//! code on new numbers replays.

mod question;

use crate::backend::{Backend, Cpu};
use crate::error::Location;
use crate::{Array, Error, Program, Result, Tensor, Trace, gradient};
use question::{Question, Structure};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Records what is done with tensors, gives gradients, and reads values when asked to.
///
/// Make it once, outside of a loop: it keeps the programs that answer what was read, and forgets what was recorded once
/// no tensor leads to it any more.
///
/// ```
/// use gradus_engine::{Array, GradientTape};
///
/// let tape = GradientTape::new()?;
/// let mut at = 3.0f32;
/// for _ in 0..100 {
///     let x = tape.watch(Array::scalar(at));
///     let y = &x * &x - &x;
///     let slope = &tape.gradient(&y, &[&x])?[0];
///     let bend = &tape.gradient(slope, &[&x])?[0];
///     let read = tape.read_all(&[slope, bend])?;
///     at -= (read[0].to_f64()[0] / read[1].to_f64()[0]) as f32;
/// }
/// assert_eq!(at, 0.5);
/// assert_eq!(tape.compiled(), 1);
/// # Ok::<(), gradus_engine::Error>(())
/// ```
pub struct GradientTape {
    trace: Trace,
    backend: Box<dyn Backend>,
    answers: RefCell<Answers>,
}

/// The programs of a tape.
#[derive(Default)]
struct Answers {
    by_structure: HashMap<Structure, Answer>,
    compiled: usize,
    asked: u64,
}

/// A program that answers a question about any numbers.
struct Answer {
    program: Program,
    /// The numbers that the code had in it, and which of them are inputs since they have been seen to change.
    numbers: Vec<f32>,
    varies: Vec<bool>,
    /// What each input holds, watched numbers first.
    inputs: Vec<(String, Option<Arc<Array>>)>,
    last_asked: u64,
}

/// A tape keeps this many programs, those that were asked last.
const ANSWERS_KEPT: usize = 64;

impl GradientTape {
    /// A tape that computes on this thread.
    pub fn new() -> Result<GradientTape> {
        Ok(GradientTape::on(Cpu::new(1)?))
    }

    /// A tape that computes on this backend.
    pub fn on(backend: impl Backend + 'static) -> GradientTape {
        GradientTape { trace: Trace::new(), backend: Box::new(backend), answers: RefCell::default() }
    }

    /// Numbers to compute with, and to differentiate by. Those that are watched in every turn of a loop are not copied
    /// again if they are the same `Arc`.
    #[track_caller]
    pub fn watch(&self, numbers: impl Into<Arc<Array>>) -> Tensor {
        self.trace.forget_unreachable();
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
        Ok(self.read_all(&[tensor])?.swap_remove(0))
    }

    /// The numbers of several tensors; what they have in common is computed once.
    #[track_caller]
    pub fn read_all(&self, tensors: &[&Tensor]) -> Result<Vec<Array>> {
        if tensors.is_empty() {
            return Ok(vec![]);
        }
        let question = Question::of(&self.trace, tensors, Location::caller())?;
        self.answers.borrow_mut().answer(question, &self.trace, self.backend.as_ref())
    }

    /// How many programs it has compiled so far.
    pub fn compiled(&self) -> usize {
        self.answers.borrow().compiled
    }

    /// The trace under the tape: to compile what was tried out.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl Answers {
    fn answer(&mut self, question: Question, trace: &Trace, backend: &dyn Backend) -> Result<Vec<Array>> {
        self.asked += 1;
        let changed = match self.by_structure.get_mut(question.structure()) {
            Some(answer) if answer.fits(&question) => {
                answer.last_asked = self.asked;
                let read = answer.replay(&question);
                // After a kernel's panic there is nothing left to replay.
                if let Err(Error::Panicked { .. }) = read {
                    self.by_structure.remove(question.structure());
                }
                return read;
            }
            Some(answer) => answer.varies_now(&question),
            None => vec![false; question.numbers().len()],
        };
        let mut answer = Answer::compile(&question, changed, trace, backend)?;
        (self.compiled, answer.last_asked) = (self.compiled + 1, self.asked);
        let read = answer.replay(&question);
        if let Err(Error::Panicked { .. }) = read {
            return read;
        }
        if self.by_structure.len() == ANSWERS_KEPT {
            self.forget_oldest();
        }
        self.by_structure.insert(question.into_structure(), answer);
        read
    }

    fn forget_oldest(&mut self) {
        let oldest = self.by_structure.values().map(|answer| answer.last_asked).min();
        self.by_structure.retain(|_, answer| Some(answer.last_asked) != oldest);
    }
}

impl Answer {
    fn compile(question: &Question, varies: Vec<bool>, trace: &Trace, backend: &dyn Backend) -> Result<Answer> {
        let template = question.template(trace, &varies)?;
        let program = template.trace.compile(backend, &[template.routine])?;
        let inputs = template.inputs.into_iter().map(|name| (name, None)).collect();
        Ok(Answer { program, numbers: question.numbers().to_vec(), varies, inputs, last_asked: 0 })
    }

    /// Whether the numbers in the program are those of the question.
    fn fits(&self, question: &Question) -> bool {
        let mut numbers = self.numbers.iter().zip(question.numbers()).zip(&self.varies);
        numbers.all(|((a, b), &varies)| varies || a.to_bits() == b.to_bits())
    }

    /// Which numbers have changed, now or before.
    fn varies_now(&self, question: &Question) -> Vec<bool> {
        let numbers = self.numbers.iter().zip(question.numbers()).zip(&self.varies);
        numbers.map(|((a, b), &varies)| varies || a.to_bits() != b.to_bits()).collect()
    }

    fn replay(&mut self, question: &Question) -> Result<Vec<Array>> {
        let (watched, scalars) = self.inputs.split_at_mut(question.watched().len());
        for ((name, held), numbers) in watched.iter_mut().zip(question.watched()) {
            if !held.as_ref().is_some_and(|held| Arc::ptr_eq(held, numbers)) {
                self.program.write_bytes(&*name, numbers.bytes())?;
                *held = Some(numbers.clone());
            }
        }
        let varying = question.numbers().iter().zip(&self.varies).filter(|(_, varies)| **varies);
        for ((name, _), (number, _)) in scalars.iter().zip(varying) {
            self.program.write(name, &[*number])?;
        }
        self.program.run(question::ROUTINE)?;
        question.output_names().map(|name| self.program.read(&name)).collect()
    }
}
