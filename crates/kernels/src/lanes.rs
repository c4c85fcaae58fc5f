//! Reductions in a fixed shape: sixteen running lanes, then a tree. The shape is that of an AVX-512 register, and
//! it is the same at every instruction-set level, so the levels agree to the bit.

/// Lanes in which a reduction runs.
pub const LANES: usize = 16;

/// Reduces `length` values, given by index, lane by lane and then as a tree. The functions below, which know
/// their slices, become better code.
#[inline(always)]
pub fn reduce(length: usize, start: f32, value: impl Fn(usize) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let whole = length - length % LANES;
    let mut base = 0;
    while base < whole {
        for lane in 0..LANES {
            lanes[lane] = join(lanes[lane], value(base + lane));
        }
        base += LANES;
    }
    finish(lanes, length - whole, |index| value(whole + index), join)
}

/// The sum of the values.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |a, b| a + b)
}

/// The sum of products.
#[inline(always)]
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let (y_blocks, y_rest) = y[..x.len()].as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for lane in 0..LANES {
            lanes[lane] += x[lane] * y[lane];
        }
    }
    finish(lanes, x_rest.len(), |index| x_rest[index] * y_rest[index], |a, b| a + b)
}

#[inline(always)]
fn fold(x: &[f32], start: f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = join(lanes[lane], block[lane]);
        }
    }
    finish(lanes, rest.len(), |index| rest[index], join)
}

/// Joins the last values, fewer than there are lanes, and then the lanes.
#[inline(always)]
fn finish(running: [f32; LANES], rest: usize, value: impl Fn(usize) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    // A copy, so that the running lanes are never indexed by a variable and stay in a register.
    let mut lanes = running;
    for index in 0..rest {
        lanes[index] = join(lanes[index], value(index));
    }
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
    fold(x, f32::NEG_INFINITY, larger)
}
