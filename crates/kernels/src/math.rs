//! Elementary functions in f32, written without branches so that loops over them become vector code, and without
//! the system's mathematics library, so that every machine gives the same bits. A NaN gives a NaN everywhere,
//! except where IEEE 754 gives [`pow`] a number.
//!
//! The coefficients are minimax fits made for the ranges the functions reduce to. "Units" are units in the last
//! place of the f32 result, compared with the exact value over the whole range by the tests.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// 1.5 * 2^23: adding and subtracting it rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;
/// Adding it rounds to an integer and leaves that integer's power of two, as the bits of an exponent, in the lowest bits of
/// the sum.
const ROUNDER_BIASED: f32 = ROUNDER + 127.0;
/// 1.5 * 2^52: [`ROUNDER`] for f64.
const ROUNDER_WIDE: f64 = 6_755_399_441_055_744.0;

/// log(2) in two pieces: the first has so few bits that small multiples of it are exact.
const LOG_2_HIGH: f32 = 0.693_359_4;
const LOG_2_LOW: f32 = -2.121_944_4e-4;

/// sqrt(2 / pi) and the cubic term's factor in the tanh form of GELU.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// The exponential; within 1.1 units, 0 below -104, infinite above 88.73.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let limited = clamp(x, -104.0, 89.0);
    let n = nearest(limited * LOG2_E);
    let below_one = exp_rest(limited, n);
    // 2^n in two factors, so that results near the smallest and largest numbers come out right. Wrapping: a check for overflow would
    // keep the loop from becoming vector code.
    let n = integer(n);
    let half = n >> 1;
    (below_one + 1.0) * two_to_the(half) * two_to_the(n.wrapping_sub(half))
}

/// The q of `exp(x) = 2^n * (1 + q)` for the n nearest to the binary exponent, with |q| < 0.42; it keeps its relative
/// accuracy near 0.
#[inline(always)]
fn exp_rest(x: f32, n: f32) -> f32 {
    let r = (x - n * LOG_2_HIGH) - n * LOG_2_LOW;
    // In pairs: the terms of a polynomial one after another would keep the processor waiting for each.
    let square = r * r;
    let high = 1.990_783_8e-4 * r + 1.394_882e-3;
    let middle = 8.333_285e-3 * r + 4.166_623_6e-2;
    let low = 1.666_666_7e-1 * r + 0.5;
    let p = (high * square + middle) * square + low;
    p * square + r
}

/// The natural logarithm; within 1.2 units, minus infinity of 0, NaN below it.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    // Subnormal numbers are scaled up first.
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 16_777_216.0 } else { x }).to_bits();
    // x = (1 + m) * 2^e with 1 + m in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let e = ((shifted as i32) >> 23) as f32 - if tiny { 24.0 } else { 0.0 };
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let p = polynomial(
        m,
        [
            6.937_293e-2,
            -1.184_673_5e-1,
            1.188_879_9e-1,
            -1.237_748_7e-1,
            1.421_711_7e-1,
            -1.666_948_3e-1,
            2.000_218_8e-1,
            -2.499_998_4e-1,
            3.333_331_3e-1,
        ],
    );
    let square = m * m;
    let small = p * m * square + e * LOG_2_LOW;
    let y = small - 0.5 * square + m + e * LOG_2_HIGH;
    let finite = if x == f32::INFINITY { x } else { y };
    let positive = if x == 0.0 { f32::NEG_INFINITY } else { finite };
    if x < 0.0 || x.is_nan() { f32::NAN } else { positive }
}

/// The number, or 0 if it is below; NaN stays.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// The hyperbolic tangent; within 2.5 units, and within 1.2 from 1 on.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // With e = exp(-2|x|) and d = e - 1, each accurate where it is small, tanh|x| = -d / (2 + d) = 1 - 2e / (2 + d).
    // At 10 it has long been 1.
    let magnitude = x.abs();
    let exponent = -2.0 * if magnitude > 10.0 { 10.0 } else { magnitude };
    let rounded = exponent * LOG2_E + ROUNDER_BIASED;
    let q = exp_rest(exponent, rounded - ROUNDER_BIASED);
    let scale = f32::from_bits(rounded.to_bits() << 23);
    let (e, d) = (scale * q + scale, scale * q + (scale - 1.0));
    let (base, rest) = if magnitude < 1.0 { (0.0, d) } else { (1.0, 2.0 * e) };
    (base - rest / (2.0 + d)).copysign(x)
}

/// The derivative of [`tanh`], `1 / cosh(x)^2`; within 4.5 units wherever it is no smaller than 1e-37.
#[inline(always)]
pub fn tanh_slope(x: f32) -> f32 {
    // From the argument: of a result that is nearly 1, what is missing to 1 cannot be told any more.
    let e = exp(-2.0 * x.abs());
    let share = 1.0 / (1.0 + e);
    4.0 * e * (share * share)
}

/// `1 / (1 + exp(-x))`; within 2.5 units, tiny values included.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// `x * sigmoid(x)`; within 3.5 units, or 1e-42 where the sigmoid is subnormal; NaN at minus infinity.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The error function; within 1.5 units.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    // Taking the leading 1 out leaves a factor small enough for its rounding not to show.
    let near = x + x * polynomial(
        z,
        [
            7.853_858e-5,
            -8.010_192e-4,
            5.188_327_3e-3,
            -2.685_381_1e-2,
            1.128_358_54e-1,
            -3.761_262_6e-1,
            1.283_791_7e-1,
        ],
    );
    // Away from 0, the logarithm of 1 - erf is nearly a parabola. At 4 the function has long been 1.
    let limited = if a > 4.0 { 4.0 } else { a };
    let log_rest = polynomial(
        limited,
        [
            -1.566_245_4e-5,
            3.572_153_5e-4,
            -3.714_329_3e-3,
            2.366_519_5e-2,
            -1.055_892_86e-1,
            -6.362_392e-1,
            -1.127_842_3,
            -2.270_645e-4,
        ],
    );
    let far = (1.0 - exp(log_rest)).copysign(x);
    if a < 1.0 { near } else { far }
}

/// GELU by the error function, `x/2 * (1 + erf(x / sqrt(2)))`; within 1.5e-7 * |x|. NaN at minus infinity.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// GELU in its tanh form; relative error within 1.5e-6 for x > -4, 1.5e-5 down to -9.9, and below that within 2e-36.
/// NaN at minus infinity.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh(u)) / 2 = sigmoid(2u), which stays accurate where the tanh is nearly -1.
    let exponent = gelu_exponent(x);
    let e = power_of_two_to_one(-exponent.abs());
    x * ((if exponent < 0.0 { e } else { 1.0 }) / (1.0 + e))
}

/// The derivative of [`gelu_tanh`]; absolute error within 4e-7.
#[inline(always)]
pub fn gelu_tanh_slope(x: f32) -> f32 {
    // Past 15 the slope is 0 or 1 to the last bit, and the cube would overflow.
    let x = clamp(x, -15.0, 15.0);
    let exponent = gelu_exponent(x);
    // The sigmoid is 1 / (1 + e) or e / (1 + e), and its slope is the product of the two.
    let e = power_of_two_to_one(-exponent.abs());
    let share = 1.0 / (1.0 + e);
    let other = e * share;
    let s = if exponent < 0.0 { other } else { share };
    s + x * (share * other) * (2.0 * GELU_SCALE + 6.0 * GELU_SCALE * GELU_CUBIC * (x * x))
}

/// Twice the argument of the tanh in GELU, as the exponent of a power of two.
#[inline(always)]
fn gelu_exponent(x: f32) -> f32 {
    const LINEAR: f32 = 2.0 * GELU_SCALE * LOG2_E;
    x * (LINEAR + LINEAR * GELU_CUBIC * (x * x))
}

/// A minimax fit of 2^x for x between -1/2 and 1/2 that is 1 at 0, the highest power first; its slope there is not
/// quite log(2).
#[allow(clippy::approx_constant)]
pub(crate) const POWER_OF_TWO: [f32; 6] = [1.326_472_7e-3, 9.671_513e-3, 5.550_733_6e-2, 0.240_222_42, 0.693_147, 1.0];

/// 2^x for x up to 0, relative error within 3e-7; 0 from -127 on. It takes half the instructions of [`exp`].
#[inline(always)]
fn power_of_two_to_one(x: f32) -> f32 {
    let limited = if x < -127.0 { -127.0 } else { x };
    let rounded = limited + ROUNDER_BIASED;
    let r = limited - (rounded - ROUNDER_BIASED);
    // In pairs, so that no term waits for all before it.
    let [a, b, c, d, e, f] = POWER_OF_TWO;
    let square = r * r;
    let (high, middle, low) = (a * r + b, c * r + d, e * r + f);
    let y = (high * square + middle) * square + low;
    y * f32::from_bits(rounded.to_bits() << 23)
}

/// How far [`sin_near`] and [`cos_near`] go, 2^20. Beyond, turns are counted by integers, which vectors are slow at.
pub const NEAR: f32 = 1_048_576.0;

/// The sine; within 1.6 units for |x| up to [`NEAR`].
#[inline(always)]
pub fn sin_near(x: f32) -> f32 {
    let (quarters, r) = quarter_turns(x);
    circle(quarters, r)
}

/// The cosine, as good as [`sin_near`].
#[inline(always)]
pub fn cos_near(x: f32) -> f32 {
    let (quarters, r) = quarter_turns(x);
    circle(quarters.wrapping_add(1), r)
}

/// The sine beyond [`NEAR`], up to the largest number; as good as [`sin_near`]. NaN at infinity.
pub fn sin_far(x: f32) -> f32 {
    let (quarters, r) = quarter_turns_far(x);
    circle(quarters, r)
}

/// The cosine, as good as [`sin_far`].
pub fn cos_far(x: f32) -> f32 {
    let (quarters, r) = quarter_turns_far(x);
    circle(quarters.wrapping_add(1), r)
}

/// `x = quarters * pi/2 + r` with |r| <= pi/4, by f64, for |x| up to 2^20.
#[inline(always)]
fn quarter_turns(x: f32) -> (u32, f32) {
    // pi/2 in two pieces: multiples of the first, of 33 bits, are exact up to 2^20.
    const HIGH: f64 = f64::from_bits(std::f64::consts::FRAC_PI_2.to_bits() & !0xf_ffff);
    const LOW: f64 = (std::f64::consts::FRAC_PI_2 - HIGH) + 6.123_233_995_736_766e-17;
    let wide = x as f64;
    let shifted = wide * std::f64::consts::FRAC_2_PI + ROUNDER_WIDE;
    let n = shifted - ROUNDER_WIDE;
    (shifted.to_bits() as u32, ((wide - n * HIGH) - n * LOW) as f32)
}

/// As [`quarter_turns`], for |x| from 2^20 on, however large: of the bits of 2/pi, only those count whose product with x
/// is not whole turns, and enough after them.
fn quarter_turns_far(x: f32) -> (u32, f32) {
    /// 2/pi in binary: the first word is before the point.
    const FRAC_2_PI: [u32; 8] =
        [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];
    /// Fractional bits of the number of quarters, of which there are 96 with the whole ones.
    const FRACTION: u32 = 94;
    if !x.is_finite() {
        return (0, f32::NAN);
    }
    // |x| = significand * 2^exponent, the exponent from -3 to 104.
    let significand = (x.to_bits() & 0x007f_ffff | 0x0080_0000) as u128;
    let exponent = (x.to_bits() >> 23 & 0xff) as i32 - 150;
    // The first bit that counts is worth two quarters with this exponent.
    let first = (30 + exponent) as usize;
    let words = FRAC_2_PI[first / 32..][..4].iter().fold(0, |words, &word| words << 32 | word as u128);
    let window = words << (first % 32) >> 32;
    let quarters = (significand * window) << 32 >> 32;
    let nearest = (quarters + (1 << (FRACTION - 1))) >> FRACTION;
    let rest = quarters as i128 - ((nearest as i128) << FRACTION);
    let r = rest as f64 * (std::f64::consts::FRAC_PI_2 / (1u128 << FRACTION) as f64);
    match x < 0.0 {
        false => (nearest as u32, r as f32),
        true => ((nearest as u32).wrapping_neg(), -r as f32),
    }
}

/// The sine of `quarters * pi/2 + r`.
#[inline(always)]
fn circle(quarters: u32, r: f32) -> f32 {
    let z = r * r;
    let sine = r + r * z * polynomial(z, [2.717_273_2e-6, -1.983_925_3e-4, 8.333_329e-3, -1.666_666_7e-1]);
    let sine = sine.copysign(r); // The sum has lost the sign of a negative zero.
    let cosine = 1.0 - 0.5 * z + z * z * polynomial(z, [2.446_316_6e-5, -1.388_764_9e-3, 4.166_665_3e-2]);
    let value = if quarters & 1 == 0 { sine } else { cosine };
    f32::from_bits(value.to_bits() ^ (quarters & 2) << 30)
}

/// `x` to the power `y`; correctly rounded but for one case in some thousands, with every special case of IEEE 754.
#[inline(always)]
pub fn pow(x: f32, y: f32) -> f32 {
    let exponent = y as f64;
    let magnitude = exp2_wide(exponent * log2_wide(x.abs() as f64)) as f32;
    // From 2^25 on every number is an even integer, so a clamped exponent has the parity of the true one.
    let limited = exponent.clamp(-33_554_432.0, 33_554_432.0);
    let shifted = limited + ROUNDER_WIDE;
    let integer = shifted - ROUNDER_WIDE == limited;
    let odd = integer && shifted.to_bits() & 1 == 1;
    let signed = if odd { magnitude.copysign(x) } else { magnitude };
    let real = if x < 0.0 && x > f32::NEG_INFINITY && !integer { f32::NAN } else { signed };
    let number = if x.is_nan() || y.is_nan() { f32::NAN } else { real };
    if y == 0.0 || x == 1.0 || (x == -1.0 && y.is_infinite()) { 1.0 } else { number }
}

/// The logarithm to base 2 of the magnitude of an f32, with 2^-45 of relative error.
#[inline(always)]
fn log2_wide(x: f64) -> f64 {
    const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_0000_0000;
    const ONE_BITS: u64 = 0x3ff0_0000_0000_0000;
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)): the exponent field after moving sqrt(1/2) to 1 is e + 1023.
    let shifted = x.to_bits().wrapping_add(ONE_BITS - SQRT_HALF_BITS);
    let e = f64::from_bits(ROUNDER_WIDE.to_bits() + (shifted >> 52)) - (ROUNDER_WIDE + 1023.0);
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff) + SQRT_HALF_BITS);
    // log(m) = 2 artanh(s), by its series.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut series = 0.0;
    for n in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * z + 1.0 / n;
    }
    let y = e + 2.0 * std::f64::consts::LOG2_E * s * series;
    let finite = if x == f64::INFINITY { x } else { y };
    if x == 0.0 { f64::NEG_INFINITY } else { finite }
}

/// 2^x with 2^-42 of relative error, for results that fit an f32; 2^-200 and 2^200 stand for all beyond.
#[inline(always)]
fn exp2_wide(x: f64) -> f64 {
    let limited = x.clamp(-200.0, 200.0);
    let shifted = limited + ROUNDER_WIDE;
    let r = (limited - (shifted - ROUNDER_WIDE)) * std::f64::consts::LN_2;
    // The series of the exponential: each step divides by the next factor of the factorial.
    let mut series = 1.0;
    for n in [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        series = series * r * (1.0 / n) + 1.0;
    }
    let n = shifted.to_bits().wrapping_sub(ROUNDER_WIDE.to_bits());
    series * f64::from_bits(n.wrapping_add(1023) << 52)
}

/// The nearest integer, for magnitudes up to 2^22.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}

/// `x` within bounds; a NaN stays one.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let below = if x > high { high } else { x };
    if below < low { low } else { below }
}

/// The integer that `n` is, for magnitudes up to 2^22; anything for a NaN.
#[inline(always)]
fn integer(n: f32) -> i32 {
    (n + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i32
}

/// 2^n for n within the exponent's range.
#[inline(always)]
fn two_to_the(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// A polynomial, the coefficient of the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[0];
    for c in &coefficients[1..] {
        value = value * x + c;
    }
    value
}

#[cfg(test)]
mod tests;
