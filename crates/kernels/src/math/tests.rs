//! Every function against f64, over its whole range and at its edges.

use super::*;

const SPECIAL: [f32; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.0,
    3.0,
    -3.0,
    1e-45,
    -1e-45,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    16_777_216.0,
    -16_777_215.0,
    33_554_432.0,
    0.333_333_34,
    -103.5,
    88.722_84,
];

/// Bit patterns spread over all f32, at a stride that hits every exponent many times.
fn sweep(stride: usize) -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(stride).map(f32::from_bits).chain(SPECIAL)
}

/// The difference in units in the last place of an f32 near the exact value.
fn units(got: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if got == nearest || (got.is_nan() && exact.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !nearest.is_finite() {
        return f64::INFINITY;
    }
    let exponent = exact.abs().log2().floor().max(-126.0) as i32;
    (got as f64 - exact).abs() / 2f64.powi(exponent - 23)
}

/// The worst error in units, which must stay within the bound.
fn check(name: &str, bound: f64, inputs: impl Iterator<Item = f32>, got: fn(f32) -> f32, exact: fn(f64) -> f64) {
    let mut worst = (0.0, 0.0);
    for x in inputs {
        assert!(!x.is_nan() || got(x).is_nan(), "{name} loses a NaN");
        let error = units(got(x), exact(x as f64));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    println!("{name}: {:.3} units at {:e}", worst.0, worst.1);
    assert!(worst.0 <= bound, "{name}({:e}) is off by {} units", worst.1, worst.0);
}

/// The worst error, absolute or as the caller scales it.
fn check_scaled(
    name: &str,
    bound: f64,
    inputs: impl Iterator<Item = f32>,
    got: fn(f32) -> f32,
    exact: fn(f64) -> f64,
    scale: fn(f64, f64) -> f64,
) {
    let mut worst = (0.0, 0.0);
    for x in inputs {
        let (got, exact) = (got(x), exact(x as f64));
        assert_eq!(got.is_nan(), exact.is_nan(), "{name}({x:e}) is {got}, should be {exact}");
        let error = (got as f64 - exact).abs() / scale(x as f64, exact);
        if error > worst.0 && got as f64 != exact {
            worst = (error, x);
        }
    }
    println!("{name}: {:.3e} at {:e}", worst.0, worst.1);
    assert!(worst.0 <= bound, "{name}({:e}) is off by {:e}", worst.1, worst.0);
}

/// The numbers of an interval, evenly spread.
fn interval(low: f32, high: f32, count: usize) -> impl Iterator<Item = f32> {
    (0..=count).map(move |i| low + (high - low) * (i as f32 / count as f32))
}

fn erf_exact(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let (mut term, mut total, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * total.abs() {
            n += 1.0;
            term *= -x * x / n;
            total += term / (2.0 * n + 1.0);
        }
        return total * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..=60).rev().fold(0.0, |below, k| 0.5 * k as f64 / (a + below));
    (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + fraction)).copysign(x)
}

/// The tanh form of GELU as `x * sigmoid(2u)`, which f64 can carry to the smallest results.
fn gelu_exponent_exact(x: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

fn sigmoid_exact(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn exponential() {
    check("exp", 1.1, sweep(997).chain(interval(-104.5, 89.5, 2_000_000)), exp, f64::exp);
    assert!(exp(88.722_83) < f32::INFINITY);
    assert_eq!(exp(88.722_85), f32::INFINITY);
    assert_eq!(exp(-104.0), 0.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
}

#[test]
fn logarithm() {
    check("log", 1.2, sweep(997).chain(interval(0.4, 2.5, 2_000_000)), log, f64::ln);
    assert_eq!(log(-0.0), f32::NEG_INFINITY);
}

#[test]
fn hyperbolic_tangent_and_sigmoid() {
    check("tanh", 2.5, sweep(997).chain(interval(-10.0, 10.0, 2_000_000)), tanh, f64::tanh);
    check("tanh far out", 1.2, interval(1.0, 12.0, 2_000_000), tanh, f64::tanh);
    check("sigmoid", 2.5, sweep(997).chain(interval(-105.0, 20.0, 2_000_000)), sigmoid, sigmoid_exact);
    assert!(tanh(-0.0).is_sign_negative());
}

#[test]
fn slope_of_the_hyperbolic_tangent() {
    let exact = |x: f64| x.cosh().recip().powi(2);
    let inputs = || sweep(997).chain(interval(-45.0, 45.0, 2_000_000));
    check("tanh_slope", 4.5, inputs().filter(|x| x.is_nan() || x.abs() < 42.0), tanh_slope, exact);
    check_scaled("tanh_slope far out", 1.0, inputs().filter(|x| x.abs() >= 42.0), tanh_slope, exact, |_, _| 1e-42);
}

#[test]
fn error_function() {
    check("erf", 1.5, sweep(9973).chain(interval(-4.5, 4.5, 400_000)), erf, erf_exact);
    assert!(erf(-0.0).is_sign_negative());
}

#[test]
fn activations() {
    let silu_exact = |x: f64| x * sigmoid_exact(x);
    let inputs = || sweep(9973).chain(interval(-12.0, 12.0, 400_000));
    check("silu", 3.5, inputs().filter(|x| x.is_nan() || *x >= -87.0), silu, silu_exact);
    check_scaled("silu far below", 1.0, interval(-110.0, -87.0, 10_000), silu, silu_exact, |_, _| 1e-42);
    assert!(silu(f32::NEG_INFINITY).is_nan());

    let gelu_tanh_exact = |x: f64| x * sigmoid_exact(gelu_exponent_exact(x));
    let relative = |_: f64, exact: f64| exact.abs() + 1e-37;
    check_scaled(
        "gelu_tanh",
        1.5e-6,
        inputs().filter(|x| x.is_nan() || *x >= -4.0),
        gelu_tanh,
        gelu_tanh_exact,
        relative,
    );
    check_scaled("gelu_tanh below", 1.5e-5, interval(-9.9, -4.0, 400_000), gelu_tanh, gelu_tanh_exact, relative);
    check_scaled("gelu_tanh far below", 2e-36, interval(-1e3, -9.9, 400_000), gelu_tanh, gelu_tanh_exact, |_, _| 1.0);
    assert_eq!(gelu_tanh(-1e30), 0.0);

    let gelu_erf_exact = |x: f64| 0.5 * x * (1.0 + erf_exact(x / std::f64::consts::SQRT_2));
    let by_argument = |x: f64, _: f64| x.abs() + 1e-37;
    check_scaled("gelu_erf", 1.5e-7, inputs(), gelu_erf, gelu_erf_exact, by_argument);
}

#[test]
fn slope_of_gelu() {
    let exact = |x: f64| {
        let x = x.clamp(-40.0, 40.0);
        let (s, c) = (sigmoid_exact(gelu_exponent_exact(x)), sigmoid_exact(-gelu_exponent_exact(x)));
        s + x * s * c * 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x)
    };
    let inputs = sweep(9973).chain(interval(-20.0, 20.0, 400_000));
    check_scaled("gelu_tanh_slope", 4e-7, inputs, gelu_tanh_slope, exact, |_, _| 1.0);
}

#[test]
fn circular_functions() {
    let turns =
        || interval(-30.0, 30.0, 400_000).chain(interval(-1e4, 1e4, 400_000)).chain(interval(-NEAR, NEAR, 400_000));
    let near = || sweep(997).filter(|x| x.abs() <= NEAR || x.is_nan()).chain(turns());
    check("sin", 1.6, near(), sin_near, f64::sin);
    check("cos", 1.6, near(), cos_near, f64::cos);
    let far = || sweep(997).filter(|x| x.abs() >= NEAR).chain(interval(NEAR, 1e8, 400_000)).chain([f32::MAX, f32::MIN]);
    check("sin far out", 1.6, far(), sin_far, f64::sin);
    check("cos far out", 1.6, far(), cos_far, f64::cos);
    assert!(sin_near(-0.0).is_sign_negative());
    assert!(sin_far(f32::INFINITY).is_nan() && cos_far(f32::NEG_INFINITY).is_nan());
}

#[test]
fn powers() {
    let mut worst: f64 = 0.0;
    let mut try_one = |x: f32, y: f32| {
        let exact = (x as f64).powf(y as f64);
        let got = pow(x, y);
        let error = units(got, exact);
        assert!(error <= 0.501, "pow({x:e}, {y:e}) is {got:e}, should be {exact:e}");
        assert_eq!(got.is_sign_negative() && !got.is_nan(), exact.is_sign_negative() && !exact.is_nan(), "{x:e} {y:e}");
        worst = worst.max(error);
    };
    for x in SPECIAL {
        for y in SPECIAL {
            try_one(x, y);
        }
        sweep(1_000_003).for_each(|y| try_one(x, y));
        sweep(1_000_003).for_each(|y| try_one(y, x));
    }
    for x in interval(0.5, 2.0, 1000) {
        interval(-150.0, 150.0, 1000).for_each(|y| try_one(x, y));
    }
    for x in interval(1e-3, 1e3, 1000) {
        interval(-14.0, 14.0, 280).for_each(|y| try_one(x, y));
        (-9..9).for_each(|y| try_one(-x, y as f32));
    }
    println!("pow: {worst:.4} units");
}
