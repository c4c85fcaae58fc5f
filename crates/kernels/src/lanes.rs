//! Reductions in a fixed shape: sixteen running lanes, then a tree. The shape is that of an AVX-512 register, and
//! it is the same at every instruction-set level, so the levels agree to the bit.

/// Lanes in which a reduction runs.
pub const LANES: usize = 16;

/// Reduces `length` values, given by index, lane by lane and then as a tree.
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
    for index in whole..length {
        lanes[index - whole] = join(lanes[index - whole], value(index));
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

/// The sum of the values.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    reduce(x.len(), 0.0, |i| x[i], |a, b| a + b)
}

/// The sum of products.
#[inline(always)]
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let y = &y[..x.len()];
    reduce(x.len(), 0.0, |i| x[i] * y[i], |a, b| a + b)
}

/// The larger of two, NaN if either is: a NaN must not be lost on the way to the loss.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The largest value, NaN if there is one, minus infinity if there are no values.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    reduce(x.len(), f32::NEG_INFINITY, |i| x[i], larger)
}
