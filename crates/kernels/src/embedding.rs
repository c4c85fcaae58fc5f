//! Rows of a table by number, and the way back: rows added to a table by number.

use crate::isa::multiversion;
use crate::{Element, Fault, In, Isa, Job, Out, chunk, parts_of};
use bytemuck::Pod;

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * 1024;

/// Columns of a part where a table has few rows and each is added to often: so there are enough parts.
const BLOCK_COLUMNS: usize = 256;

/// `y[i] = table[ids[i]]`, whole rows. A number that the table does not have is a fault, and a row of zeros.
pub struct Embedding<T> {
    table: In<T>,
    ids: In<u32>,
    y: Out<T>,
    columns: usize,
    table_rows: usize,
    ids_per_part: usize,
    fault: Fault,
}

impl<T: Pod + Send + Sync> Embedding<T> {
    /// Rows of a dense table of `columns` columns.
    pub fn new(table: In<T>, ids: In<u32>, y: Out<T>, columns: usize, fault: Fault) -> Embedding<T> {
        let table_rows = table.len().checked_div(columns).unwrap_or(0);
        let ids_per_part = (PART_ELEMENTS / columns.max(1)).max(1);
        Embedding { table, ids, y, columns, table_rows, ids_per_part, fault }
    }
}

impl<T: Pod + Send + Sync> Job for Embedding<T> {
    fn parts(&self) -> usize {
        if self.columns == 0 { 0 } else { parts_of(self.ids.len(), self.ids_per_part) }
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let (ids, columns) = (chunk(part, self.ids_per_part, self.ids.len()), self.columns);
        // SAFETY: the caller's promise; the result lies over neither operand, and its rows for this range of
        // numbers are this part's own.
        let (numbers, y) =
            unsafe { (self.ids.slice(ids.clone()), self.y.slice(ids.start * columns..ids.end * columns)) };
        for (&id, to) in numbers.iter().zip(y.chunks_exact_mut(columns)) {
            let row = id as usize;
            if row < self.table_rows {
                // SAFETY: the table has the row, as just checked, and nothing writes to it.
                to.copy_from_slice(unsafe { self.table.slice(row * columns..(row + 1) * columns) });
            } else {
                to.fill(T::zeroed());
                // SAFETY: the cell outlives the jobs of its program.
                unsafe { self.fault.raise(id) };
            }
        }
    }
}

/// Where each number occurs: the positions of number 0 in rising order, then those of number 1, and so on. It lies
/// in scratch, written by [`OccurrenceSort`] and read by [`EmbeddingGradient`].
#[derive(Clone, Copy)]
pub struct Occurrences {
    /// By number: where its positions end, and those of the next number begin.
    ends: Out<u32>,
    positions: Out<u32>,
}

impl Occurrences {
    /// Elements of scratch for `ids` numbers below `table_rows`.
    pub fn scratch_elements(ids: usize, table_rows: usize) -> usize {
        ids + table_rows
    }

    /// The occurrences of numbers below `table_rows`, in scratch of [`Occurrences::scratch_elements`] elements.
    pub fn new(scratch: Out<u32>, table_rows: usize) -> Occurrences {
        let positions = scratch.offset(table_rows);
        Occurrences { ends: Out::new(scratch.as_ptr(), table_rows), positions }
    }

    /// The positions of a number.
    ///
    /// # Safety
    /// The sort must have run, and nothing may write to the scratch while the borrow is used.
    #[inline(always)]
    unsafe fn of<'a>(&self, id: usize) -> &'a [u32] {
        // SAFETY: the sort wrote an end for every number, rising and no further than the positions it wrote.
        unsafe {
            let ends = self.ends.as_in().slice(0..id + 1);
            let start = if id == 0 { 0 } else { ends[id - 1] };
            self.positions.as_in().slice(start as usize..ends[id] as usize)
        }
    }
}

/// Finds the occurrences of every number, by counting: one part, since it is little beside the adding that follows.
/// A number out of range is a fault and occurs nowhere.
pub struct OccurrenceSort {
    ids: In<u32>,
    occurrences: Occurrences,
    fault: Fault,
}

impl OccurrenceSort {
    /// Sorts `ids` into `occurrences`.
    pub fn new(ids: In<u32>, occurrences: Occurrences, fault: Fault) -> OccurrenceSort {
        OccurrenceSort { ids, occurrences, fault }
    }
}

impl Job for OccurrenceSort {
    fn parts(&self) -> usize {
        1
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, _part: usize, _scratch: &mut [u8]) {
        let Occurrences { ends, positions } = self.occurrences;
        // SAFETY: the caller's promise; the scratch is this job's alone while it runs.
        let (ids, ends, positions) = unsafe {
            (self.ids.slice(0..self.ids.len()), ends.slice(0..ends.len()), positions.slice(0..positions.len()))
        };
        ends.fill(0);
        for &id in ids {
            match ends.get_mut(id as usize) {
                Some(count) => *count += 1,
                // SAFETY: the cell outlives the jobs of its program.
                None => unsafe { self.fault.raise(id) },
            }
        }
        let mut start = 0;
        for count in ends.iter_mut() {
            start += std::mem::replace(count, start);
        }
        // Each start moves on to the end as the positions are filled in.
        for (position, &id) in ids.iter().enumerate() {
            if let Some(next) = ends.get_mut(id as usize) {
                positions[*next as usize] = position as u32;
                *next += 1;
            }
        }
    }
}

/// `y[r]` = the sum of the rows of `gradient` at the positions where the number `r` occurs, in their order; zeros
/// where it does not. Sums are in f32 and rounded once. If `continued`, they go on from what `y` holds.
pub struct EmbeddingGradient<T> {
    occurrences: Occurrences,
    gradient: In<T>,
    y: Out<T>,
    columns: usize,
    table_rows: usize,
    rows_per_part: usize,
    block_columns: usize,
    continued: bool,
    body: unsafe fn(&EmbeddingGradient<T>, usize, &mut [f32]),
}

impl<T: Element> EmbeddingGradient<T> {
    /// To run after the sort that finds the occurrences. `columns` is the size of a row of both operands.
    pub fn new(isa: Isa, occurrences: Occurrences, gradient: In<T>, y: Out<T>, columns: usize) -> EmbeddingGradient<T> {
        let table_rows = occurrences.ends.len();
        // A row is written once and added to as often as its number occurs: on average so many times.
        let visits = 1 + occurrences.positions.len() / table_rows.max(1);
        // A table that is mostly zeros is cut into whole rows, since long runs of zeros are written fastest.
        let block_columns = if visits == 1 { columns } else { columns.min(BLOCK_COLUMNS) };
        let rows_per_part = (PART_ELEMENTS / (block_columns.max(1) * visits)).max(1);
        let body = rows_of::select(isa);
        let continued = false;
        EmbeddingGradient {
            occurrences,
            gradient,
            y,
            columns,
            table_rows,
            rows_per_part,
            block_columns,
            continued,
            body,
        }
    }

    /// `y` is added to instead.
    pub fn continued(self, continued: bool) -> EmbeddingGradient<T> {
        EmbeddingGradient { continued, ..self }
    }

    fn column_blocks(&self) -> usize {
        self.columns.div_ceil(self.block_columns.max(1))
    }
}

impl<T: Element> Job for EmbeddingGradient<T> {
    fn parts(&self) -> usize {
        parts_of(self.table_rows, self.rows_per_part) * self.column_blocks()
    }

    fn worker_scratch(&self) -> usize {
        self.block_columns * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint blocks of rows and columns, and the machine has the
        // level, since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// A part: some rows, and a block of their columns.
    fn rows_of<T: Element>(job: &EmbeddingGradient<T>, part: usize, scratch: &mut [f32]) {
        let columns = chunk(part % job.column_blocks(), job.block_columns, job.columns);
        let rows = chunk(part / job.column_blocks(), job.rows_per_part, job.table_rows);
        let of_row = |row: usize| row * job.columns + columns.start..row * job.columns + columns.end;
        // SAFETY: the blocks of these rows are this part's own, and the result lies over no operand.
        unsafe {
            match columns.len() == job.columns {
                _ if job.continued => {}
                true => job.y.slice(rows.start * job.columns..rows.end * job.columns).fill(T::zeroed()),
                false => rows.clone().for_each(|row| job.y.slice(of_row(row)).fill(T::zeroed())),
            }
        }
        let sums = &mut scratch[..columns.len()];
        for row in rows {
            // SAFETY: the sort has run before.
            let positions = unsafe { job.occurrences.of(row) };
            if positions.is_empty() {
                continue;
            }
            // SAFETY: as for the zeros.
            let y = unsafe { job.y.slice(of_row(row)) };
            sums.iter_mut().zip(&*y).for_each(|(sum, y)| *sum = y.to_f32());
            for &position in positions {
                // SAFETY: the sort's positions are below the number of rows of the gradient.
                let gradient = unsafe { job.gradient.slice(of_row(position as usize)) };
                for (sum, x) in sums.iter_mut().zip(gradient) {
                    *sum += x.to_f32();
                }
            }
            y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y = T::from_f32(*sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCell, bf16, run_alone};

    fn numbers<T: Element>(count: usize) -> Vec<T> {
        (0..count).map(|i| T::from_f32((i * 37 % 257) as f32 / 64.0 - 2.0)).collect()
    }

    fn ids(count: usize, table_rows: usize) -> Vec<u32> {
        (0..count).map(|i| (i * i * 7 % table_rows) as u32).collect()
    }

    fn forward<T: Element + PartialEq + std::fmt::Debug>(
        ids: &[u32],
        table_rows: usize,
        columns: usize,
    ) -> Option<u32> {
        let table = numbers::<T>(table_rows * columns);
        let mut y = vec![T::from_f32(9.0); ids.len() * columns];
        let cell = FaultCell::default();
        run_alone(&Embedding::new(
            In::new(table.as_ptr(), table.len()),
            In::new(ids.as_ptr(), ids.len()),
            Out::new(y.as_mut_ptr(), y.len()),
            columns,
            Fault::new(&cell, 3),
        ));
        for (row, &id) in ids.iter().enumerate() {
            for column in 0..columns {
                let expected = table.get(id as usize * columns + column).copied().unwrap_or(T::from_f32(0.0));
                assert_eq!(y[row * columns + column], expected, "row {row}, column {column}");
            }
        }
        cell.take().map(|(_, id)| id)
    }

    fn backward<T: Element>(isa: Isa, ids: &[u32], table_rows: usize, columns: usize, tolerance: f64) -> Option<u32> {
        let gradient = numbers::<T>(ids.len() * columns);
        let mut expected = vec![0.0f64; table_rows * columns];
        for (row, &id) in ids.iter().enumerate().filter(|&(_, &id)| (id as usize) < table_rows) {
            for column in 0..columns {
                expected[id as usize * columns + column] += gradient[row * columns + column].to_f32() as f64;
            }
        }
        let mut y = vec![T::from_f32(9.0); table_rows * columns];
        let mut scratch = vec![77u32; Occurrences::scratch_elements(ids.len(), table_rows)];
        let occurrences = Occurrences::new(Out::new(scratch.as_mut_ptr(), scratch.len()), table_rows);
        let cell = FaultCell::default();
        run_alone(&OccurrenceSort::new(In::new(ids.as_ptr(), ids.len()), occurrences, Fault::new(&cell, 3)));
        run_alone(&EmbeddingGradient::new(
            isa,
            occurrences,
            In::new(gradient.as_ptr(), gradient.len()),
            Out::new(y.as_mut_ptr(), y.len()),
            columns,
        ));
        let largest = expected.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
        for (index, (y, expected)) in y.iter().zip(&expected).enumerate() {
            let error = (y.to_f32() as f64 - expected).abs() / largest;
            assert!(
                error <= tolerance,
                "{isa}, {table_rows} x {columns}, element {index}: {} not {expected}",
                y.to_f32()
            );
        }
        cell.take().map(|(_, id)| id)
    }

    /// Few and many occurrences, odd sizes, several parts along rows and columns, and nothing at all.
    const SIZES: [(usize, usize, usize); 7] =
        [(1, 1, 1), (5, 3, 7), (300, 11, 130), (40, 500, 97), (2000, 3, 600), (0, 4, 5), (3, 4, 0)];

    #[test]
    fn rows_are_copied() {
        for (count, table_rows, columns) in SIZES {
            let ids = ids(count, table_rows);
            assert_eq!(forward::<f32>(&ids, table_rows, columns), None);
            assert_eq!(forward::<bf16>(&ids, table_rows, columns), None);
        }
    }

    #[test]
    fn rows_are_added() {
        for isa in Isa::available() {
            for (count, table_rows, columns) in SIZES {
                let ids = ids(count, table_rows);
                assert_eq!(backward::<f32>(isa, &ids, table_rows, columns, 1e-6), None);
                assert_eq!(backward::<bf16>(isa, &ids, table_rows, columns, 4e-3), None);
            }
        }
    }

    #[test]
    fn a_number_out_of_range_is_a_fault_and_zeros() {
        let ids = [0, 9, 2, u32::MAX, 4, 1];
        assert_eq!(forward::<f32>(&ids, 4, 3), Some(4));
        for isa in Isa::available() {
            assert_eq!(backward::<f32>(isa, &ids, 4, 3, 0.0), Some(4));
            assert_eq!(backward::<f32>(isa, &ids, 0, 3, 0.0), Some(0));
        }
    }
}
