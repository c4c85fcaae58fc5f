//! What methods of tensors mean where the cases of operations do not say it: equal numbers, NaN, large integers, classes
//! out of range, gradients that are not there.

use gradus::ops::{Order, Sorted};
use gradus::{Array, DType, Error, GradientTape, Native, Tensor, gradient_or_zeros};

fn tape() -> GradientTape {
    GradientTape::new().unwrap()
}

fn vector<T: Native>(tape: &GradientTape, numbers: &[T]) -> Tensor {
    tape.watch(Array::new([numbers.len()], numbers).unwrap())
}

fn read<T: Native>(tape: &GradientTape, tensor: &Tensor) -> Vec<T> {
    tape.read(tensor).unwrap().to_vec().unwrap()
}

#[test]
fn the_first_of_equal_numbers_and_nan_before_all() {
    let tape = tape();
    let equal = vector(&tape, &[1f32, 3.0, 3.0, -2.0, -2.0]);
    assert_eq!((read(&tape, &equal.argmax(0)), read(&tape, &equal.argmin(-1))), (vec![1], vec![3]));
    let with_nan = vector(&tape, &[1f32, f32::NAN, f32::INFINITY, f32::NAN]);
    assert_eq!((read(&tape, &with_nan.argmax(0)), read(&tape, &with_nan.argmin(0))), (vec![1], vec![1]));
    assert_eq!(read::<i32>(&tape, &with_nan.argsort(0, Order::Ascending)), [0, 2, 1, 3]);
    assert_eq!(read::<i32>(&tape, &equal.argsort(0, Order::Descending)), [1, 2, 0, 3, 4]);
}

#[test]
fn gradients_of_what_is_sorted_go_back_to_where_it_was() {
    let tape = tape();
    let x = vector(&tape, &[3f32, 1.0, 2.0]);
    let Sorted { values, .. } = x.top_k(0, 2, Order::Descending); // 3, 2
    let loss = (&values * vector(&tape, &[10f32, 100.0])).sum_all();
    assert_eq!(read::<f32>(&tape, &tape.gradient(&loss, &[&x]).unwrap()[0]), [10.0, 0.0, 100.0]);
}

#[test]
fn integers_that_f32_does_not_hold() {
    let tape = tape();
    let x = vector(&tape, &[16_777_217i32, i32::MAX, -16_777_219]);
    assert_eq!(read::<i32>(&tape, &(&x + 1.0)), [16_777_218, i32::MIN, -16_777_218]);
    assert_eq!(read::<i32>(&tape, &x.equal(&(&x - 1.0))), [0, 0, 0]);
    assert_eq!(read::<i32>(&tape, &x.abs()), [16_777_217, i32::MAX, 16_777_219]);
    assert_eq!(read::<i32>(&tape, &x.greater(&x.full_like(0.0)).select(&x, &-&x)), [16_777_217, i32::MAX, 16_777_219]);
    let large = vector(&tape, &[u32::MAX, 3]);
    assert_eq!(read::<u32>(&tape, &(&large * 3.0 + &large)), [u32::MAX - 3, 12]);
}

#[test]
fn each_number_that_is_no_integer_is_refused() {
    let refusals: [fn(&Tensor, &Tensor) -> Tensor; 6] =
        [|x, _| x + 0.5, |_, u| u - f32::NAN, |x, _| x * 3e9, |_, u| -1.0 * u, |x, _| x / 2.0, |x, u| x + u];
    for refusal in refusals {
        let tape = tape();
        let (x, u) = (vector(&tape, &[1i32]), vector(&tape, &[1u32]));
        assert!(matches!(refusal(&x, &u).handle(), Err(Error::DType { .. })));
    }
}

#[test]
fn a_choice_by_a_condition_of_any_type() {
    let tape = tape();
    let (yes, no) = (vector(&tape, &[1f32, 2.0, 3.0]), vector(&tape, &[-1f32, -2.0, -3.0]));
    let integers = vector(&tape, &[0u32, u32::MAX, 1]);
    assert_eq!(read::<f32>(&tape, &integers.select(&yes, &no)), [-1.0, 2.0, 3.0]);
    let tiny = vector(&tape, &[1e-30f32, 0.0, f32::NAN]);
    let chosen = tiny.select(&yes.cast(DType::F16), &no.cast(DType::F16)).cast(DType::F32);
    assert_eq!(read::<f32>(&tape, &chosen), [1.0, -2.0, 3.0]);
    let filled = yes.masked_fill(&integers.equal(&integers.full_like(1.0)), f32::NEG_INFINITY);
    assert_eq!(read::<f32>(&tape, &filled), [1.0, 2.0, f32::NEG_INFINITY]);
}

#[test]
fn triangles_drop_what_is_not_finite() {
    let tape = tape();
    let x = tape.watch(Array::new([2, 2], &[1f32, f32::NAN, f32::INFINITY, 2.0]).unwrap());
    assert_eq!(read::<f32>(&tape, &x.tril(0).triu(0)), [1.0, 0.0, 0.0, 2.0]);
    assert_eq!(read::<f32>(&tape, &x.triu(isize::MAX)), [0.0; 4]);
}

#[test]
fn a_class_out_of_range_is_an_error() {
    let tape = tape();
    assert_eq!(read::<f32>(&tape, &vector(&tape, &[2i32, 0]).one_hot(3)), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    let error = tape.read(&vector(&tape, &[1i32, 3]).one_hot(3)).unwrap_err();
    assert!(matches!(error, Error::Index { index: 3, bound: 3, .. }), "{error}");
}

#[test]
fn zeros_where_there_is_no_gradient_if_asked_for() {
    let tape = tape();
    let (x, y) = (vector(&tape, &[2f32, 3.0]), vector(&tape, &[5f32]));
    let loss = (&x * &x).sum_all() + x.greater(&y.broadcast([2])).sum_all();
    assert!(loss.depends_on(&x) && loss.depends_on(&y) && !x.depends_on(&y) && x.depends_on(&x));
    let found = gradient_or_zeros(&loss, &[&x, &y]).unwrap();
    assert_eq!((read(&tape, &found[0]), read(&tape, &found[1])), (vec![4f32, 6.0], vec![0f32]));
    let error = tape.gradient(&loss, &[&y]).unwrap_err().to_string();
    assert!(error.contains("argument 0") && error.contains("gradient_or_zeros"), "{error}");
}

#[test]
fn norms_of_zeros_have_gradients_of_zero() {
    let tape = tape();
    let x = vector(&tape, &[0f32, 0.0]);
    for order in [0.5, 1.0, 2.0, 3.5, f32::INFINITY] {
        let slope = tape.gradient(&x.norm(order, &[0]), &[&x]).unwrap().remove(0);
        assert_eq!(read::<f32>(&tape, &slope), [0.0, 0.0], "order {order}");
    }
    let nan = vector(&tape, &[1f32, f32::NAN]);
    assert!(read::<f32>(&tape, &nan.norm(3.0, &[0]))[0].is_nan());
}

#[test]
fn log_sum_exp_of_infinities() {
    let tape = tape();
    let of = |numbers: &[f32]| read::<f32>(&tape, &vector(&tape, numbers).log_sum_exp(&[0]))[0];
    assert_eq!(of(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), f32::NEG_INFINITY);
    assert_eq!(of(&[f32::INFINITY, 0.0]), f32::INFINITY);
    assert_eq!(of(&[f32::NEG_INFINITY, 5.0]), 5.0);
    assert!(of(&[f32::NAN, 0.0]).is_nan());
}
