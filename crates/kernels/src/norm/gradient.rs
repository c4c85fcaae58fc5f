//! The gradients of layer norm and RMS norm: one job goes over the rows and leaves, for each block of rows, its
//! share of the sums over all rows; a second one adds the shares, in order.

use super::load;
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, parts_of};

/// Elements of a block of rows, at least.
const BLOCK_ELEMENTS: usize = 16 * 1024;
/// Rows of a block, at least: the shares then take no more than a quarter of the operand's space.
const BLOCK_ROWS: usize = 8;
/// Blocks, at most.
const BLOCKS: usize = 64;
/// Columns of a part of the second job.
const PART_COLUMNS: usize = 256;

/// What the gradient of a norm reads and writes.
pub struct Operands<T> {
    /// The rows that were normalised.
    pub x: In<T>,
    /// The factor of each column.
    pub gain: In<T>,
    /// For each row: one over its standard deviation, or over its root mean square.
    pub inverse_deviation: In<f32>,
    /// The gradient of the normalised rows.
    pub y_gradient: In<T>,
    /// For layer norm: the mean of each row, and the gradient of the bias.
    pub mean_and_bias_gradient: Option<(In<f32>, Out<T>)>,
    /// The gradient of the rows; may be `x` or `y_gradient`.
    pub x_gradient: Out<T>,
    /// The gradient of the gain.
    pub gain_gradient: Out<T>,
}

/// How rows are cut into blocks: by their number and size alone.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    rows: usize,
    columns: usize,
    rows_per_block: usize,
}

impl Blocks {
    /// Blocks of so many rows of `columns` elements.
    pub fn new(rows: usize, columns: usize) -> Blocks {
        let rows_per_block = rows.div_ceil(BLOCKS).max(BLOCK_ELEMENTS / columns.max(1)).max(BLOCK_ROWS);
        Blocks { rows, columns, rows_per_block }
    }

    /// Elements of scratch in which the blocks leave their shares of the sums, of which there are two for layer
    /// norm and one for RMS norm.
    pub fn shares(&self, sums: usize) -> usize {
        self.count() * sums * self.columns
    }

    fn count(&self) -> usize {
        parts_of(self.rows, self.rows_per_block)
    }
}

/// The two jobs of a norm's gradient, to run one after the other. The second reads the `shares` that the first
/// wrote.
pub fn jobs<T: Element>(
    isa: Isa,
    operands: Operands<T>,
    blocks: Blocks,
    shares: Out<f32>,
) -> (RowGradients<T>, ColumnSums<T>) {
    let bias_gradient = operands.mean_and_bias_gradient.as_ref().map(|(_, gradient)| *gradient);
    let targets: Vec<Out<T>> = [operands.gain_gradient].into_iter().chain(bias_gradient).collect();
    let sums = ColumnSums { shares: shares.as_in(), targets, blocks, body: add_shares::select(isa) };
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
        3 * self.blocks.columns * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = bytemuck::cast_slice_mut(&mut scratch[..self.worker_scratch()]);
        // SAFETY: the caller's promise; blocks are disjoint ranges of rows and of shares, and the machine has the
        // level, since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) }
    }
}

multiversion! {
    /// A block: rows are taken to scratch, so the result may lie over either operand.
    fn rows_of<T: Element>(job: &RowGradients<T>, part: usize, scratch: &mut [f32]) {
        let (columns, operands) = (job.blocks.columns, &job.operands);
        let (gain, rows) = scratch.split_at_mut(columns);
        let (normalised, g) = rows.split_at_mut(columns);
        let centred = operands.mean_and_bias_gradient.as_ref();
        let width = if centred.is_some() { 2 * columns } else { columns };
        // SAFETY: nothing writes to the gain while the job runs, and the block's shares are this part's own.
        let shares = unsafe {
            load(gain, operands.gain.slice(0..columns));
            job.shares.slice(part * width..(part + 1) * width)
        };
        shares.fill(0.0);
        let (gain_share, bias_share) = shares.split_at_mut(columns);
        for index in chunk(part, job.blocks.rows_per_block, job.blocks.rows) {
            let range = index * columns..(index + 1) * columns;
            // SAFETY: the rows are inside the operands, and the borrows end before the result is borrowed.
            let inverse_deviation = unsafe {
                let mean = centred.map_or(0.0, |(mean, _)| mean.slice(index..index + 1)[0]);
                let inverse_deviation = operands.inverse_deviation.slice(index..index + 1)[0];
                normalise(normalised, operands.x.slice(range.clone()), mean, inverse_deviation);
                load(g, operands.y_gradient.slice(range.clone()));
                inverse_deviation
            };
            add_products(gain_share, g, normalised);
            // Empty for RMS norm.
            bias_share.iter_mut().zip(&*g).for_each(|(sum, g)| *sum += g);
            g.iter_mut().zip(&*gain).for_each(|(g, gain)| *g *= gain);
            let shift = if centred.is_some() { lanes::sum(g) / columns as f32 } else { 0.0 };
            let stretch = lanes::dot(g, normalised) / columns as f32;
            // SAFETY: the row is this part's own.
            let x_gradient = unsafe { operands.x_gradient.slice(range) };
            for ((to, g), normalised) in x_gradient.iter_mut().zip(&*g).zip(&*normalised) {
                *to = T::from_f32((g - shift - normalised * stretch) * inverse_deviation);
            }
        }
    }
}

#[inline(always)]
fn normalise<T: Element>(to: &mut [f32], x: &[T], mean: f32, inverse_deviation: f32) {
    for (to, x) in to.iter_mut().zip(x) {
        *to = (x.to_f32() - mean) * inverse_deviation;
    }
}

#[inline(always)]
fn add_products(sums: &mut [f32], a: &[f32], b: &[f32]) {
    for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
        *sum += a * b;
    }
}

/// Adds the blocks' shares, first block first.
pub struct ColumnSums<T> {
    shares: In<f32>,
    targets: Vec<Out<T>>,
    blocks: Blocks,
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
        let mut sums = [0.0; PART_COLUMNS];
        for block in 0..job.blocks.count() {
            let start = (block * job.targets.len() + target) * columns;
            // SAFETY: the shares are as many as the blocks need, and nothing writes to them now.
            let share = unsafe { job.shares.slice(start + range.start..start + range.end) };
            sums.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
        }
        // SAFETY: these columns are this part's own.
        let to = unsafe { job.targets[target].slice(range) };
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
            let normalised = |column: usize| (at(x, column) - mean) * inverse;
            let weighted = |column: usize| at(y_gradient, column) * gain[column].to_f32() as f64;
            let shift: f64 = if centred { (0..columns).map(weighted).sum::<f64>() / count } else { 0.0 };
            let stretch = (0..columns).map(|column| weighted(column) * normalised(column)).sum::<f64>() / count;
            for column in 0..columns {
                gain_gradient[column] += at(y_gradient, column) * normalised(column);
                bias_gradient[column] += at(y_gradient, column);
                x_gradient.push(inverse * (weighted(column) - shift - normalised(column) * stretch));
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
            let blocks = Blocks::new(rows, columns);
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
            let (row_gradients, column_sums) = jobs(isa, operands, blocks, output(&mut shares));
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
            let blocks = Blocks::new(rows, columns);
            assert!(blocks.count() <= BLOCKS, "{blocks:?}");
            assert!(blocks.count() * blocks.rows_per_block >= rows, "{blocks:?}");
        }
        assert_eq!(Blocks::new(0, 4).count(), 0);
    }
}
