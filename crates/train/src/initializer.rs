//! What weights hold before training.

use gradus_engine::{Array, Shape};
use gradus_kernels::random::philox;
use std::array::from_fn;

/// What a weight holds before training. Random numbers depend on the seed, the weight's name and the place in it alone.
///
/// The fans of a weight [outputs, inputs, ...] are `inputs` and `outputs`, times the sizes of a convolution's kernel; a
/// weight of one axis counts as one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// The same number everywhere.
    Constant(f32),
    /// Normally distributed numbers around zero.
    Normal {
        /// Their standard deviation.
        deviation: f32,
    },
    /// Numbers of equal likelihood.
    Uniform {
        /// The smallest.
        low: f32,
        /// The largest.
        high: f32,
    },
    /// Normally distributed numbers around zero, none of them further from it than a limit.
    TruncatedNormal {
        /// Their standard deviation, before they are cut.
        deviation: f32,
        /// The limit, usually two deviations.
        limit: f32,
    },
    /// Uniform numbers of variance `gain^2 * 2 / (fan in + fan out)`.
    XavierUniform {
        /// What the deviation is multiplied by; 1 for a linear layer.
        gain: f32,
    },
    /// Normal numbers of variance `gain^2 * 2 / (fan in + fan out)`.
    XavierNormal {
        /// What the deviation is multiplied by; 1 for a linear layer.
        gain: f32,
    },
    /// Uniform numbers of variance `2 / ((1 + slope^2) * fan in)`.
    KaimingUniform {
        /// The slope of the leaky ReLU that follows; 0 for ReLU.
        slope: f32,
    },
    /// Normal numbers of variance `2 / ((1 + slope^2) * fan in)`.
    KaimingNormal {
        /// The slope of the leaky ReLU that follows; 0 for ReLU.
        slope: f32,
    },
    /// A matrix [first axis, all others] whose rows, or whose columns if they are fewer, are orthogonal.
    Orthogonal {
        /// The length of those rows or columns.
        gain: f32,
    },
}

impl Initializer {
    /// PyTorch's for weights and biases of linear layers and convolutions: uniform within `1 / sqrt(fan in)`.
    pub fn uniform_in_fan(fan_in: usize) -> Initializer {
        let bound = 1.0 / (fan_in.max(1) as f32).sqrt();
        Initializer::Uniform { low: -bound, high: bound }
    }

    /// Why a weight of this shape cannot start from it, and what to do.
    pub(crate) fn problem(self, shape: &Shape) -> Option<String> {
        if let Initializer::Orthogonal { .. } = self
            && orthogonal_products(shape) > MOST_PRODUCTS
        {
            return Some("to make so many rows orthogonal takes minutes; let them be normal, or fewer".to_string());
        }
        let from_zero = |number: f32| number.is_finite() && number >= 0.0;
        let (is_fine, wanted) = match self {
            Initializer::Zeros | Initializer::Ones => return None,
            Initializer::Constant(number) => (number.is_finite(), "a finite number"),
            Initializer::Uniform { low, high } => {
                (low.is_finite() && high.is_finite() && low <= high, "two finite numbers, the smaller first")
            }
            Initializer::KaimingUniform { slope } | Initializer::KaimingNormal { slope } => {
                (slope.is_finite(), "a finite slope")
            }
            Initializer::Normal { deviation } => (from_zero(deviation), "a finite deviation from 0 up"),
            Initializer::TruncatedNormal { deviation, limit } => {
                (from_zero(deviation) && from_zero(limit), "a finite deviation and limit from 0 up")
            }
            Initializer::XavierUniform { gain }
            | Initializer::XavierNormal { gain }
            | Initializer::Orthogonal { gain } => (from_zero(gain), "a finite gain from 0 up"),
        };
        (!is_fine).then(|| format!("it cannot start from {self:?}; give {wanted}"))
    }

    /// The numbers of a weight of this name and shape.
    pub fn numbers(self, seed: u32, name: &str, shape: &Shape) -> Array {
        let (key, count) = ([seed, hash(name)], shape.elements());
        let (fan_in, fan_out) = fans(shape);
        let xavier = |gain: f32| gain as f64 * (2.0 / (fan_in + fan_out)).sqrt();
        let kaiming = |slope: f32| (2.0 / ((1.0 + (slope as f64).powi(2)) * fan_in)).sqrt();
        let numbers = match self {
            Initializer::Zeros => vec![0.0; count],
            Initializer::Ones => vec![1.0; count],
            Initializer::Constant(number) => vec![number; count],
            Initializer::Normal { deviation } => normal(key, count, deviation as f64),
            Initializer::Uniform { low, high } => uniform(key, count, low as f64, high as f64),
            Initializer::TruncatedNormal { deviation, limit } => {
                (0..count).map(|index| truncated_normal(key, index, deviation as f64, limit as f64)).collect()
            }
            Initializer::XavierUniform { gain } => centered(key, count, xavier(gain)),
            Initializer::XavierNormal { gain } => normal(key, count, xavier(gain)),
            Initializer::KaimingUniform { slope } => centered(key, count, kaiming(slope)),
            Initializer::KaimingNormal { slope } => normal(key, count, kaiming(slope)),
            Initializer::Orthogonal { gain } => orthogonal(key, shape, gain as f64),
        };
        Array::new(shape, &numbers).expect("as many numbers as the shape has")
    }
}

/// How many numbers enter one output, and how many outputs one number enters.
fn fans(shape: &Shape) -> (f64, f64) {
    // Sizes of a weight without numbers may be too large to be multiplied as integers.
    let (outputs, inputs, kernel) = match &shape[..] {
        [] => (1.0, 1.0, 1.0),
        [inputs] => (1.0, *inputs as f64, 1.0),
        [outputs, inputs, kernel @ ..] => {
            (*outputs as f64, *inputs as f64, kernel.iter().map(|&size| size as f64).product())
        }
    };
    ((inputs * kernel).max(1.0), (outputs * kernel).max(1.0))
}

/// Between 0 and 1, neither of them.
fn unit(word: u32) -> f64 {
    (word as f64 + 0.5) / 4_294_967_296.0
}

/// Four random words.
fn block(index: usize, stream: u32, key: [u32; 2]) -> [u32; 4] {
    philox([index as u32, (index >> 32) as u32, stream, 0], key)
}

/// Two normally distributed numbers.
fn normal_pair(a: u32, b: u32, deviation: f64) -> [f64; 2] {
    let radius = (-2.0 * unit(a).ln()).sqrt() * deviation;
    let (sine, cosine) = (std::f64::consts::TAU * unit(b)).sin_cos();
    [radius * cosine, radius * sine]
}

/// Normally distributed numbers, two from each pair of words.
fn normal(key: [u32; 2], count: usize, deviation: f64) -> Vec<f32> {
    let four = |index: usize| {
        let [a, b, c, d] = block(index, 0, key);
        [normal_pair(a, b, deviation), normal_pair(c, d, deviation)].into_iter().flatten().map(|number| number as f32)
    };
    (0..count.div_ceil(4)).flat_map(four).take(count).collect()
}

fn uniform(key: [u32; 2], count: usize, low: f64, high: f64) -> Vec<f32> {
    let four = |index: usize| block(index, 0, key).map(|word| (low + (high - low) * unit(word)) as f32);
    (0..count.div_ceil(4)).flat_map(four).take(count).collect()
}

/// Uniform numbers around zero of a deviation.
fn centered(key: [u32; 2], count: usize, deviation: f64) -> Vec<f32> {
    let bound = 3f64.sqrt() * deviation;
    uniform(key, count, -bound, bound)
}

/// One number: the first of its own sequence of proposals that is taken. Narrow limits are proposed to uniformly, so
/// that a proposal is taken more often than not.
fn truncated_normal(key: [u32; 2], index: usize, deviation: f64, limit: f64) -> f32 {
    let proposals = (0..64).map(|attempt| {
        let [a, b, ..] = block(index, attempt, key);
        if limit < 2.5 * deviation {
            let number = limit * (2.0 * unit(a) - 1.0);
            (number, unit(b) < (-0.5 * (number / deviation).powi(2)).exp())
        } else {
            let [number, _] = normal_pair(a, b, deviation);
            (number, number.abs() <= limit)
        }
    });
    // That none of them is taken has a chance below 2^-64, unless the limit allows nothing but zero.
    proposals.into_iter().find(|(_, taken)| *taken).map_or(0.0, |(number, _)| number as f32)
}

/// Normally distributed rows made orthogonal one after another, in f64: such rows are far enough from each other that what
/// rounding leaves is below what f32 can tell.
fn orthogonal(key: [u32; 2], shape: &Shape, gain: f64) -> Vec<f32> {
    let [rows, columns] = as_matrix(shape);
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut lines = Lines::new(&normal(key, count * length, 1.0), length);
    for first in (0..count).step_by(TOGETHER) {
        let (before, block) = lines.numbers.split_at_mut(first * lines.stride);
        let (before, block) = (&*before, &mut block[..TOGETHER.min(count - first) * lines.stride]);
        // Each of those before is read from memory once for the whole block.
        for others in before.chunks_exact(AT_ONCE * lines.stride) {
            block.chunks_exact_mut(lines.stride).for_each(|own| take_out::<AT_ONCE>(own, others));
        }
        for row in 0..block.len() / lines.stride {
            let (before, rest) = block.split_at_mut(row * lines.stride);
            let own = &mut rest[..lines.stride];
            before.chunks_exact(lines.stride).for_each(|other| take_out::<1>(own, other));
            let norm = own.iter().map(|number| number * number).sum::<f64>().sqrt();
            own.iter_mut().for_each(|number| *number /= norm);
        }
    }
    let at = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        if rows <= columns { lines.at(row, column) } else { lines.at(column, row) }
    };
    (0..shape.elements()).map(|index| (gain * at(index)) as f32).collect()
}

/// Rows and columns of a weight as a matrix: the first axis and all others.
fn as_matrix(shape: &Shape) -> [usize; 2] {
    let rows = shape.first().copied().unwrap_or(1);
    [rows, shape.elements().checked_div(rows).unwrap_or(0)]
}

/// Multiplications that it takes to make the rows of a weight orthogonal, about.
fn orthogonal_products(shape: &Shape) -> f64 {
    let [rows, columns] = as_matrix(shape).map(|size| size as f64);
    rows.min(columns) * rows * columns
}

/// Those of a matrix of 5000 rows and columns, which take less than a minute.
const MOST_PRODUCTS: f64 = 5000.0 * 5000.0 * 5000.0;

/// Rows that are made orthogonal to those before them together, a multiple of those that are taken out at once.
const TOGETHER: usize = 32;
const AT_ONCE: usize = 4;
/// Products that are summed side by side.
const LANES: usize = 4;

/// Rows of numbers, each filled up with zeros to a multiple of lanes.
struct Lines {
    numbers: Vec<f64>,
    stride: usize,
}

impl Lines {
    fn new(numbers: &[f32], length: usize) -> Lines {
        let stride = length.next_multiple_of(LANES).max(LANES);
        let mut lines = Lines { numbers: vec![0.0; numbers.len() / length.max(1) * stride], stride };
        for (line, numbers) in lines.numbers.chunks_exact_mut(stride).zip(numbers.chunks_exact(length.max(1))) {
            line.iter_mut().zip(numbers).for_each(|(to, &from)| *to = from.into());
        }
        lines
    }

    fn at(&self, line: usize, index: usize) -> f64 {
        self.numbers[line * self.stride + index]
    }
}

/// Takes from a line what it has in common with others of length 1 that are orthogonal to each other.
fn take_out<const OTHERS: usize>(own: &mut [f64], others: &[f64]) {
    let length = own.len();
    let own = own.as_chunks_mut::<LANES>().0;
    let count = own.len();
    // All of one length, so that none is checked again at each place.
    let others: [&[[f64; LANES]]; OTHERS] = from_fn(|other| &others[other * length..][..length].as_chunks().0[..count]);
    let mut sums = [[0.0; LANES]; OTHERS];
    for (index, own) in own.iter().enumerate() {
        sums = from_fn(|row| from_fn(|lane| sums[row][lane] + own[lane] * others[row][index][lane]));
    }
    let shares = sums.map(|lanes| lanes.iter().sum::<f64>());
    for (index, own) in own.iter_mut().enumerate() {
        for (share, other) in shares.iter().zip(&others) {
            *own = from_fn(|lane| own[lane] - share * other[index][lane]);
        }
    }
}

/// A name as a number (FNV-1a).
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ byte as u32).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(initializer: Initializer, shape: &[usize]) -> Vec<f32> {
        initializer.numbers(7, "layer.weight", &shape.into()).to_vec::<f32>().unwrap()
    }

    /// Mean and standard deviation.
    fn moments(numbers: &[f32]) -> (f64, f64) {
        let count = numbers.len() as f64;
        let mean = numbers.iter().map(|&number| number as f64).sum::<f64>() / count;
        let variance = numbers.iter().map(|&number| (number as f64 - mean).powi(2)).sum::<f64>() / count;
        (mean, variance.sqrt())
    }

    #[test]
    fn normal_numbers_are_those_that_runs_have_had_from_the_first() {
        let given = numbers(Initializer::Normal { deviation: 0.02 }, &[5]);
        let bits: Vec<u32> = given.iter().map(|number| number.to_bits()).collect();
        assert_eq!(bits, [0xbca8_ad80, 0x3d02_6e17, 0xbd22_b610, 0xbcbc_1453, 0xbbaa_0f78]);
    }

    #[test]
    fn deviations_are_those_of_the_fans() {
        let (shape, kernel) = ([120, 80], [32, 20, 3, 3]);
        let cases: [(Initializer, &[usize], f64); 8] = [
            (Initializer::Normal { deviation: 0.3 }, &shape, 0.3),
            (Initializer::Uniform { low: -3.0, high: 3.0 }, &shape, 3f64.sqrt()),
            (Initializer::XavierUniform { gain: 2.0 }, &shape, 2.0 * (2.0 / 200f64).sqrt()),
            (Initializer::XavierNormal { gain: 1.0 }, &kernel, (2.0 / (9.0 * 52.0f64)).sqrt()),
            (Initializer::KaimingUniform { slope: 0.0 }, &kernel, (2.0 / 180f64).sqrt()),
            (Initializer::KaimingNormal { slope: 1.0 }, &shape, (1.0 / 80f64).sqrt()),
            (Initializer::uniform_in_fan(80), &shape, (1.0 / 240f64).sqrt()),
            // A normal distribution cut at two deviations has a deviation of 0.8796.
            (Initializer::TruncatedNormal { deviation: 0.5, limit: 1.0 }, &shape, 0.5 * 0.87963),
        ];
        for (initializer, shape, expected) in cases {
            let (mean, deviation) = moments(&numbers(initializer, shape));
            assert!(mean.abs() < 0.04 * expected, "{initializer:?}: mean {mean}");
            assert!((deviation / expected - 1.0).abs() < 0.03, "{initializer:?}: {deviation}, not {expected}");
        }
    }

    #[test]
    fn sizes_beyond_any_integer_have_fans() {
        let none = numbers(Initializer::XavierUniform { gain: 1.0 }, &[0, 1 << 40, 1 << 40]);
        assert_eq!((none.len(), fans(&[0, 1 << 40, 1 << 40].into()).0), (0, 2f64.powi(80)));
    }

    #[test]
    fn truncated_numbers_keep_the_limit_whatever_it_is() {
        for (deviation, limit) in [(1.0, 2.0), (1.0, 1e-3), (1e-3, 1.0), (1.0, 2.6), (0.0, 1.0), (1.0, 0.0)] {
            let given = numbers(Initializer::TruncatedNormal { deviation, limit }, &[1000]);
            assert!(given.iter().all(|number| number.abs() <= limit), "{deviation} within {limit}");
            assert_eq!(given.iter().any(|&number| number != 0.0), deviation * limit > 0.0);
        }
    }

    #[test]
    fn orthogonal_rows_or_columns_have_the_length_of_the_gain() {
        for shape in [&[5, 5][..], &[4, 3, 3], &[9, 4], &[3], &[0, 3], &[], &[150, 150]] {
            let given = numbers(Initializer::Orthogonal { gain: 2.0 }, shape);
            let rows = shape.first().copied().unwrap_or(1);
            let columns = given.len().checked_div(rows).unwrap_or(0);
            let at = |line: usize, index: usize| {
                (if rows <= columns { given[line * columns + index] } else { given[index * columns + line] }) as f64
            };
            for (a, b) in (0..rows.min(columns)).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                let product: f64 = (0..rows.max(columns)).map(|index| at(a, index) * at(b, index)).sum();
                assert!((product - if a == b { 4.0 } else { 0.0 }).abs() < 1e-5, "{shape:?} {a} {b}: {product}");
            }
        }
    }

    #[test]
    fn other_seeds_and_names_give_other_numbers() {
        let initializer = Initializer::Uniform { low: 0.0, high: 1.0 };
        let of = |seed, name| initializer.numbers(seed, name, &[3].into()).to_vec::<f32>().unwrap();
        assert_eq!(of(1, "a"), of(1, "a"));
        assert!(of(1, "a") != of(2, "a") && of(1, "a") != of(1, "b"));
    }
}
