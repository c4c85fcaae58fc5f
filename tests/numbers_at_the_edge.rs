//! Numbers at the edge of what their types hold: a NaN is never lost on the way to the loss, and what is worked on
//! is not rounded to 16 bits before its time.

use gradus::backend::{Backend, Cpu, Reference};
use gradus::losses::{Reduction, kl_divergence, smooth_l1};
use gradus::ops::{Lion, LionInputs, Pool1dOptions};
use gradus::plan::Options;
use gradus::{Array, DType, GradientTape, Routine, Tensor, TensorType, Trace, gradient};
use gradus_kernels::Isa;

fn numbers(tape: &GradientTape, tensor: &Tensor) -> Vec<f64> {
    tape.read(tensor).unwrap().to_f64()
}

fn filled(tape: &GradientTape, dtype: DType, shape: &[usize], number: f64) -> Tensor {
    let ty = TensorType::new(dtype, shape);
    tape.watch(Array::from_f64(ty.clone(), &vec![number; ty.shape.elements()]).unwrap())
}

/// Every backend on which a meaning must hold.
fn tapes() -> Vec<GradientTape> {
    let on = |backend: Cpu| GradientTape::on(backend);
    let levels = Isa::available().into_iter().map(|isa| on(Cpu::with_isa(1, isa).unwrap()));
    levels.chain([GradientTape::on(Reference)]).collect()
}

#[test]
fn a_nan_is_never_lost() {
    type Way = (&'static str, fn(&Tensor) -> Tensor);
    let ways: [Way; 24] = [
        ("max", |x| x.max(&[-1])),
        ("min", |x| x.min(&[-1])),
        ("sum", |x| x.sum_all()),
        ("variance", |x| x.variance(&[-1])),
        ("relu", |x| x.relu()),
        ("leaky relu", |x| x.leaky_relu(0.1)),
        ("gelu", |x| x.gelu()),
        ("gelu by erf", |x| x.gelu_erf()),
        ("silu", |x| x.silu()),
        ("tanh", |x| x.tanh()),
        ("clamp", |x| x.clamp(-1.0, 1.0)),
        ("maximum", |x| x.maximum(&x.zeros_like())),
        ("maximum, second", |x| x.zeros_like().maximum(x)),
        ("minimum", |x| x.minimum(&x.zeros_like())),
        ("minimum, second", |x| x.zeros_like().minimum(x)),
        ("softmax", |x| x.softmax(-1)),
        ("log-softmax", |x| x.log_softmax(-1)),
        ("norm", |x| Tensor::global_norm(&[x])),
        ("layer norm", |x| {
            x.layer_norm(
                &x.ones_like().slice(0, 0..1).reshape([40]),
                &x.zeros_like().slice(0, 0..1).reshape([40]),
                1e-5,
            )
        }),
        ("cross-entropy", |x| x.cross_entropy(&x.trace().full(1.0, DType::I32, [3]), None)),
        ("projected cross-entropy", |x| {
            x.linear_cross_entropy(&x.ones_like(), &x.trace().full(1.0, DType::I32, [3]), None)
        }),
        ("attention", |x| {
            x.reshape([1, 1, 3, 40]).attention(&x.reshape([1, 1, 3, 40]), &x.reshape([1, 1, 3, 40]), true)
        }),
        ("a product with relu", |x| x.linear(&x.ones_like().transpose(0, 1), None).relu()),
        ("pooling", |x| x.reshape([1, 3, 40]).max_pool1d(Pool1dOptions { kernel: 3, stride: 2, padding: 1 })),
    ];
    for tape in tapes() {
        for place in [0, 17, 39, 41] {
            let mut data = vec![0.5f32; 120];
            data[place] = f32::NAN;
            let x = tape.watch(Array::new([3, 40], &data).unwrap());
            for (name, way) in ways {
                assert!(numbers(&tape, &way(&x)).iter().any(|y| y.is_nan()), "{name} loses a NaN at {place}");
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_a_number_shows_in_the_weight() {
    for tape in tapes() {
        let number = |number: f64| filled(&tape, DType::F32, &[3], number);
        let (learning_rate, scale) = (&filled(&tape, DType::F32, &[], 0.1), &filled(&tape, DType::F32, &[], 1.0));
        let (weight, gradient, moment) = (&number(1.0), &number(f64::NAN), &number(0.0));
        let new = Lion::default().update(LionInputs { weight, gradient, moment, learning_rate, scale });
        assert!(numbers(&tape, &new.weight).iter().all(|weight| weight.is_nan()));
    }
}

#[test]
fn means_and_norms_of_16_bit_numbers_are_rounded_once() {
    let tape = GradientTape::new().unwrap();
    // The sum does not fit f16, whose largest number is 65504.
    let ones = filled(&tape, DType::F16, &[3, 70_000], 1.0);
    assert_eq!(numbers(&tape, &ones.mean(&[-1])), [1.0; 3]);
    assert_eq!(numbers(&tape, &Tensor::global_norm(&[&ones])), [210_000f32.sqrt() as f64]);
    let slope = &gradient(&Tensor::global_norm(&[&ones]), &[&ones]).unwrap()[0];
    assert_eq!(slope.dtype(), DType::F16);
    assert!((numbers(&tape, slope)[7] - 210_000f64.sqrt().recip()).abs() < 1e-5);
    // Neither do the squares, nor the sum of exponentials.
    let large = filled(&tape, DType::F16, &[2, 4], 300.0);
    assert_eq!(numbers(&tape, &large.norm(2.0, &[-1])), [600.0; 2]);
    assert_eq!(numbers(&tape, &large.norm(3.0, &[0])), [378.0; 4], "the root of 2 * 300^3, as f16");
    assert_eq!(numbers(&tape, &tape.gradient(&large.norm(2.0, &[-1]), &[&large]).unwrap()[0]), [0.5; 8]);
    let apart = tape.watch(Array::from_f64(TensorType::new(DType::F16, [2]), &[-1000.0, 1000.0]).unwrap());
    assert_eq!(numbers(&tape, &apart.standard_deviation(&[0])), [1000.0]);
    assert_eq!(numbers(&tape, &tape.gradient(&apart.standard_deviation(&[0]), &[&apart]).unwrap()[0]), [-0.5, 0.5]);
    assert_eq!(numbers(&tape, &(&ones * 0.0).log_sum_exp(&[-1])), [11.15625; 3], "the logarithm of 70,000, as f16");
    // Around the mean of 1002, which bf16 rounds to 1000, the variance would be 8.
    let far =
        tape.watch(Array::from_f64(TensorType::new(DType::Bf16, [4]), &[1000.0, 1000.0, 1004.0, 1004.0]).unwrap());
    assert_eq!(numbers(&tape, &far.variance(&[0])), [4.0]);
}

#[test]
fn the_slope_of_the_absolute_value_at_zero_is_zero() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::new([3], &[-2.0f32, 0.0, 3.0]).unwrap());
    let slope = &tape.gradient(&x.abs(), &[&x]).unwrap()[0];
    assert_eq!(numbers(&tape, slope), [-1.0, 0.0, 1.0]);
}

#[test]
fn losses_of_nothing_but_minus_infinity_and_of_ignored_rows() {
    for tape in tapes() {
        let low = filled(&tape, DType::F32, &[2, 20], f64::NEG_INFINITY);
        let targets = filled(&tape, DType::I32, &[2], 3.0);
        assert!(numbers(&tape, &low.softmax(-1)).iter().all(|x| x.is_nan()));
        assert!(numbers(&tape, &low.cross_entropy(&targets, None))[0].is_nan());
        assert_eq!(numbers(&tape, &low.cross_entropy(&targets, Some(3))), [0.0], "no row counts");
        // One logit that is not minus infinity decides.
        let (lows, one) = (low.slice(0, 0..1).reshape([20]), filled(&tape, DType::F32, &[1], 1e30));
        let high = Tensor::concat(&[&lows.slice(0, 0..19), &one], 0);
        let last = filled(&tape, DType::I32, &[], 19.0);
        assert_eq!(numbers(&tape, &high.cross_entropy(&last, None)), [0.0]);
    }
}

#[test]
fn what_a_program_reads_twice_is_computed_once() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [5]);
    let y = x.exp();
    let routine = Routine::new("r").output("y", &(&y * &y));
    let cpu = Cpu::new(1).unwrap();
    let plan = trace.plan(&cpu as &dyn Backend, &[routine], Options::default()).unwrap();
    assert_eq!(plan.to_string().matches("Exp(").count(), 1, "{plan}");
}

#[test]
fn the_slope_of_tanh_is_right_where_the_function_is_flat() {
    let x: Vec<f32> = (-400..=400).map(|i| i as f32 / 10.0).collect();
    for tape in tapes() {
        let x = tape.watch(Array::new([x.len()], &x).unwrap());
        let places = numbers(&tape, &x);
        let slope = |x: f64| x.cosh().recip().powi(2);
        let close = |what: &str, computed: &Tensor, exact: &dyn Fn(f64) -> f64| {
            for (x, y) in places.iter().zip(numbers(&tape, computed)) {
                assert!((y - exact(*x)).abs() <= 2e-6 * exact(*x).abs(), "{what} at {x}: {y} for {}", exact(*x));
            }
        };
        let first = &tape.gradient(&x.tanh(), &[&x]).unwrap()[0];
        close("the slope", first, &slope);
        // In a chain with others, too.
        close("a chain", &tape.gradient(&(x.tanh() * 3.0 + 1.0), &[&x]).unwrap()[0], &|x| 3.0 * slope(x));
        close("the curvature", &tape.gradient(first, &[&x]).unwrap()[0], &|x| -2.0 * x.tanh() * slope(x));
        // It is 1 from where that is the nearest number.
        let near_one = tape.watch(Array::new([3], &[8.5f32, 9.0, 9.1]).unwrap());
        assert_eq!(numbers(&tape, &near_one.tanh()), [8.5f64, 9.0, 9.1].map(|x| x.tanh() as f32 as f64));
    }
}

#[test]
fn the_curvature_of_gelu_where_it_is_nearly_straight() {
    let exact = |x: f64| {
        let (scale, cubic) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
        let (u, inner) = (scale * (x + cubic * x * x * x), scale * (1.0 + 3.0 * cubic * x * x));
        u.cosh().recip().powi(2) * (inner + 3.0 * scale * cubic * x * x - x * u.tanh() * inner * inner)
    };
    for tape in tapes() {
        let x = tape.watch(Array::new([4], &[-4.75f32, 3.5, 4.5, 5.5]).unwrap());
        let slope = &tape.gradient(&x.gelu(), &[&x]).unwrap()[0];
        let curvature = numbers(&tape, &tape.gradient(slope, &[&x]).unwrap()[0]);
        for (x, y) in numbers(&tape, &x).into_iter().zip(curvature) {
            // The argument of the tanh is rounded: 30 units of it are as many in the result.
            assert!((y - exact(x)).abs() <= 2e-5 * exact(x).abs(), "at {x}: {y} for {}", exact(x));
        }
    }
}

#[test]
fn the_slope_at_the_bounds_of_a_clamp_is_one() {
    for tape in tapes() {
        let x = tape.watch(Array::new([7], &[-2.0f32, -1.0, -0.5, 0.0, 1.0, 1.5, f32::NAN]).unwrap());
        let slope = &tape.gradient(&x.clamp(-1.0, 1.0), &[&x]).unwrap()[0];
        assert_eq!(numbers(&tape, slope), [0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        // Two tensors that are equal share it.
        let one = tape.watch(Array::new([7], &[1.0f32; 7]).unwrap());
        let shares = &tape.gradient(&x.maximum(&one), &[&x]).unwrap()[0];
        assert_eq!(numbers(&tape, shares)[..6], [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]);
    }
}

#[test]
fn smooth_l1_is_right_for_every_beta() {
    for beta in [1e-44f32, 1e-37, 1e-30, 1e-5, 1.0, 1e30] {
        for difference in [0.0f32, 0.5, -2.0, 1e10] {
            for tape in tapes() {
                let x = filled(&tape, DType::F32, &[1], difference as f64);
                let loss = smooth_l1(&x, &x.zeros_like(), beta, Reduction::Sum);
                let slope = tape.gradient(&loss, &[&x]).unwrap().remove(0);
                let (d, b) = (difference.abs() as f64, beta as f64);
                let (value, gradient) = if d < b {
                    (0.5 * d * d / b, difference as f64 / b)
                } else {
                    (d - 0.5 * b, difference.signum() as f64)
                };
                let gradient = if d == 0.0 { 0.0 } else { gradient };
                for (given, expected) in [(numbers(&tape, &loss)[0], value), (numbers(&tape, &slope)[0], gradient)] {
                    assert!((given - expected).abs() <= 1e-6 * expected.abs() + 1e-38, "{beta} {difference}: {given}");
                }
            }
        }
    }
}

#[test]
fn a_divergence_from_what_is_no_probability_is_no_number() {
    for tape in tapes() {
        let x = filled(&tape, DType::F32, &[1], -0.5);
        for (target, expected) in [(0.0, 0.0), (1.0, 0.5), (-0.25, f64::NAN), (f64::NAN, f64::NAN)] {
            let loss = kl_divergence(&x, &filled(&tape, DType::F32, &[1], target), Reduction::Sum);
            let given = numbers(&tape, &loss)[0];
            assert!(given == expected || (given.is_nan() && expected.is_nan()), "{target}: {given}");
        }
    }
}

#[test]
fn sine_and_cosine_of_every_number() {
    let x = [1.0f32, 1e6, 2f32.powi(30), -3e9, 1e22, -1e30, f32::MAX, f32::INFINITY];
    for tape in tapes() {
        let watched = tape.watch(Array::new([x.len()], &x).unwrap());
        for (computed, exact) in [(watched.sin(), f64::sin as fn(f64) -> f64), (watched.cos(), f64::cos)] {
            for (x, y) in x.iter().zip(numbers(&tape, &computed)) {
                let exact = exact(*x as f64);
                assert!((y - exact).abs() <= 1.2e-7 || (y.is_nan() && exact.is_nan()), "of {x:e}: {y} for {exact}");
            }
        }
    }
}
