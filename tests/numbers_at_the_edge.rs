//! Numbers at the edge of what their types hold: a NaN is never lost on the way to the loss, and what is worked on
//! is not rounded to 16 bits before its time.

use gradus::backend::{Backend, Cpu, Reference};
use gradus::ops::{Lion, LionInputs};
use gradus::plan::Options;
use gradus::{Array, DType, GradientTape, Routine, Tensor, TensorType, Trace, gradient};
use gradus_kernels::Isa;

fn numbers(tape: &GradientTape, tensor: &Tensor) -> Vec<f64> {
    tape.read(tensor).unwrap().to_f64()
}

fn filled(tape: &GradientTape, dtype: DType, shape: &[usize], number: f64) -> Tensor {
    let ty = TensorType::new(dtype, shape);
    tape.watch(Array::from_f64(ty.clone(), &vec![number; ty.shape.elements()]))
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
        ("pooling", |x| x.reshape([1, 3, 40]).max_pool1d(3, 2, 1)),
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
    // Around the mean of 1002, which bf16 rounds to 1000, the variance would be 8.
    let far = tape.watch(Array::from_f64(TensorType::new(DType::Bf16, [4]), &[1000.0, 1000.0, 1004.0, 1004.0]));
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
