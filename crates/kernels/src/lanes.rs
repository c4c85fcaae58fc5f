//! Reductions in a fixed shape: running lanes, then a tree. It is the same at every instruction-set level, so the
//! levels agree to the bit.

use crate::Element;

/// Lanes of a register: of an AVX-512 one.
pub const LANES: usize = 16;

/// Lanes in which a long reduction runs: four registers, since a register that is added to is ready to be added to
/// again only after some four cycles.
const WIDE: usize = 4 * LANES;

/// Reduces the values of `x` from `start` on.
#[inline(always)]
pub fn fold<T: Copy>(x: &[T], start: f32, value: impl Fn(T) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let (blocks, rest) = x.as_chunks::<WIDE>();
    let mut running = [start; WIDE];
    for block in blocks {
        let mut values = [0.0; WIDE];
        for lane in 0..WIDE {
            values[lane] = value(block[lane]);
        }
        for lane in 0..WIDE {
            running[lane] = join(running[lane], values[lane]);
        }
    }
    let mut lanes = narrow(running, &join);
    let (blocks, rest) = rest.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = join(lanes[lane], value(block[lane]));
        }
    }
    finish(lanes, rest.len(), |index| value(rest[index]), join)
}

/// The sum of the values.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |x| x, |a, b| a + b)
}

/// The sum of products. It runs in one register, since rows are short and many: the next row's begins beside it.
#[inline(always)]
pub fn dot<T: Element>(x: &[f32], y: &[T]) -> f32 {
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let (y_blocks, y_rest) = y[..x.len()].as_chunks::<LANES>();
    let mut running = [0.0; LANES];
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        let products: [f32; LANES] = std::array::from_fn(|lane| x[lane] * y[lane].to_f32());
        for lane in 0..LANES {
            running[lane] += products[lane];
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y.to_f32()).sum();
    tree(running, |a, b| a + b) + rest
}

/// Joins four registers to one.
#[inline(always)]
fn narrow(running: [f32; WIDE], join: &impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for lane in 0..LANES {
        let at = |register: usize| running[register * LANES + lane];
        lanes[lane] = join(join(at(0), at(1)), join(at(2), at(3)));
    }
    lanes
}

/// Joins the last values, fewer than there are lanes, and then the lanes.
#[inline(always)]
fn finish(running: [f32; LANES], rest: usize, value: impl Fn(usize) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    // A copy, so that the running lanes are never indexed by a variable and stay in a register.
    let mut lanes = running;
    for index in 0..rest {
        lanes[index] = join(lanes[index], value(index));
    }
    tree(lanes, join)
}

/// Joins lanes, the first half with the second, until one is left.
#[inline(always)]
fn tree(lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The larger of two, NaN if either is: a NaN must not be lost on the way to the loss.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The largest value, NaN if there is one, minus infinity if there are no values.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    fold(x, f32::NEG_INFINITY, |x| x, larger)
}
