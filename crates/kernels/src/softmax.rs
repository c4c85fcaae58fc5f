//! Softmax and its logarithm along rows.

use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, math, parts_of};

/// Elements of a part: enough to be worth handing to another thread, few enough to balance.
const PART_ELEMENTS: usize = 16 * 1024;

/// `y = exp(x - log(sum(exp(x))))` for each row, or its exponent's argument.
pub struct Softmax<T> {
    x: In<T>,
    y: Out<T>,
    columns: usize,
    rows: usize,
    rows_per_part: usize,
    logarithm: bool,
    body: unsafe fn(&Softmax<T>, usize, &mut [f32]),
}

impl<T: Element> Softmax<T> {
    /// Softmax (or its logarithm) of dense rows of `columns` elements. `y` may be `x`.
    pub fn new(isa: Isa, x: In<T>, y: Out<T>, columns: usize, logarithm: bool) -> Softmax<T> {
        let rows = x.len().checked_div(columns).unwrap_or(0);
        let rows_per_part = (PART_ELEMENTS / columns.max(1)).max(1);
        Softmax { x, y, columns, rows, rows_per_part, logarithm, body: rows_of::select(isa) }
    }
}

impl<T: Element> Job for Softmax<T> {
    fn parts(&self) -> usize {
        parts_of(self.rows, self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        self.columns * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let row = &mut bytemuck::cast_slice_mut(scratch)[..self.columns];
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, row) }
    }
}

multiversion! {
    /// A part: rows are taken to scratch as f32, so `y` may lie over `x`.
    fn rows_of<T: Element>(job: &Softmax<T>, part: usize, row: &mut [f32]) {
        for index in chunk(part, job.rows_per_part, job.rows) {
            let range = index * job.columns..(index + 1) * job.columns;
            // SAFETY: the row is inside the operand, and the borrow ends before `y` is borrowed.
            let x = unsafe { job.x.slice(range.clone()) };
            let largest = lanes::fold(x, f32::NEG_INFINITY, T::to_f32, lanes::larger);
            // SAFETY: the row is this part's own.
            let y = || unsafe { job.y.slice(range) };
            if job.logarithm {
                row.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_f32() - largest);
                let log_total = math::log(lanes::fold(row, 0.0, math::exp, |a, b| a + b));
                y().iter_mut().zip(&*row).for_each(|(to, x)| *to = T::from_f32(x - log_total));
            } else {
                row.iter_mut().zip(x).for_each(|(to, x)| *to = math::exp(x.to_f32() - largest));
                let share = 1.0 / lanes::sum(row);
                y().iter_mut().zip(&*row).for_each(|(to, x)| *to = T::from_f32(x * share));
            }
        }
    }
}
