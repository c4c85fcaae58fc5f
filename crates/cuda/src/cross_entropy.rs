//! Cross-entropy of rows of logits.

use crate::operand::widest;
use crate::{Operand, Source, sources, threads_for};

/// Rows of logits that lie at equal distances, and their targets.
#[derive(Clone, Debug)]
pub struct Logits<'a> {
    /// [rows, classes], with classes one after another.
    pub logits: &'a Operand,
    /// An integer for each row.
    pub targets: &'a Operand,
    /// The target whose rows do not count.
    pub ignored: Option<i32>,
}

impl Logits<'_> {
    /// Whether rows can be read 16 bytes at a time.
    fn is_wide(&self) -> bool {
        self.logits.strides[0].is_multiple_of(widest(self.logits.element)) && self.logits.address.is_multiple_of(16)
    }

    fn source(&self, entry: &'static str, threads: usize) -> Source {
        let (classes, stride) = (self.logits.shape[1], self.logits.strides[0]);
        let width = if self.is_wide() { widest(self.logits.element) } else { 1 };
        let (loss, gradient) = (entry != "cross_entropy_gradient", entry != "cross_entropy");
        let source = Source::new(entry, sources::CROSS_ENTROPY).constant("LOSS", loss as u8);
        let source = source.constant("GRADIENT", gradient as u8);
        let source = source.size("CLASSES", classes).size("STRIDE", stride).constant("WIDTH", width);
        let source = source.constant("THREADS", threads).operand("x", self.logits).address(self.targets.address);
        match self.ignored {
            Some(ignored) => source.constant("IGNORED", ignored),
            None => source,
        }
    }
}

/// The loss and the log-sum-exp of each row, in f32; takes the cell of faults as its last parameter. To be run with so many
/// threads a row.
pub fn cross_entropy(rows: &Logits<'_>, loss: &Operand, total: &Operand) -> (Source, usize) {
    let threads = threads_for(rows.logits.shape[1]);
    let source = rows.source("cross_entropy", threads).constant("HELD", 0);
    (source.address(loss.address).address(total.address), threads)
}

/// The gradient of the logits, over them or at the same distances elsewhere; takes the cell of faults as its last parameter.
/// To be run with so many threads a row.
pub fn cross_entropy_gradient(
    rows: &Logits<'_>,
    total: &Operand,
    row_gradient: &Operand,
    gradient: &Operand,
) -> (Source, usize) {
    let threads = threads_for(rows.logits.shape[1]);
    let source = rows.source("cross_entropy_gradient", threads);
    (source.address(total.address).address(row_gradient.address).operand("y", gradient), threads)
}

/// Shared memory that a block may have besides the little that kernels have of themselves.
const MOST_SHARED: usize = 225 << 10;
/// Threads at most where a row is held, and copies of it are on their way: they need not be many to keep the memory busy.
const HOLDING_THREADS: usize = 512;

/// The loss and the log-sum-exp of each row, and the gradient of the logits over them; takes the cell of faults as its last
/// parameter. To be run with so many threads a row, and so many bytes of shared memory.
pub fn cross_entropy_with_gradient(
    rows: &Logits<'_>,
    loss: &Operand,
    total: &Operand,
    row_gradient: &Operand,
) -> (Source, usize, usize) {
    let bytes = (rows.logits.shape[1] * rows.logits.element.size()).next_multiple_of(16);
    let shared = if bytes <= MOST_SHARED { bytes } else { 0 };
    let (held, threads) = (shared > 0, threads_for(rows.logits.shape[1]));
    let threads = if held { threads.min(HOLDING_THREADS) } else { threads };
    let source = rows.source("cross_entropy_with_gradient", threads).constant("HELD", held as u8);
    let source = source.constant("COPIED", (held && rows.is_wide()) as u8).code(sources::MMA);
    let source = source.element("y_t", rows.logits.element);
    let source = source.address(loss.address).address(total.address).address(row_gradient.address);
    (source, threads, shared)
}
