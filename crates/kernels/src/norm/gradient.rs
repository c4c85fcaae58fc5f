//! The gradients of layer norm and RMS norm: one job goes over the rows and leaves, for each block of rows, its
//! share of the sums over all rows; a second one adds the shares, in order. Blocks start anew with every sequence of
//! rows, so sequences that come in several calls, each going on with the sums of the one before, give the same bits.

use super::load;
use crate::isa::multiversion;
use crate::lanes::LANES;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, parts_of};
use std::ops::Range;

/// Elements of a block of rows, at least. With half as many, the shares that cores read of each other took a tenth of
/// the time where the cores have no cache in common.
const BLOCK_ELEMENTS: usize = 32 * 1024;
/// Rows of a block, at least: the shares then take no more than a quarter of the operand's space.
const BLOCK_ROWS: usize = 8;
/// Blocks of a sequence of rows, at most.
const BLOCKS: usize = 64;
/// Rows that are differentiated together: as many as keep their sums in registers.
const ROWS: usize = 4;
/// Columns of a part of the second job.
const PART_COLUMNS: usize = 256;

/// What the gradient of a norm reads and writes.
pub struct Operands<T> {
    /// The rows that were normalized.
    pub x: In<T>,
    /// The factor of each column.
    pub gain: In<T>,
    /// For each row: one over its standard deviation, or over its root mean square.
    pub inverse_deviation: In<f32>,
    /// The gradient of the normalized rows.
    pub y_gradient: In<T>,
    /// For layer norm: the mean of each row, and the gradient of the bias.
    pub mean_and_bias_gradient: Option<(In<f32>, Out<T>)>,
    /// The gradient of the rows; may be `x` or `y_gradient`.
    pub x_gradient: Out<T>,
    /// The gradient of the gain.
    pub gain_gradient: Out<T>,
}

/// How sequences of rows are cut into blocks: by the size of one sequence alone.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    sequences: usize,
    /// Rows of a sequence.
    rows: usize,
    columns: usize,
    rows_per_block: usize,
}

impl Blocks {
    /// Blocks of sequences of so many rows of `columns` elements. Sequences of few rows are taken for one.
    pub fn new(sequences: usize, rows: usize, columns: usize) -> Blocks {
        let (sequences, rows) = if rows < BLOCK_ROWS { (1, sequences * rows) } else { (sequences, rows) };
        let rows_per_block = rows.div_ceil(BLOCKS).max(BLOCK_ELEMENTS / columns.max(1)).max(BLOCK_ROWS);
        Blocks { sequences, rows, columns, rows_per_block }
    }

    /// Elements of scratch in which the blocks leave their shares of the sums, of which there are two for layer
    /// norm and one for RMS norm.
    pub fn shares(&self, sums: usize) -> usize {
        self.count() * sums * self.columns
    }

    fn count(&self) -> usize {
        self.sequences * self.blocks_of_sequence()
    }

    fn blocks_of_sequence(&self) -> usize {
        parts_of(self.rows, self.rows_per_block)
    }

    /// The rows of a block.
    fn block(&self, index: usize) -> Range<usize> {
        let (sequence, block) = (index / self.blocks_of_sequence(), index % self.blocks_of_sequence());
        let rows = chunk(block, self.rows_per_block, self.rows);
        sequence * self.rows + rows.start..sequence * self.rows + rows.end
    }
}

/// The two jobs of a norm's gradient, to run one after the other. The second reads the `shares` that the first
/// wrote; if `continued`, its sums go on from what the gradients of gain and bias hold.
pub fn jobs<T: Element>(
    isa: Isa,
    operands: Operands<T>,
    blocks: Blocks,
    shares: Out<f32>,
    continued: bool,
) -> (RowGradients<T>, ColumnSums<T>) {
    let bias_gradient = operands.mean_and_bias_gradient.as_ref().map(|(_, gradient)| *gradient);
    let targets: Vec<Out<T>> = [operands.gain_gradient].into_iter().chain(bias_gradient).collect();
    let sums = ColumnSums { shares: shares.as_in(), targets, blocks, continued, body: add_shares::select(isa) };
    (RowGradients { operands, blocks, shares, body: rows_of::select(isa) }, sums)
}

/// The gradient of each row, and each block's share of the gradients of gain and bias.
pub struct RowGradients<T> {
    operands: Operands<T>,
    blocks: Blocks,
    shares: Out<f32>,
    body: unsafe fn(&RowGradients<T>, usize, &mut [f32]),
}

impl<T: Element> Job for RowGradients<T> {
    fn parts(&self) -> usize {
        self.blocks.count()
    }

    fn worker_scratch(&self) -> usize {
        self.blocks.columns * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = bytemuck::cast_slice_mut(&mut scratch[..self.worker_scratch()]);
        // SAFETY: the caller's promise; blocks are disjoint ranges of rows and of shares, and the machine has the
        // level, since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) }
    }
}

multiversion! {
    /// A block of rows. Whether there are means is told apart here, outside of the loops.
    fn rows_of<T: Element>(job: &RowGradients<T>, part: usize, gain: &mut [f32]) {
        // SAFETY: the caller's promise; nothing writes to the gain while the job runs.
        unsafe {
            load(gain, job.operands.gain.slice(0..job.blocks.columns));
            match &job.operands.mean_and_bias_gradient {
                Some((mean, _)) => block_of_rows::<T, true>(job, part, gain, *mean),
                None => block_of_rows::<T, false>(job, part, gain, In::new(std::ptr::null(), 0)),
            }
        }
    }
}

/// A block of rows, some rows at a time.
///
/// # Safety
/// As for [`Job::run`]; there must be a mean for each row if `CENTRED`.
#[inline(always)]
unsafe fn block_of_rows<T: Element, const CENTRED: bool>(
    job: &RowGradients<T>,
    part: usize,
    gain: &[f32],
    mean: In<f32>,
) {
    let columns = job.blocks.columns;
    let width = if CENTRED { 2 * columns } else { columns };
    // SAFETY: the block's shares are this part's own.
    let shares = unsafe { job.shares.slice(part * width..(part + 1) * width) };
    shares.fill(0.0);
    let (gain_share, bias_share) = shares.split_at_mut(columns);
    let mut together = Together { job, gain, mean, gain_share, bias_share };
    let rows = job.blocks.block(part);
    let whole = rows.start + rows.len() / ROWS * ROWS;
    // SAFETY: the caller's promise; the rows are inside the operands, and their gradients are this part's own.
    unsafe {
        for row in (rows.start..whole).step_by(ROWS) {
            together.rows::<CENTRED, ROWS>(row);
        }
        for row in whole..rows.end {
            together.rows::<CENTRED, 1>(row);
        }
    }
}

/// Numbers that are held in a register.
type Lanes = [f32; LANES];

/// Rows that are differentiated together: so what belongs to columns is read and written once for all of them.
struct Together<'a, T> {
    job: &'a RowGradients<T>,
    gain: &'a [f32],
    mean: In<f32>,
    gain_share: &'a mut [f32],
    bias_share: &'a mut [f32],
}

/// A row: where it starts, and its statistics.
#[derive(Clone, Copy)]
struct Row {
    start: usize,
    mean: f32,
    inverse_deviation: f32,
}

/// Sums over a row, lane by lane: of the gradient of the normalized row, and of its products with that row.
#[derive(Clone, Copy)]
struct Sums {
    shift: Lanes,
    stretch: Lanes,
}

impl<T: Element> Together<'_, T> {
    /// `R` rows. Each is read twice, the second time from the nearest cache: once for all sums, and once for its
    /// gradient.
    ///
    /// # Safety
    /// The rows must be inside the operands, and nothing else may touch their gradients.
    #[inline(always)]
    unsafe fn rows<const CENTRED: bool, const R: usize>(&mut self, first: usize) {
        let columns = self.gain.len();
        let whole = columns - columns % LANES;
        // SAFETY: the caller's promise; there are statistics for each row.
        let rows: [Row; R] = std::array::from_fn(|row| unsafe { self.row::<CENTRED>(first + row) });
        let mut sums = [Sums { shift: [0.0; LANES], stretch: [0.0; LANES] }; R];
        // SAFETY: the caller's promise.
        unsafe {
            for column in (0..whole).step_by(LANES) {
                self.add::<CENTRED, R>(&rows, &mut sums, column, LANES);
            }
            if whole < columns {
                self.add::<CENTRED, R>(&rows, &mut sums, whole, columns - whole);
            }
            // A copy, so that the running sums are never at variable places and stay in registers.
            let sums = sums.map(|sums| (lanes::sum(&sums.shift), lanes::sum(&sums.stretch)));
            for (row, (shift, stretch)) in rows.iter().zip(sums) {
                let (shift, stretch) = (shift / columns as f32, stretch / columns as f32);
                for column in (0..whole).step_by(LANES) {
                    self.write(row, column, LANES, shift, stretch);
                }
                if whole < columns {
                    self.write(row, whole, columns - whole, shift, stretch);
                }
            }
        }
    }

    /// # Safety
    /// There must be statistics for the row, to which nothing writes.
    #[inline(always)]
    unsafe fn row<const CENTRED: bool>(&self, row: usize) -> Row {
        // SAFETY: the caller's promise.
        let (mean, inverse_deviation) = unsafe {
            let mean = if CENTRED { self.mean.slice(row..row + 1)[0] } else { 0.0 };
            (mean, self.job.operands.inverse_deviation.slice(row..row + 1)[0])
        };
        Row { start: row * self.gain.len(), mean, inverse_deviation }
    }

    /// Some elements of a row normalized, and of its gradient: `length` of them from `column` on. Beyond them the
    /// gradient is zero.
    ///
    /// # Safety
    /// The elements must be inside the row, and nothing may write to them.
    #[inline(always)]
    unsafe fn read(&self, row: &Row, column: usize, length: usize) -> (Lanes, Lanes) {
        let (operands, start) = (&self.job.operands, row.start + column);
        // SAFETY: the caller's promise.
        let (mut normalized, g) = unsafe {
            (padded(operands.x.slice(start..start + length)), padded(operands.y_gradient.slice(start..start + length)))
        };
        for x in &mut normalized {
            *x = (*x - row.mean) * row.inverse_deviation;
        }
        (normalized, g)
    }

    /// Adds some columns to the shares of gain and bias, and to the sums over the rows.
    ///
    /// # Safety
    /// As for [`Together::read`].
    #[inline(always)]
    unsafe fn add<const CENTRED: bool, const R: usize>(
        &mut self,
        rows: &[Row; R],
        sums: &mut [Sums; R],
        column: usize,
        length: usize,
    ) {
        let range = column..column + length;
        let gain = padded(&self.gain[range.clone()]);
        let mut gain_share = padded(&self.gain_share[range.clone()]);
        let mut bias_share = if CENTRED { padded(&self.bias_share[range.clone()]) } else { [0.0; LANES] };
        for (row, sums) in rows.iter().zip(sums) {
            // SAFETY: the caller's promise.
            let (normalized, g) = unsafe { self.read(row, column, length) };
            // Over all lanes, always: lanes at variable places would not stay in registers.
            for lane in 0..LANES {
                gain_share[lane] += g[lane] * normalized[lane];
                let weighted = g[lane] * gain[lane];
                if CENTRED {
                    bias_share[lane] += g[lane];
                    sums.shift[lane] += weighted;
                }
                sums.stretch[lane] += weighted * normalized[lane];
            }
        }
        self.gain_share[range.clone()].copy_from_slice(&gain_share[..length]);
        if CENTRED {
            self.bias_share[range].copy_from_slice(&bias_share[..length]);
        }
    }

    /// Writes the gradient of some elements; all of them are read first, so it may lie over either operand.
    ///
    /// # Safety
    /// As for [`Together::read`]; and nothing else may touch the elements of the gradient.
    #[inline(always)]
    unsafe fn write(&self, row: &Row, column: usize, length: usize, shift: f32, stretch: f32) {
        // SAFETY: the caller's promise.
        let (normalized, mut g) = unsafe { self.read(row, column, length) };
        let gain = padded(&self.gain[column..column + length]);
        for lane in 0..LANES {
            g[lane] = (g[lane] * gain[lane] - shift - normalized[lane] * stretch) * row.inverse_deviation;
        }
        let start = row.start + column;
        // SAFETY: the caller's promise; the borrows for reading have ended.
        let to = unsafe { self.job.operands.x_gradient.slice(start..start + length) };
        to.iter_mut().zip(&g).for_each(|(to, g)| *to = T::from_f32(*g));
    }
}

/// Up to as many elements as there are lanes, as f32, and zeros.
#[inline(always)]
fn padded<T: Element>(from: &[T]) -> Lanes {
    let mut lanes = [0.0; LANES];
    load(&mut lanes, from);
    lanes
}

/// Adds the blocks' shares, first block first.
pub struct ColumnSums<T> {
    shares: In<f32>,
    targets: Vec<Out<T>>,
    blocks: Blocks,
    continued: bool,
    body: unsafe fn(&ColumnSums<T>, usize),
}

impl<T: Element> Job for ColumnSums<T> {
    fn parts(&self) -> usize {
        self.targets.len() * parts_of(self.blocks.columns, PART_COLUMNS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; each part has its own columns of one target.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// Some columns of one of the targets; zeros if there were no rows.
    fn add_shares<T: Element>(job: &ColumnSums<T>, part: usize) {
        let columns = job.blocks.columns;
        let parts = parts_of(columns, PART_COLUMNS);
        let (target, range) = (part / parts, chunk(part % parts, PART_COLUMNS, columns));
        // SAFETY: these columns are this part's own.
        let to = unsafe { job.targets[target].slice(range.clone()) };
        let mut sums = [0.0; PART_COLUMNS];
        if job.continued {
            load(&mut sums, to);
        }
        for block in 0..job.blocks.count() {
            let start = (block * job.targets.len() + target) * columns;
            // SAFETY: the shares are as many as the blocks need, and nothing writes to them now.
            let share = unsafe { job.shares.slice(start + range.start..start + range.end) };
            sums.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
        }
        to.iter_mut().zip(&sums).for_each(|(to, sum)| *to = T::from_f32(*sum));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SIZES, assert_close, input, numbers, output, statistics};
    use super::*;
    use crate::{bf16, run_alone};

    /// Which operand the result lies over.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Over {
        Nothing,
        X,
        Gradient,
    }

    /// The gradients of x, gain and bias by definition.
    fn expected<T: Element>(
        x: &[T],
        gain: &[T],
        statistics: &[(f64, f64)],
        y_gradient: &[T],
        centred: bool,
    ) -> [Vec<f64>; 3] {
        let columns = gain.len();
        let count = columns as f64;
        let (mut gain_gradient, mut bias_gradient) = (vec![0.0; columns], vec![0.0; columns]);
        let mut x_gradient = vec![];
        for (row, (mean, inverse)) in statistics.iter().enumerate() {
            let at = |from: &[T], column: usize| from[row * columns + column].to_f32() as f64;
            let normalized = |column: usize| (at(x, column) - mean) * inverse;
            let weighted = |column: usize| at(y_gradient, column) * gain[column].to_f32() as f64;
            let shift: f64 = if centred { (0..columns).map(weighted).sum::<f64>() / count } else { 0.0 };
            let stretch = (0..columns).map(|column| weighted(column) * normalized(column)).sum::<f64>() / count;
            for column in 0..columns {
                gain_gradient[column] += at(y_gradient, column) * normalized(column);
                bias_gradient[column] += at(y_gradient, column);
                x_gradient.push(inverse * (weighted(column) - shift - normalized(column) * stretch));
            }
        }
        [x_gradient, gain_gradient, bias_gradient]
    }

    fn check<T: Element>(rows: usize, columns: usize, centred: bool, over: Over) {
        let what = format!("{rows} rows of {columns}, centred: {centred}, over {over:?}");
        let (x, gain) = (numbers::<T>(rows * columns, 1), numbers::<T>(columns, 2));
        let y_gradient = numbers::<T>(rows * columns, 3);
        let statistics = statistics(&x, columns, centred);
        let mean: Vec<f32> = statistics.iter().map(|(mean, _)| *mean as f32).collect();
        let inverse: Vec<f32> = statistics.iter().map(|(_, inverse)| *inverse as f32).collect();
        let [x_expected, gain_expected, bias_expected] = expected(&x, &gain, &statistics, &y_gradient, centred);
        let mut bits: Vec<Vec<u8>> = vec![];
        for isa in Isa::available() {
            let mut x_gradient = if over == Over::Gradient { y_gradient.clone() } else { x.clone() };
            let (mut gain_gradient, mut bias_gradient) = (gain.clone(), gain.clone());
            let blocks = Blocks::new(1, rows, columns);
            let mut shares = vec![f32::NAN; blocks.shares(if centred { 2 } else { 1 })];
            let operands = Operands {
                x: if over == Over::X { input(&x_gradient) } else { input(&x) },
                gain: input(&gain),
                inverse_deviation: input(&inverse),
                y_gradient: if over == Over::Gradient { input(&x_gradient) } else { input(&y_gradient) },
                mean_and_bias_gradient: centred.then(|| (input(&mean), output(&mut bias_gradient))),
                x_gradient: output(&mut x_gradient),
                gain_gradient: output(&mut gain_gradient),
            };
            let (row_gradients, column_sums) = jobs(isa, operands, blocks, output(&mut shares), false);
            run_alone(&row_gradients);
            run_alone(&column_sums);
            assert_close(&what, &x_gradient, &x_expected);
            assert_close(&what, &gain_gradient, &gain_expected);
            if centred {
                assert_close(&what, &bias_gradient, &bias_expected);
            }
            let all = [&x_gradient, &gain_gradient, &bias_gradient];
            bits.push(all.into_iter().flat_map(|numbers| bytemuck::cast_slice::<T, u8>(numbers)).copied().collect());
        }
        assert!(bits.iter().all(|level| level == &bits[0]), "{what}: instruction sets differ");
    }

    #[test]
    fn gradients_equal_their_definition_on_every_instruction_set() {
        for (rows, columns) in SIZES {
            for centred in [false, true] {
                for over in [Over::Nothing, Over::X, Over::Gradient] {
                    check::<f32>(rows, columns, centred, over);
                    check::<bf16>(rows, columns, centred, over);
                }
            }
        }
    }

    #[test]
    fn blocks_are_few_and_cover_all_rows() {
        for (rows, columns) in [(1, 1), (4096, 768), (1_000_000, 3), (64, 100_000), (513, 1)] {
            for sequences in [1, 3] {
                let blocks = Blocks::new(sequences, rows, columns);
                assert!(blocks.count() <= sequences * BLOCKS, "{blocks:?}");
                let mut next = 0;
                for block in 0..blocks.count() {
                    assert_eq!(blocks.block(block).start, next, "{blocks:?}");
                    next = blocks.block(block).end;
                }
                assert_eq!(next, sequences * rows, "{blocks:?}");
            }
        }
        assert_eq!(Blocks::new(1, 0, 4).count() + Blocks::new(0, 4, 4).count() + Blocks::new(0, 99, 4).count(), 0);
    }
}
