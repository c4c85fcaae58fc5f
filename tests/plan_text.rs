//! A plan as text at each stage: what the planner did can be read, and is what it should do.

use gradus::backend::Cpu;
use gradus::models::{CausalModel, ModelConfig};
use gradus::plan::{BufferKind, Options};
use gradus::{Array, DType, Routine, Tensor, Trace, custom_gradient, gradient};

fn stages(trace: &Trace, routine: Routine) -> Vec<(String, String)> {
    let mut texts = vec![];
    let mut report = |stage: &str, text: &dyn std::fmt::Display| texts.push((stage.to_string(), text.to_string()));
    trace.plan_in_stages(&Cpu::new(1).unwrap(), &[routine], Options::default(), &mut report).unwrap();
    texts
}

fn lines_with(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn every_stage_can_be_printed() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2, 3]);
    let w = trace.zero_state("w", DType::F32, [3]);
    let y = (&x * &w).tanh() + 1.0;
    let stages = stages(&trace, Routine::new("step").output("y", &y).assign(&w, &(&w + y.sum(&[0]))));
    let names: Vec<&str> = stages.iter().map(|(stage, _)| &stage[..]).collect();
    assert_eq!(names, ["simplify", "lower", "schedule", "recompute", "memory"]);
    let [simplified, lowered, scheduled, recomputed, planned] = [0, 1, 2, 3, 4].map(|index| &stages[index].1);
    // The chain of three is one operation; the broadcast is a view.
    assert_eq!(lines_with(simplified, "= elementwise"), 2, "{simplified}");
    assert!(simplified.contains("r0 = Mul(x0, x1); r1 = Tanh(r0); r2 = Add(r1, 1.0); r2"), "{simplified}");
    assert!(lowered.contains("state:w[[2, 3] by [0, 1] from 0]"), "{lowered}");
    assert_eq!(lines_with(scheduled, " = "), lines_with(lowered, " = "), "{scheduled}");
    assert_eq!(recomputed, scheduled, "nothing is made twice unless asked for");
    assert!(planned.starts_with("arena ") && planned.contains("@"), "{planned}");
    assert!(planned.contains("assign state:w = "), "{planned}");
}

#[test]
fn views_are_free_and_copies_are_made_only_where_strides_cannot_say_it() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [4, 6]);
    let free = x.reshape([2, 2, 6]).permute(&[2, 0, 1]).slice(0, 1..4).broadcast([5, 3, 2, 2]);
    let text = &stages(&trace, Routine::new("r").output("y", &free.exp()))[4].1;
    assert_eq!(lines_with(text, "= elementwise"), 1, "{text}");
    let turned = x.transpose(0, 1).reshape([24]);
    let text = &stages(&trace, Routine::new("r").output("y", &turned.exp()))[4].1;
    assert_eq!(lines_with(text, "= elementwise"), 2, "{text}");
    // A copy that two readers need is made once.
    let both = Tensor::concat(&[&turned, &turned.softmax(-1)], 0);
    let text = &stages(&trace, Routine::new("r").output("y", &both))[4].1;
    assert_eq!(lines_with(text, "= elementwise"), 1, "{text}");
}

#[test]
fn what_is_joined_with_a_gradient_is_part_of_the_gradient() {
    let trace = Trace::new();
    let (x, w) = (trace.input("x", DType::F32, [6, 4]), trace.zero_state("w", DType::F32, [4, 3]));
    let slopes = gradient(&x.matmul(&w).tanh().sum_of_squares(&[0, 1]), &[&w, &x]).unwrap();
    let routine = Routine::new("r").assign(&w, &(&w - &slopes[0] * 0.1)).output("y", &(x.exp() + &slopes[1].exp()));
    let plan = trace.plan(&Cpu::new(1).unwrap(), &[routine], Options::default()).unwrap();
    let with_epilogue = plan.routines[0].steps.iter().filter(|step| step.op.name() == "fused_matmul");
    let backward: Vec<bool> = with_epilogue.map(|step| step.part.backward).collect();
    // The model's product with the slope of what follows it, and two that go on with what the gradient gave.
    assert_eq!(backward, [true; 3], "{plan}");

    let y = gradient(&x.tanh().sum(&[0, 1]), &[&x]).unwrap().remove(0) * 2.0;
    let plan = trace.plan(&Cpu::new(1).unwrap(), &[Routine::new("r").output("y", &y)], Options::default()).unwrap();
    assert_eq!(plan.routines[0].steps.iter().map(|step| step.part.backward).collect::<Vec<_>>(), [true], "{plan}");
}

#[test]
fn a_gradient_of_ones_own_is_in_no_ones_way() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [6]);
    let y = custom_gradient(&[&x], |x| vec![x[0].exp()], |_, _, g| vec![Some(g[0].clone())]).remove(0);
    let plan = trace.plan(&Cpu::new(1).unwrap(), &[Routine::new("r").output("y", &(y * 2.0))], Options::default());
    assert_eq!(plan.unwrap().routines[0].steps.len(), 1);
}

#[test]
fn a_chain_of_updates_needs_the_bytes_of_one() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [1000]);
    let mut y = x.clone();
    for _ in 0..50 {
        y = y.softmax(-1);
    }
    let routine = || Routine::new("r").output("y", &y);
    let cpu = Cpu::new(1).unwrap();
    let planned = trace.plan(&cpu, &[routine()], Options::default()).unwrap();
    assert_eq!(planned.regions.transients, 4032, "one buffer, in place: {planned}");
    let apart = Options { in_place: false, share: false, ..Options::default() };
    assert_eq!(trace.plan(&cpu, &[routine()], apart).unwrap().regions.transients, 50 * 4032);
}

/// Heads are split off a joint projection, attended and joined again, and so back: all by strides.
#[test]
fn attention_of_a_joint_projection_needs_no_copies() {
    let config = ModelConfig::gpt2(50, 32, 2, 4, 16);
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [3, 16]);
    let parameters = config.declare(&trace);
    let loss = config.loss(&parameters, &tokens, &tokens);
    let mut routine = Routine::new("step").output("loss", &loss);
    for (index, gradient) in
        gradient(&loss, &parameters.tensors().iter().collect::<Vec<_>>()).unwrap().iter().enumerate()
    {
        routine = routine.output(&index.to_string(), gradient);
    }
    let text = &stages(&trace, routine)[4].1;
    assert_eq!(lines_with(text, "= attention_gradient"), 2, "{text}");
    assert_eq!(lines_with(text, "= concat"), 0, "{text}");
    let copies = text.lines().filter(|line| line.contains("{f32[3, 16, ") && line.ends_with(": x0}"));
    assert_eq!(copies.count(), 0, "{text}");
}

#[test]
fn constants_that_hold_the_same_are_one() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let constant = |numbers: [f32; 2]| trace.constant(Array::new([2], &numbers).unwrap());
    let y = &x + constant([1.0, 2.0]);
    let z = &x + constant([1.0, 2.0]);
    let other = &x + constant([1.0, -2.0]);
    let routines =
        [Routine::new("a").output("y", &y).output("z", &z), Routine::new("b").output("other", &(other * &z))];
    let plan = trace.plan(&Cpu::new(1).unwrap(), &routines, Options::default()).unwrap();
    let constants = plan.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::Constant(_))).count();
    assert_eq!((constants, plan.routines[0].steps.len()), (2, 1), "{plan}");
}
