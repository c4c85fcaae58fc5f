//! Elementary functions in f32, written without branches so that loops over them become vector code, and without
//! the system's mathematics library, so that every machine gives the same bits.

/// 1.5 * 2^23: adding and subtracting it rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;

/// The exponential; within 2 units in the last place, 0 below -104, infinite above 88.73.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // exp(x) = 2^n * exp(r), |r| <= log(2)/2; log(2) in two pieces keeps r exact.
    let limited = if x > 89.0 {
        89.0
    } else if x < -104.0 {
        -104.0
    } else {
        x
    };
    let n = (limited * std::f32::consts::LOG2_E + ROUNDER) - ROUNDER;
    let r = (limited - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_2e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let y = p * r * r + r + 1.0;
    // 2^n in two factors, so that results near the smallest and largest numbers come out right.
    let half = (n * 0.5 + ROUNDER) - ROUNDER;
    y * power_of_two(half) * power_of_two(n - half)
}

/// 2^n for an integer n within the exponent's range.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    f32::from_bits(((n + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127)) << 23)
}

/// The natural logarithm; minus infinity of 0, NaN below it.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    // Subnormal numbers are scaled up first.
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 16_777_216.0 } else { x }).to_bits();
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let e = ((shifted as i32) >> 23) as f32 - if tiny { 24.0 } else { 0.0 };
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let mut p = 7.037_683_6e-2;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333_1e-1,
    ] {
        p = p * m + c;
    }
    let square = m * m;
    let y = (p * m * square + e * -2.121_944_4e-4) - 0.5 * square + m + e * 0.693_359_4;
    let finite = if x == f32::INFINITY { x } else { y };
    let positive = if x == 0.0 { f32::NEG_INFINITY } else { finite };
    if x < 0.0 || x.is_nan() { f32::NAN } else { positive }
}

/// `max(x, 0)`; NaN stays NaN.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// GELU in its tanh form.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + tanh(0.797_884_6 * (x + 0.044_715 * x * x * x)))
}

/// GELU in its exact form.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let mut p = 1.061_405_4;
    for c in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        p = p * t + c;
    }
    (1.0 - p * t * exp(-magnitude * magnitude)).copysign(x)
}
