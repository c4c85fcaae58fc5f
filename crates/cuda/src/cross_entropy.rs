//! Cross-entropy of rows of logits.

use crate::{Launch, Operand, Source, sources, threads_for};

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
    fn source(&self, entry: &'static str) -> (Source, usize) {
        let (classes, stride) = (self.logits.shape[1], self.logits.strides[0]);
        let most = 16 / self.logits.element.size();
        let wide = stride.is_multiple_of(most) && self.logits.address.is_multiple_of(16);
        let (width, threads) = (if wide { most } else { 1 }, threads_for(classes));
        let (loss, gradient) = (entry != "cross_entropy_gradient", entry != "cross_entropy");
        let source = Source::new(entry, sources::CROSS_ENTROPY).constant("LOSS", loss as u8);
        let source = source.constant("GRADIENT", gradient as u8);
        let source = source.size("CLASSES", classes).size("STRIDE", stride).constant("WIDTH", width);
        let source = source.constant("THREADS", threads).operand("x", self.logits).address(self.targets.address);
        (
            match self.ignored {
                Some(ignored) => source.constant("IGNORED", ignored),
                None => source,
            },
            threads,
        )
    }
}

/// The loss and the log-sum-exp of each row, in f32; takes the cell of faults as its last parameter. To be run with so many
/// threads a row.
pub fn cross_entropy(rows: &Logits<'_>, loss: &Operand, total: &Operand) -> (Source, usize) {
    let (source, threads) = rows.source("cross_entropy");
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
    let (source, threads) = rows.source("cross_entropy_gradient");
    (source.address(total.address).address(row_gradient.address).operand("y", gradient), threads)
}

/// Shared memory that the blocks of a multiprocessor may have besides the little that kernels have of themselves, and what each
/// takes of it besides.
const MOST_SHARED: usize = 225 << 10;
const BLOCK_SHARED: usize = 2 << 10;
/// Threads that a multiprocessor has at a time.
const MOST_THREADS: usize = 2048;
/// Multiprocessors of an H100 or H200.
const MULTIPROCESSORS: usize = 132;
/// The rows of a block that are in shared memory at a time, where there is room: one is computed with while the next comes.
const HELD: usize = 2;

/// The loss and the log-sum-exp of each row, and the gradient of the logits over them.
pub fn cross_entropy_with_gradient(
    rows: &Logits<'_>,
    loss: &Operand,
    total: &Operand,
    row_gradient: &Operand,
    with_fault: impl Fn(Source) -> Source,
) -> Launch {
    let (source, threads) = rows.source("cross_entropy_with_gradient");
    let (count, stride, element) = (rows.logits.shape[0], rows.logits.strides[0], rows.logits.element);
    let bytes = stride * element.size();
    // The copy engine takes pieces of 16 bytes.
    let is_copied = bytes.is_multiple_of(16) && rows.logits.address.is_multiple_of(16);
    let held = if is_copied { (MOST_SHARED / bytes.max(1)).min(HELD) } else { 0 };
    let resident = (MOST_THREADS / threads).min(MOST_SHARED / (held * bytes + BLOCK_SHARED)).max(1);
    let source = source.size("ROWS", count).constant("HELD", held).element("y_t", element).code(sources::COPIES);
    let source = source.address(loss.address).address(total.address).address(row_gradient.address);
    with_fault(source).launch_on([count.min(MULTIPROCESSORS * resident), 1, 1], threads, held * bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    #[test]
    fn rows_are_held_as_far_as_there_is_room() {
        let shape = |classes: usize, rows: usize, element: Element| {
            let logits = Operand {
                strides: vec![classes.next_multiple_of(64), 1],
                ..Operand::dense(element, &[rows, classes], 0)
            };
            let of_rows = Operand::dense(Element::F32, &[rows], 0);
            let of = Logits { logits: &logits, targets: &of_rows, ignored: None };
            let launch = cross_entropy_with_gradient(&of, &of_rows, &of_rows, &of_rows, |source| source);
            (launch.grid[0], launch.block, launch.shared)
        };
        assert_eq!(shape(50_257, 5376, Element::Bf16), (132, 1024, 2 * 50_304 * 2), "two rows at a time");
        assert_eq!(shape(50_257, 100, Element::Bf16), (100, 1024, 2 * 50_304 * 2), "no more blocks than rows");
        assert_eq!(shape(100_000, 5376, Element::Bf16), (132, 1024, 100_032 * 2), "one row");
        assert_eq!(shape(50_257, 5376, Element::F32).2, 50_304 * 4, "one row of f32");
        assert_eq!(shape(200_000, 5376, Element::Bf16), (264, 1024, 0), "none");
        assert_eq!(shape(788, 4096, Element::Bf16), (132 * 8, 256, 2 * 832 * 2));
    }
}
