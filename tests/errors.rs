//! What a user can get wrong is a typed error that says what, where and what to do; never a panic.

use gradus::backend::{Cpu, Reference};
use gradus::graph::Part;
use gradus::ops::{AttentionOptions, Function, Order};
use gradus::plan::Options;
use gradus::{Array, DType, Error, GradientTape, Routine, Tensor, TensorType, Trace, custom_gradient, gradient};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn cpu() -> Cpu {
    Cpu::new(1).unwrap()
}

/// The error must name this file and this line, and contain these words.
#[track_caller]
fn says(error: &Error, line: u32, words: &[&str]) {
    let text = error.to_string();
    assert!(text.contains(&format!("tests/errors.rs:{line}:")), "{text:?} should name line {line}");
    for word in words {
        assert!(text.contains(word), "{text:?} should say {word:?}");
    }
}

#[test]
fn shapes_that_do_not_fit_name_operation_shapes_and_line() {
    let trace = Trace::new();
    let a = trace.input("a", DType::F32, [2, 3]);
    let b = trace.input("b", DType::F32, [4, 5]);
    let line = line!() + 1;
    let sum = &a + &b;
    // Later operations on the failed one do nothing, and the first error stays.
    let later = sum.matmul(&a).softmax(7);
    let error = trace.compile(&cpu(), &[Routine::new("r").output("y", &later)]).err().unwrap();
    assert!(matches!(error, Error::Shape { .. }));
    says(&error, line, &["add", "f32[2, 3]", "f32[4, 5]", "broadcast"]);
}

#[test]
fn every_shape_error_is_an_error_and_not_a_panic() {
    type Failure = fn(&Trace, &Tensor) -> Tensor;
    let failures: Vec<(&str, Failure)> = vec![
        ("matmul", |_, x| x.matmul(x)),
        ("reshape", |_, x| x.reshape([7])),
        ("permute", |_, x| x.permute(&[0, 0])),
        ("slice", |_, x| x.slice(0, 1..9)),
        ("slice", |_, x| x.slice_by(0, 0..1, 0)),
        ("broadcast", |_, x| x.broadcast([2, 4])),
        ("split", |_, x| x.split(1, &[1, 1]).remove(0)),
        ("softmax", |_, x| x.softmax(5)),
        ("reduce", |_, x| x.sum(&[-3])),
        ("reduce", |trace, _| trace.full(0.0, DType::F32, [0, 2]).max(&[0])),
        ("concat", |trace, x| Tensor::concat(&[x, &trace.full(0.0, DType::F32, [2, 3, 1])], 0)),
        ("embedding", |_, x| x.embedding(x)),
        ("layer_norm", |_, x| x.layer_norm(&x.sum(&[1]), &x.sum(&[1]), 1e-5)),
        ("attention", |_, x| x.attention(x, x, true)),
        ("attention", |_, x| {
            let heads = x.reshape([1, 1, 2, 3]);
            heads.attention_with(&heads, &heads, AttentionOptions { scale: Some(-1.0), ..AttentionOptions::default() })
        }),
        ("conv2d", |_, x| x.conv2d(x, None, Default::default())),
        ("dropout", |trace, x| x.dropout(1.5, &trace.input("key", DType::U32, [2]), 0)),
    ];
    for (op, build) in failures {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2, 3]);
        let y = build(&trace, &x);
        let error = y.handle().expect_err(op);
        let text = error.to_string();
        assert!(matches!(error, Error::Shape { .. } | Error::Parameter { .. } | Error::DType { .. }), "{op}: {text}");
        assert!(text.contains(op) && text.contains("tests/errors.rs:"), "{op}: {text}");
    }
}

#[test]
fn a_type_that_an_operation_does_not_take() {
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [3]);
    let line = line!() + 1;
    let error = tokens.exp().handle().unwrap_err();
    assert!(matches!(error, Error::DType { .. }));
    says(&error, line, &["exp", "i32[3]", "cast"]);

    let trace = Trace::new();
    let (a, b) = (trace.input("a", DType::F32, [3]), trace.input("b", DType::Bf16, [3]));
    let line = line!() + 1;
    let error = (&a * &b).handle().unwrap_err();
    says(&error, line, &["mul", "bf16[3]", "cast"]);
}

#[test]
fn double_precision_is_for_the_reference() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F64, [2]);
    let line = line!() + 1;
    let y = x.exp();
    let routine = || Routine::new("r").output("y", &y);
    let error = trace.compile(&cpu(), &[routine()]).err().unwrap();
    assert!(matches!(error, Error::Unsupported { dtype: DType::F64, .. }));
    says(&error, line, &["cpu", "f64", "reference"]);
    let mut program = trace.compile(&Reference, &[routine()]).unwrap();
    program.write("x", &[0.0f64, 1.0]).unwrap();
    program.run("r").unwrap();
    assert_eq!(program.read("y").unwrap().to_f64(), [1.0, std::f64::consts::E]);
}

#[test]
fn a_gradient_of_what_does_not_depend_on_the_input() {
    let tape = GradientTape::new().unwrap();
    let (x, y) = (tape.watch(Array::scalar(1.0f32)), tape.watch(Array::scalar(2.0f32)));
    let line = line!() + 1;
    let error = tape.gradient(&(&y * &y), &[&x]).unwrap_err();
    assert!(matches!(error, Error::NoGradient { .. }));
    says(&error, line, &["does not depend", "argument 0"]);
    // What a gradient is stopped at, and what is flat, is not depended on either.
    assert!(matches!(tape.gradient(&x.stop_gradient(), &[&x]), Err(Error::NoGradient { .. })));
    assert!(matches!(tape.gradient(&x.greater(&y), &[&x]), Err(Error::NoGradient { .. })));
    let whole = tape.watch(Array::scalar(3i32));
    assert!(matches!(gradient(&whole, &[&x]), Err(Error::NoGradient { .. })));
}

#[test]
fn a_number_that_is_not_finite_where_that_is_forbidden() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let state = trace.zero_state("kept", DType::F32, [3]);
    let line = line!() + 1;
    let y = x.log().check_finite("the logarithm");
    let mut program = trace.compile(&cpu(), &[Routine::new("r").output("y", &y).assign(&state, &(&y + 1.0))]).unwrap();
    program.write("x", &[1.0f32, 0.0, 1.0]).unwrap();
    let error = program.run("r").unwrap_err();
    assert!(matches!(error, Error::NonFinite { element: 1, .. }), "{error}");
    says(&error, line, &["the logarithm", "element 1"]);
    assert_eq!(program.read("kept").unwrap().to_f64(), [0.0; 3], "the replay stopped before the assignment");
    assert!(matches!(program.read("y"), Err(Error::UnknownName { .. })), "a replay that failed gives nothing");
    program.write("x", &[1.0f32, 1.0, 1.0]).unwrap();
    program.run("r").unwrap();
    assert_eq!(program.read("kept").unwrap().to_f64(), [1.0; 3], "the program can be used again");
}

#[test]
fn an_index_out_of_range() {
    let trace = Trace::new();
    let table = trace.input("table", DType::F32, [5, 2]);
    let tokens = trace.input("tokens", DType::I32, [3]);
    let line = line!() + 1;
    let rows = table.embedding(&tokens);
    let mut program = trace.compile(&Cpu::new(2).unwrap(), &[Routine::new("r").output("rows", &rows)]).unwrap();
    for bad in [5, -1, i32::MAX] {
        program.write("tokens", &[0, bad, 4]).unwrap();
        let error = program.run("r").unwrap_err();
        assert!(matches!(error, Error::Index { bound: 5, .. }), "{error}");
        says(&error, line, &["embedding", &bad.to_string(), "0..5"]);
    }
    program.write("tokens", &[0, 1, 4]).unwrap();
    program.run("r").unwrap();

    // Of unsigned numbers none is below zero.
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::U32, [3]);
    let rows = trace.input("table", DType::F32, [5, 2]).embedding(&tokens);
    for backend in [&cpu() as &dyn gradus::backend::Backend, &Reference] {
        let mut program = trace.compile(backend, &[Routine::new("r").output("rows", &rows)]).unwrap();
        program.write("tokens", &[0, u32::MAX, 4]).unwrap();
        assert!(matches!(program.run("r"), Err(Error::Index { index: 4_294_967_295, bound: 5, .. })));
    }

    // A count of steps does not depend on the tokens, and yet it is not counted on.
    let trace = Trace::new();
    let count = trace.zero_state("count", DType::F32, []);
    let next = &count + 1.0;
    let rows = trace.input("table", DType::F32, [5, 2]).embedding(&trace.input("tokens", DType::I32, [3]));
    let routine = Routine::new("r").assign(&count, &next).output("rows", &rows);
    let mut program = trace.compile(&cpu(), &[routine]).unwrap();
    program.write("tokens", &[0, 5, 4]).unwrap();
    program.run("r").unwrap_err();
    assert_eq!(program.scalar("count").unwrap(), 0.0);

    let trace = Trace::new();
    let logits = trace.input("logits", DType::F32, [2, 7]);
    let targets = trace.input("targets", DType::I32, [2]);
    let loss = logits.cross_entropy(&targets, Some(-100));
    let mut program = trace.compile(&cpu(), &[Routine::new("r").output("loss", &loss)]).unwrap();
    program.write("targets", &[7, 0]).unwrap();
    assert!(matches!(program.run("r"), Err(Error::Index { index: 7, bound: 7, .. })));
    program.write("targets", &[-100, 0]).unwrap();
    program.run("r").unwrap();
}

#[test]
fn an_arena_too_large_for_the_machine() {
    let trace = Trace::new();
    let x = trace.zero_state("x", DType::F32, [1 << 22, 1 << 22]);
    let error = trace.compile(&cpu(), &[Routine::new("r").assign(&x, &(&x + 1.0))]).err().unwrap();
    let Error::TooLarge { needed, available } = error else { panic!("{error}") };
    assert!(needed >= 1 << 46 && available < 1 << 46, "{needed} {available}");
    // Work that cannot be counted.
    let product = x.matmul(&x);
    let error = trace.compile(&cpu(), &[Routine::new("r").output("y", &product)]).err().unwrap();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let row = trace.input("row", DType::F32, [1 << 40]);
    let rows = row.broadcast([8, 1 << 40]);
    let slope = gradient(&(&rows * &rows), &[&row]).unwrap().remove(0);
    let error = trace.compile(&cpu(), &[Routine::new("r").output("y", &slope)]).err().unwrap();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    // Tensors that are each of a size that can be, and together are not.
    let trace = Trace::new();
    let states = (0..(1 << 17) + 1).map(|index| trace.zero_state(&index.to_string(), DType::F32, [1 << 45]));
    let first = states.collect::<Vec<_>>().remove(0);
    let error = trace.plan(&cpu(), &[Routine::new("r").assign(&first, &(&first + 1.0))], Options::default());
    assert!(matches!(error, Err(Error::TooLarge { .. })));
}

/// What a trace knows of where it stands is as before when user code panics and someone catches that.
#[test]
fn a_panic_that_is_caught_leaves_no_trace() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let panics = || -> Tensor { panic!("user code") };
    catch_unwind(AssertUnwindSafe(|| trace.in_layer(3, panics))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| trace.checkpoint(panics))).unwrap_err();
    let odd = custom_gradient(&[&x], |x| vec![x[0].exp()], |_, _, _| panic!("user code")).remove(0);
    catch_unwind(AssertUnwindSafe(|| gradient(&odd, &[&x]))).unwrap_err();
    let y = x.exp();
    let part = trace.to_graph().nodes()[y.handle().unwrap().node].part;
    assert_eq!(part, Part::default());
    let line = line!() + 1;
    says(&y.reshape([7]).handle().unwrap_err(), line, &["reshape"]);
}

#[test]
fn sizes_that_cannot_be_multiplied() {
    for shape in [&[usize::MAX, 2][..], &[1 << 40, 1 << 40], &[0, 1 << 40, 1 << 40], &[1 << 46]] {
        let trace = Trace::new();
        let line = line!() + 1;
        let error = trace.input("x", DType::F32, shape).handle().unwrap_err();
        says(&error, line, &["\"x\"", "more than a process can address"]);
        let trace = Trace::new();
        let line = line!() + 1;
        let error = trace.full(1.0, DType::F32, shape).handle().unwrap_err();
        says(&error, line, &["broadcast", "more than a process can address"]);
    }
    let trace = Trace::new();
    let none = Array::new([0, 1 << 40, 1 << 40], &[0.0f32; 0]).unwrap();
    assert!(matches!(trace.constant(none).handle(), Err(Error::Shape { .. })));
    let trace = Trace::new();
    let (a, b) = (trace.input("a", DType::F32, [1 << 40, 1]), trace.input("b", DType::F32, [1, 1 << 40]));
    assert!(matches!(a.matmul(&b).handle(), Err(Error::Shape { .. })));
    // Of several results, the one that is too large is named.
    let trace = Trace::new();
    let x = trace.input("x", DType::F16, [1 << 40, 1 << 6]);
    let line = line!() + 1;
    let error = x.sort(-1, Order::Ascending).indices.handle().unwrap_err();
    says(&error, line, &["top_k of i32[1099511627776, 64]", "more than a process can address"]);
}

#[test]
fn a_choice_among_nothing() {
    type Way = fn(&Tensor) -> Tensor;
    let ways: [(Way, &str); 4] = [
        (|x| x.argmax(-1), "argmax of f32[2, 0]: axis 1 has no elements"),
        (|x| x.argmin(1), "argmin of f32[2, 0]: axis 1 has no elements"),
        (|x| x.cast(DType::I32).argmin(1), "argmin of i32[2, 0]"),
        (|x| x.random_categorical(&x.trace().input("key", DType::U32, [2]), 0), "random_categorical of f32[2, 0]"),
    ];
    for (way, words) in ways {
        let error = way(&Trace::new().input("x", DType::F32, [2, 0])).handle().expect_err(words).to_string();
        assert!(error.contains("tests/errors.rs:") && error.contains(words), "{error}");
    }
}

#[test]
fn a_function_of_too_few_tensors() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let line = line!() + 1;
    let errors = [Tensor::concat(&[], 0), Tensor::global_norm(&[]), trace.function(Function::Add, &[&x])];
    for (error, op) in errors.map(|tensor| tensor.handle().unwrap_err()).iter().zip(["concat", "global_norm", "add"]) {
        says(error, line, &[op, "takes"]);
    }
    // The error is found where the tensor is used, too.
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    says(&(&x + Tensor::concat(&[], 0)).handle().unwrap_err(), line!(), &["concat", "at least one"]);
}

#[test]
fn numbers_that_an_integer_type_does_not_have() {
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::U32, [3]);
    let line = line!() + 1;
    let error = (&tokens + 1.5).handle().unwrap_err();
    assert!(matches!(error, Error::DType { .. }));
    says(&error, line, &["add", "u32[3]", "1.5", "cast"]);

    type Way = fn(&Tensor) -> Tensor;
    let ways: [(Way, &str); 7] = [
        (|x| x.trace().full(0.5, DType::I32, [2]), "0.5 is no i32"),
        (|x| x.trace().full(f32::NAN, DType::U32, []), "NaN is no u32"),
        (|x| x.trace().full(3e9, DType::I32, [2]), "is no i32"),
        (|x| x.full_like(-1.0), "-1 is no u32"),
        (|x| x.masked_fill(x, f32::NEG_INFINITY), "-inf is no u32"),
        (|x| x.pad(0, [0, 1], 0.5), "0.5 is no u32"),
        (|x| x.pad(0, [1, 0], -1.0), "-1 is no u32"),
    ];
    for (way, words) in ways {
        let trace = Trace::new();
        let error = way(&trace.input("tokens", DType::U32, [3])).handle().expect_err(words).to_string();
        assert!(error.contains("tests/errors.rs:") && error.contains(words), "{error}");
    }
    let trace = Trace::new();
    trace.input("tokens", DType::U32, [3]).masked_fill(&trace.full(1.0, DType::I32, [3]), 3e9).handle().unwrap();
}

#[test]
fn names_and_data_that_do_not_fit() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let mut program = trace.compile(&cpu(), &[Routine::new("r").output("y", &x.exp())]).unwrap();
    let text = |error: Error| error.to_string();
    assert!(text(program.write("z", &[0.0f32]).unwrap_err()).contains("\"x\""));
    assert!(text(program.write("x", &[0.0f32]).unwrap_err()).contains("f32[2]"));
    assert!(text(program.write("x", &[0i32, 1]).unwrap_err()).contains("i32"));
    assert!(text(program.read("y").unwrap_err()).contains("ran last"));
    assert!(text(program.run("s").unwrap_err()).contains("\"r\""));
    program.run("r").unwrap();
    assert!(text(program.read_into("y", &mut [0.0f32; 3]).unwrap_err()).contains("3 numbers"));
    assert!(Array::new([3], &[1.0f32]).is_err());
    let three = TensorType::new(DType::Bf16, [3]);
    assert!(text(Array::from_f64(three, &[1.0]).unwrap_err()).contains("bf16[3] (3 numbers), but 1 numbers"));
    for impossible in [[usize::MAX, 2], [1 << 40, 1 << 20]] {
        assert!(text(Array::zeros(DType::F32, impossible).unwrap_err()).contains("use smaller sizes"));
    }

    let trace = Trace::new();
    trace.input("x", DType::F32, [2]);
    trace.zero_state("x", DType::F32, [2]);
    assert!(matches!(trace.check(), Err(Error::NameTaken { .. })));
}

#[test]
fn routines_that_cannot_be_compiled() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let w = trace.zero_state("w", DType::F32, [2]);
    let compile = |routine: Routine| trace.compile(&cpu(), &[routine]).err().unwrap();
    let wrong = [
        Routine::new("r"),
        Routine::new("r").assign(&x, &w),
        Routine::new("r").assign(&w, &w.sum_all()),
        Routine::new("r").assign(&w, &x).assign(&w, &x),
        Routine::new("r").output("y", &x).output("y", &w),
    ];
    let output = || Routine::new("r").output("y", &x);
    let twice = trace.compile(&cpu(), &[output(), output()]).err().unwrap();
    for error in wrong.into_iter().map(compile).chain([twice]) {
        assert!(matches!(error, Error::Routine { .. }), "{error}");
        assert!(error.to_string().contains("tests/errors.rs:"), "{error}");
    }
    let other = Trace::new().input("x", DType::F32, [2]);
    assert!(matches!(compile(Routine::new("r").output("y", &other)), Error::TwoTraces { .. }));
    assert!(matches!((&x + &other).handle(), Err(Error::TwoTraces { .. })));
    let trace = Trace::new();
    let y = (1..9).fold(trace.input("y", DType::F32, [2]), |y, _| &y + &y);
    assert!(matches!(gradient(&other.exp(), &[&y]), Err(Error::TwoTraces { .. })));
    assert!(Cpu::new(0).is_err());
}
