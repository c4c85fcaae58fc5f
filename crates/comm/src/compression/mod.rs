//! Gradients in fewer bytes, each with its error kept and sent later: what a message leaves out is added to the next gradient.

mod blocks;
mod power_sgd;
mod sparse;
mod threshold;
mod top_k;

pub use blocks::Blocks;
pub use power_sgd::{PowerSgd, Thin};
pub use threshold::Threshold;
pub use top_k::TopK;

/// What turns a gradient into a message and back. The same gradient and state give the same bytes on every machine, and nothing
/// is allocated after it was made.
///
/// The state is the caller's: zeros at first, one for each gradient that is compressed over and over, and a part of
/// checkpoints. Its first numbers, as many as a gradient has, are the error: what was not sent yet.
pub trait Compressor: Send {
    /// Of a gradient.
    fn numbers(&self) -> usize;

    /// Of a state: the error, and what else is kept.
    fn state_numbers(&self) -> usize {
        self.numbers()
    }

    /// Of a message, at most.
    fn most_bytes(&self) -> usize;

    /// Whether every message has that many.
    fn is_of_fixed_size(&self) -> bool {
        true
    }

    /// Writes the message of a gradient and what is left of earlier ones, keeps what it leaves out, and says how many bytes
    /// it has. Where a number is not finite, what is read back is not either, and the state stays as it was.
    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize;

    /// The gradient that a message stands for.
    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]);
}

/// Adds a gradient to the error, if all sums are finite; says whether they are.
fn add(gradient: &[f32], error: &mut [f32]) -> bool {
    let finite = gradient.iter().zip(&*error).all(|(gradient, error)| (gradient + error).is_finite());
    if finite {
        error.iter_mut().zip(gradient).for_each(|(error, gradient)| *error += gradient);
    }
    finite
}

fn write(at: &mut [u8], number: f32) {
    at.copy_from_slice(&number.to_le_bytes());
}

fn read(at: &[u8]) -> f32 {
    f32::from_le_bytes(at.try_into().expect("four bytes"))
}

/// Of a number, and of a place.
const WORD: usize = 4;

#[cfg(test)]
mod tests;
