//! The tape, and what programs do with states.

use gradus::backend::{Backend, Cpu, Reference};
use gradus::{Array, DType, GradientTape, Role, Routine, Trace, gradient};

#[test]
fn values_in_the_middle_can_be_read_and_gradients_stopped() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::new([3], &[1.0f32, 2.0, 3.0]).unwrap());
    let square = &x * &x;
    assert_eq!(tape.read(&square).unwrap().to_f64(), [1.0, 4.0, 9.0]);
    let y = &square.stop_gradient() * &x;
    let slope = tape.gradient(&y, &[&x]).unwrap().remove(0);
    assert_eq!(tape.read(&slope).unwrap().to_f64(), [1.0, 4.0, 9.0]);
    // The result is summed; a value in the middle can be differentiated by, too.
    let by_middle = tape.gradient(&(&square * 3.0), &[&square]).unwrap().remove(0);
    assert_eq!(tape.read(&by_middle).unwrap().to_f64(), [3.0, 3.0, 3.0]);
}

#[test]
fn a_gradient_can_be_differentiated_again_and_again() {
    let tape = GradientTape::on(Reference);
    let x = tape.watch(Array::scalar(0.7f64));
    let mut y = x.sin();
    let signs = [1.0, 1.0, -1.0, -1.0];
    for order in 1..=6 {
        y = tape.gradient(&y, &[&x]).unwrap().remove(0);
        let expected = signs[order % 4] * if order % 2 == 1 { 0.7f64.cos() } else { 0.7f64.sin() };
        let computed = tape.read(&y).unwrap().to_f64()[0];
        assert!((computed - expected).abs() < 1e-12, "order {order}: {computed}, {expected}");
    }
}

#[test]
fn the_total_derivative_flows_through_every_path() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::scalar(2.0f32));
    let y = &x * &x;
    let z = &y * &x;
    let found = tape.gradient(&z, &[&x, &y]).unwrap();
    assert_eq!(tape.read(&found[0]).unwrap().to_f64(), [12.0]);
    assert_eq!(tape.read(&found[1]).unwrap().to_f64(), [2.0]);
}

#[test]
fn a_question_about_new_numbers_is_a_replay() {
    let tape = GradientTape::new().unwrap();
    let cube = |number: f32| {
        let x = tape.watch(Array::scalar(number));
        let y = &x * &x * &x;
        (y.clone(), tape.gradient(&y, &[&x]).unwrap().remove(0))
    };
    for number in 0..100 {
        let exact = number as f64;
        let (y, slope) = cube(number as f32);
        let read = tape.read_all(&[&y, &slope]).unwrap();
        assert_eq!([read[0].to_f64()[0], read[1].to_f64()[0]], [exact.powi(3), 3.0 * exact * exact]);
    }
    assert_eq!(tape.compiled(), 1);
    // A hundred values at once are one question; another order is another.
    let all: Vec<_> = (0..100).map(|number| cube(number as f32).1).collect();
    let read = tape.read_all(&all.iter().collect::<Vec<_>>()).unwrap();
    let exact: Vec<f64> = (0..100).map(|number| 3.0 * (number * number) as f64).collect();
    assert_eq!(read.iter().map(|read| read.to_f64()[0]).collect::<Vec<_>>(), exact);
    let (y, slope) = cube(5.0);
    assert_eq!(tape.read_all(&[&slope, &y]).unwrap(), [Array::scalar(75.0f32), Array::scalar(125.0f32)]);
    assert_eq!(tape.compiled(), 3);
    assert_eq!(tape.read_all(&[]).unwrap(), []);
}

#[test]
fn questions_differ_by_shapes_types_parameters_and_lines() {
    let tape = GradientTape::new().unwrap();
    let sums = |shape: &[usize], axis: isize| {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32).collect();
        let sum = tape.watch(Array::new(shape, &numbers).unwrap()).sum(&[axis]);
        tape.read(&sum).unwrap().to_f64()
    };
    for _ in 0..2 {
        assert_eq!(sums(&[2, 2], 0), [2.0, 4.0]);
        assert_eq!(sums(&[2, 2], 1), [1.0, 5.0]);
        assert_eq!(sums(&[1, 4], 1), [6.0]);
    }
    assert_eq!(tape.compiled(), 3);
    // The same on two lines: an error names the one that was read.
    let rows = |first: bool, row: i32| {
        let table = tape.watch(Array::zeros(DType::F32, [4, 2]).unwrap());
        let ids = tape.watch(Array::new([1], &[row]).unwrap());
        let (first_line, second_line) = (line!() + 2, line!() + 3);
        let rows = match first {
            true => table.embedding(&ids),
            false => table.embedding(&ids),
        };
        (tape.read(&rows), if first { first_line } else { second_line })
    };
    for first in [true, false, true] {
        rows(first, 1).0.unwrap();
        let (read, line) = rows(first, 7);
        let error = read.unwrap_err().to_string();
        assert!(error.contains(&format!("tests/tape.rs:{line}:")) && error.contains("index 7"), "{error}");
    }
    assert_eq!(tape.compiled(), 5);
}

#[test]
fn a_number_of_the_code_that_changes_becomes_an_input() {
    let tape = GradientTape::new().unwrap();
    for turn in 0..50 {
        let rate = turn as f32 * 0.25;
        let x = tape.watch(Array::new([2], &[1.0f32, -3.0]).unwrap());
        let full = tape.trace().full(rate, DType::F32, [2]);
        let y = (&x * 2.0 - rate) * 0.5 + &full;
        assert_eq!(tape.read(&y).unwrap().to_f64(), [1.0, -3.0].map(|x| x + rate as f64 / 2.0), "turn {turn}");
    }
    assert_eq!(tape.compiled(), 2, "the rate was seen to change once");
}

#[test]
fn what_no_tensor_leads_to_is_forgotten() {
    let tape = GradientTape::new().unwrap();
    let first = tape.watch(Array::scalar(3.0f32));
    let kept = &first * &first;
    let mut last = None;
    for turn in 0..2000 {
        let x = tape.watch(Array::scalar(turn as f32));
        let y = &x * &kept;
        let slope = tape.gradient(&y, &[&kept]).unwrap().remove(0);
        assert_eq!(tape.read(&slope).unwrap().to_f64(), [turn as f64]);
        last = Some(y);
    }
    assert!(tape.trace().to_graph().nodes().len() < 600, "{}", tape.trace().to_graph());
    // Handles have followed their nodes, and lead back as before.
    let slope = tape.gradient(&last.unwrap(), &[&first]).unwrap().remove(0);
    assert_eq!(tape.read(&slope).unwrap().to_f64(), [1999.0 * 6.0]);
    assert_eq!(tape.compiled(), 2);
}

#[test]
fn a_tape_keeps_so_many_programs_and_not_more() {
    let tape = GradientTape::new().unwrap();
    let sum = |size: usize| tape.read(&tape.watch(Array::zeros(DType::F32, [size]).unwrap()).sum_all()).unwrap();
    for size in (1..=65).chain([65, 64, 2]) {
        assert_eq!(sum(size), Array::scalar(0.0f32));
    }
    assert_eq!(tape.compiled(), 65, "the first was the oldest");
    sum(1);
    assert_eq!(tape.compiled(), 66);
}

#[test]
fn a_tape_takes_states_by_their_first_numbers_and_refuses_inputs() {
    let tape = GradientTape::new().unwrap();
    let w = tape.trace().state("w", Array::scalar(4.0f32));
    let x = tape.trace().input("x", DType::F32, []);
    assert_eq!(tape.read(&(&w * 2.0)).unwrap(), Array::scalar(8.0f32));
    let error = tape.read(&(&w * &x)).unwrap_err().to_string();
    assert!(error.contains("input \"x\" has no numbers on a tape; watch them"), "{error}");
    let other = GradientTape::new().unwrap();
    let error = other.read(&w).unwrap_err().to_string();
    assert!(error.contains("tests/tape.rs") && error.contains("two traces"), "{error}");
}

#[test]
fn assignments_take_effect_together_at_the_end() {
    let trace = Trace::new();
    let a = trace.state("a", Array::new([2], &[1.0f32, 2.0]).unwrap());
    let b = trace.state("b", Array::new([2], &[3.0f32, 4.0]).unwrap());
    let sum = &a + &b;
    let swap = Routine::new("swap").output("old a", &a).output("sum", &sum).assign(&a, &b).assign(&b, &a);
    let twice = Routine::new("twice").assign(&a, &sum).assign(&b, &sum);
    let shift = Routine::new("shift").assign(&b, &b.reshape([1, 2]).slice(1, 1..2).broadcast([1, 2]).reshape([2]));
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[swap, twice, shift]).unwrap();
    let read = |program: &gradus::Program, name: &str| program.read(name).unwrap().to_f64();
    program.run("swap").unwrap();
    assert_eq!(read(&program, "old a"), [1.0, 2.0]);
    assert_eq!((read(&program, "a"), read(&program, "b")), (vec![3.0, 4.0], vec![1.0, 2.0]));
    program.run("twice").unwrap();
    assert_eq!((read(&program, "a"), read(&program, "b")), (vec![4.0, 6.0], vec![4.0, 6.0]));
    program.run("shift").unwrap();
    assert_eq!(read(&program, "b"), [6.0, 6.0]);
}

#[test]
fn routines_share_states_and_may_differ_in_shape() {
    let trace = Trace::new();
    let w = trace.zero_state("w", DType::F32, [3]);
    let large = trace.input("large", DType::F32, [8, 3]);
    let small = trace.input("small", DType::F32, [1, 3]);
    let loss = |x: &gradus::Tensor| ((x - &w) * (x - &w)).mean_all();
    let slope = gradient(&loss(&large), &[&w]).unwrap().remove(0);
    let train = Routine::new("train").output("loss", &loss(&large)).assign(&w, &(&w - slope));
    let evaluate = Routine::new("evaluate").output("loss", &loss(&small));
    let mut program = trace.compile(&Cpu::new(2).unwrap(), &[train, evaluate]).unwrap();
    program.write("large", &[0.5f32; 24]).unwrap();
    program.write("small", &[0.5f32; 3]).unwrap();
    for _ in 0..50 {
        program.run("train").unwrap();
    }
    program.run("evaluate").unwrap();
    assert!(program.scalar("loss").unwrap() < 1e-9);
}

#[test]
fn updates_are_written_over_the_states() {
    let trace = Trace::new();
    let w = trace.zero_state("w", DType::F32, [1000]);
    let x = trace.input("x", DType::F32, [1000]);
    let y = (&w * &x).sigmoid();
    let routine = Routine::new("step").output("y", &y.sum_all()).assign(&w, &(&w * 0.5 + &x));
    let program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
    // Only the number that is given is held besides state, input and the product's sigmoid.
    assert!(program.plan().regions.transients < 4096 + 256, "{}", program.plan());
}

#[test]
fn states_are_listed_and_their_bytes_read_and_written_whatever_the_backend() {
    let on = |backend: &dyn Backend| {
        let trace = Trace::new();
        let weight = trace.state("weight", Array::new([2], &[1.5f32, -2.0]).unwrap());
        let count = trace.zero_state_with_role("count", Role::Optimizer, DType::F32, []);
        let x = trace.input("x", DType::F32, [2]);
        let step = Routine::new("step").assign(&weight, &(&weight + &x)).assign(&count, &(&count + 1.0));
        let mut program = trace.compile(backend, &[step]).unwrap();
        let states: Vec<String> = program.states().map(|(name, role, ty)| format!("{name} {role:?} {ty}")).collect();
        assert_eq!(states, ["weight Weight f32[2]", "count Optimizer f32[]"]);

        program.write_bytes("x", &[1.0f32.to_le_bytes(), 0.25f32.to_le_bytes()].concat()).unwrap();
        program.run("step").unwrap();
        let expected = [2.5f32.to_le_bytes(), (-1.75f32).to_le_bytes()].concat();
        assert_eq!(*program.bytes("weight").unwrap(), expected);
        assert_eq!(*program.bytes("count").unwrap(), 1.0f32.to_le_bytes());
        assert!(program.bytes("step").unwrap_err().to_string().contains("\"weight\""));
        let error = program.write_bytes("weight", &[0; 5]).unwrap_err().to_string();
        assert!(error.contains("8 bytes") && error.contains("5 bytes"), "{error}");
    };
    on(&Cpu::new(1).unwrap());
    on(&Reference);
}
