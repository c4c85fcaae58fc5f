//! Cross-entropy of rows of logits, and its gradient.
//!
//! The logits may come in blocks of columns, one job after another, so that they need never lie in memory all at
//! once: the log-sum-exp of the columns so far is carried from job to job in the result itself.

use crate::isa::multiversion;
use crate::{Element, Fault, In, Isa, Job, Out, chunk, lanes, math, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// Elements that a gradient takes at a time, so that it may lie over the logits.
const BLOCK: usize = 128;

/// Classes of a block at most: so even with a large vocabulary, blocks of logits have rows enough for a fast product.
const CLASS_BLOCK: usize = 1536;

/// How many classes are summed together, and how many logits of a row come at once where they come in blocks: so many
/// that blocks are of nearly one size, and nothing depends on whether all logits of a row are there at once.
pub fn class_block(classes: usize) -> usize {
    let blocks = classes.div_ceil(CLASS_BLOCK).max(1);
    classes.div_ceil(blocks).next_multiple_of(32).min(classes)
}

/// Which columns of the logits a job is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The class of the first column.
    pub first: usize,
    /// How many columns there are.
    pub count: usize,
    /// How many classes there are in all.
    pub classes: usize,
}

impl Columns {
    /// All columns at once.
    pub fn all(classes: usize) -> Columns {
        Columns { first: 0, count: classes, classes }
    }

    /// The column of a class, if it is among these.
    #[inline(always)]
    fn of(&self, class: u32) -> Option<usize> {
        let column = (class as usize).checked_sub(self.first)?;
        (column < self.count).then_some(column)
    }

    fn is_first(&self) -> bool {
        self.first == 0
    }

    fn is_last(&self) -> bool {
        self.first + self.count == self.classes
    }
}

/// The class that each row should have been.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// A class for each row, as bits: a negative number is a large one, and out of range.
    pub classes: In<u32>,
    /// Rows with this one do not count.
    pub ignored: Option<u32>,
    /// Where a class out of range is reported.
    pub fault: Fault,
}

/// `loss = log_sum_exp - logits[target]` for each row; zero where the target is ignored.
pub struct CrossEntropy<T> {
    logits: In<T>,
    targets: Targets,
    loss: Out<f32>,
    log_sum_exp: Out<f32>,
    columns: Columns,
    rows_per_part: usize,
    body: unsafe fn(&CrossEntropy<T>, usize),
}

impl<T: Element> CrossEntropy<T> {
    /// Of dense rows of logits for these columns. The results are complete once the last columns were given;
    /// until then the loss holds the target's logit.
    pub fn new(
        isa: Isa,
        logits: In<T>,
        targets: Targets,
        columns: Columns,
        loss: Out<f32>,
        log_sum_exp: Out<f32>,
    ) -> CrossEntropy<T> {
        let rows_per_part = rows_per_part(columns);
        CrossEntropy { logits, targets, loss, log_sum_exp, columns, rows_per_part, body: loss_rows::select(isa) }
    }
}

impl<T: Element> Job for CrossEntropy<T> {
    fn parts(&self) -> usize {
        parts_of(self.targets.classes.len(), self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// A part of the losses.
    fn loss_rows<T: Element>(job: &CrossEntropy<T>, part: usize) {
        let columns = job.columns;
        let block = class_block(columns.classes).max(1);
        let rows = chunk(part, job.rows_per_part, job.targets.classes.len());
        // SAFETY: there is a target and a result for each row, and the results are this part's own.
        let (targets, losses, totals) = unsafe {
            (job.targets.classes.slice(rows.clone()), job.loss.slice(rows.clone()), job.log_sum_exp.slice(rows.clone()))
        };
        for (index, row) in rows.enumerate() {
            // SAFETY: the row is inside the operand, which nothing writes while the job runs.
            let logits = unsafe { job.logits.slice(row * columns.count..(row + 1) * columns.count) };
            let (target, loss, total) = (targets[index], &mut losses[index], &mut totals[index]);
            for (block, logits) in logits.chunks(block).enumerate() {
                let own = log_sum_exp(logits);
                *total = if columns.is_first() && block == 0 { own } else { joined(*total, own) };
            }
            if let Some(column) = columns.of(target) {
                *loss = logits[column].to_f32();
            }
            if columns.is_last() {
                // SAFETY: the cell is alive while the program it belongs to runs.
                *loss = unsafe { complete(job, target, *loss, *total) };
            }
        }
    }
}

/// The loss of a row, once the target's logit and the log-sum-exp are known.
#[inline(always)]
unsafe fn complete<T>(job: &CrossEntropy<T>, target: u32, logit: f32, total: f32) -> f32 {
    if job.targets.ignored == Some(target) {
        0.0
    } else if target as usize >= job.columns.classes {
        // SAFETY: the caller's promise.
        unsafe { job.targets.fault.raise(target) };
        f32::NAN
    } else {
        total - logit
    }
}

/// The logarithm of the sum of exponentials; minus infinity if all logits are.
#[inline(always)]
fn log_sum_exp<T: Element>(logits: &[T]) -> f32 {
    let largest = lanes::fold(logits, f32::NEG_INFINITY, T::to_f32, lanes::larger);
    let anchor = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let total = lanes::fold(logits, 0.0, |x| math::exp(x.to_f32() - anchor), |a, b| a + b);
    anchor + math::log(total)
}

/// The log-sum-exp of both.
#[inline(always)]
fn joined(a: f32, b: f32) -> f32 {
    let largest = lanes::larger(a, b);
    let anchor = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    anchor + math::log(math::exp(a - anchor) + math::exp(b - anchor))
}

/// The gradient of the logits: `(softmax - [column = target]) * gradient` for each row; zero where the target is
/// ignored.
pub struct CrossEntropyGradient<T> {
    logits: In<T>,
    targets: Targets,
    log_sum_exp: In<f32>,
    row_gradient: In<f32>,
    gradient: Out<T>,
    columns: Columns,
    rows_per_part: usize,
    body: unsafe fn(&CrossEntropyGradient<T>, usize),
}

impl<T: Element> CrossEntropyGradient<T> {
    /// Of dense rows of logits for these columns. The gradient may lie over the logits.
    pub fn new(
        isa: Isa,
        logits: In<T>,
        targets: Targets,
        columns: Columns,
        log_sum_exp: In<f32>,
        row_gradient: In<f32>,
        gradient: Out<T>,
    ) -> CrossEntropyGradient<T> {
        let (rows_per_part, body) = (rows_per_part(columns), gradient_rows::select(isa));
        CrossEntropyGradient { logits, targets, log_sum_exp, row_gradient, gradient, columns, rows_per_part, body }
    }
}

impl<T: Element> Job for CrossEntropyGradient<T> {
    fn parts(&self) -> usize {
        parts_of(self.targets.classes.len(), self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: as for the loss.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// A part of the gradients.
    fn gradient_rows<T: Element>(job: &CrossEntropyGradient<T>, part: usize) {
        let Columns { count, classes, .. } = job.columns;
        for row in chunk(part, job.rows_per_part, job.targets.classes.len()) {
            // SAFETY: there is a target and a number for each row, which nothing writes.
            let (target, total, scale) = unsafe {
                let row = row..row + 1;
                let target = job.targets.classes.slice(row.clone())[0];
                (target, job.log_sum_exp.slice(row.clone())[0], job.row_gradient.slice(row)[0])
            };
            let start = row * count;
            if job.targets.ignored == Some(target) {
                // SAFETY: the row is this part's own.
                unsafe { job.gradient.slice(start..start + count) }.fill(T::from_f32(0.0));
                continue;
            }
            if target as usize >= classes {
                // SAFETY: the cell is alive while the program it belongs to runs.
                unsafe { job.targets.fault.raise(target) };
            }
            let column = job.columns.of(target);
            // SAFETY: the column is inside the row; it is read before the gradient is written over it.
            let read = |column: usize| unsafe { job.logits.slice(start + column..start + column + 1) }[0].to_f32();
            let logit = column.map(read);
            for first in (0..count).step_by(BLOCK) {
                let range = start + first..start + count.min(first + BLOCK);
                let mut block = [0.0f32; BLOCK];
                let block = &mut block[..range.len()];
                // SAFETY: the block is inside the row, and the borrow ends before the gradient is borrowed.
                for (to, from) in block.iter_mut().zip(unsafe { job.logits.slice(range.clone()) }) {
                    *to = math::exp(from.to_f32() - total) * scale;
                }
                // SAFETY: the block is this part's own.
                for (to, from) in unsafe { job.gradient.slice(range) }.iter_mut().zip(&*block) {
                    *to = T::from_f32(*from);
                }
            }
            if let (Some(column), Some(logit)) = (column, logit) {
                // SAFETY: as above.
                let to = unsafe { job.gradient.slice(start + column..start + column + 1) };
                to[0] = T::from_f32((math::exp(logit - total) - 1.0) * scale);
            }
        }
    }
}

fn rows_per_part(columns: Columns) -> usize {
    (PART_ELEMENTS / columns.count.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCell, bf16, run_alone};

    const IGNORED: u32 = -100i32 as u32;

    struct Rows<T> {
        logits: Vec<T>,
        targets: Vec<u32>,
        cell: FaultCell,
        classes: usize,
    }

    impl<T: Element> Rows<T> {
        fn new(rows: usize, classes: usize) -> Rows<T> {
            let logit = |i: usize| T::from_f32(((i * 37 + i * i % 101) % 257) as f32 / 16.0 - 8.0);
            let target = |row: usize| if row % 5 == 3 { IGNORED } else { (row * 7 % classes) as u32 };
            let (logits, targets) = ((0..rows * classes).map(logit).collect(), (0..rows).map(target).collect());
            Rows { logits, targets, cell: FaultCell::default(), classes }
        }

        fn targets(&self) -> Targets {
            let classes = In::new(self.targets.as_ptr(), self.targets.len());
            Targets { classes, ignored: Some(IGNORED), fault: Fault::new(&self.cell, 4) }
        }

        /// Log-sum-exp and loss of a row.
        fn expected(&self, row: usize) -> (f64, f64) {
            let logits = &self.logits[row * self.classes..][..self.classes];
            let total = logits.iter().map(|x| (x.to_f32() as f64).exp()).sum::<f64>().ln();
            let loss = match self.targets[row] {
                IGNORED => 0.0,
                target => total - logits[target as usize].to_f32() as f64,
            };
            (total, loss)
        }
    }

    fn out<T>(numbers: &mut [T]) -> Out<T> {
        Out::new(numbers.as_mut_ptr(), numbers.len())
    }

    /// The loss with the columns in blocks of `width`, and the gradient written over the logits.
    fn check<T: Element>(rows: usize, classes: usize, width: usize, tolerance: f64) {
        for isa in Isa::available() {
            let mut data = Rows::<T>::new(rows, classes);
            let (mut loss, mut total) = (vec![9.0f32; rows], vec![9.0f32; rows]);
            let mut blocks: Vec<(Columns, Vec<T>)> = (0..classes.div_ceil(width))
                .map(|block| {
                    let range = chunk(block, width, classes);
                    let columns = Columns { first: range.start, count: range.len(), classes };
                    let part = |row: usize| data.logits[row * classes..][range.clone()].to_vec();
                    (columns, (0..rows).flat_map(part).collect())
                })
                .collect();
            for (columns, logits) in &blocks {
                let logits = In::new(logits.as_ptr(), logits.len());
                run_alone(&CrossEntropy::new(isa, logits, data.targets(), *columns, out(&mut loss), out(&mut total)));
            }
            let scales: Vec<f32> = (0..rows).map(|row| 0.5 + row as f32 / 8.0).collect();
            for (columns, logits) in &mut blocks {
                let gradient = out(logits);
                let (total, scales) = (out(&mut total).as_in(), In::new(scales.as_ptr(), rows));
                let logits = gradient.as_in();
                run_alone(&CrossEntropyGradient::new(isa, logits, data.targets(), *columns, total, scales, gradient));
            }
            for row in 0..rows {
                let (expected_total, expected_loss) = data.expected(row);
                assert!((total[row] as f64 - expected_total).abs() < 1e-5, "{isa} {row}: {}", total[row]);
                assert!((loss[row] as f64 - expected_loss).abs() < 1e-5, "{isa} {row}: {}", loss[row]);
                for class in 0..classes {
                    let (columns, gradient) = &blocks[class / width];
                    let found = gradient[row * columns.count + class - columns.first].to_f32() as f64;
                    let softmax = (data.logits[row * classes + class].to_f32() as f64 - expected_total).exp();
                    let hit = (data.targets[row] as usize == class) as u8 as f64;
                    let counts = (data.targets[row] != IGNORED) as u8 as f64;
                    let expected = (softmax - hit) * scales[row] as f64 * counts;
                    assert!((found - expected).abs() < tolerance * scales[row] as f64, "{isa} {row} {class}: {found}");
                }
            }
            assert_eq!(data.cell.take(), None);
            data.targets[0] = classes as u32;
            let (columns, logits) = (Columns::all(classes), In::new(data.logits.as_ptr(), rows * classes));
            run_alone(&CrossEntropy::new(isa, logits, data.targets(), columns, out(&mut loss), out(&mut total)));
            assert_eq!(data.cell.take(), Some((4, classes as u32)));
        }
    }

    #[test]
    fn losses_and_gradients_of_whole_rows_and_of_blocks() {
        for (rows, classes, width) in [(1, 1, 1), (7, 33, 33), (5, 50, 16), (90, 400, 400), (3, 700, 300)] {
            check::<f32>(rows, classes, width, 1e-6);
            check::<bf16>(rows, classes, width, 5e-3);
        }
    }
}
