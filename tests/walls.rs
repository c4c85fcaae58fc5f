//! What safe code cannot do: reach past a program's memory with a plan that is not one, or not for this machine; or leave
//! states half written when the data are bad.

use gradus::backend::{Backend, Cpu, Reference};
use gradus::ops::accumulated;
use gradus::plan::{Buffer, BufferKind, Options, Parts, Plan};
use gradus::{Array, DType, Error, Program, Routine, TensorType, Trace, gradient};
use gradus_kernels::{Isa, bf16};

/// A step on one state, `elements` of them, whose kernels take scratch of each worker.
fn step(trace: &Trace, dtype: DType, elements: usize) -> Routine {
    let w = trace.zero_state("w", dtype, [elements]);
    let x = trace.input("x", dtype, [elements]);
    Routine::new("step").assign(&w, &((&w + &x).tanh() * 0.5 + &x)).output("y", &x.exp())
}

#[test]
fn a_plan_for_fewer_workers_is_not_linked() {
    let trace = Trace::new();
    let routines = [step(&trace, DType::Bf16, 100_000)];
    let plan = |cpu: &Cpu| trace.plan(cpu, &routines, Options::default()).unwrap();
    let (one, four) = (Cpu::new(1).unwrap(), Cpu::new(4).unwrap());
    assert!(plan(&one).regions.workers > 0, "the case takes scratch of each worker");
    for error in [Program::link(plan(&one), &four).err(), four.link(&plan(&one)).err()] {
        let error = error.expect("there is scratch for one worker and four would use it");
        assert!(matches!(error, Error::OtherMachine { .. }), "{error}");
        assert!(error.to_string().contains("4 of them") && error.to_string().contains("plan again"), "{error}");
    }
    // More than enough is enough.
    let mut program = Program::link(plan(&four), &one).unwrap();
    program.run("step").unwrap();
}

#[test]
fn a_plan_of_another_backend_is_not_linked() {
    let trace = Trace::new();
    let routines = [step(&trace, DType::Bf16, 100_000)];
    let plan = trace.plan(&Reference, &routines, Options::default()).unwrap();
    assert!(matches!(Program::link(plan, &Cpu::new(1).unwrap()), Err(Error::OtherMachine { .. })));
    // The reference reads operands as they lie; norms on the CPU do not.
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3, 5]).transpose(0, 1);
    let routine = Routine::new("r").output("y", &x.rms_norm(&trace.full(1.0, DType::F32, [3]), 1e-5));
    let plan = trace.plan(&Reference, &[routine], Options::default()).unwrap();
    match Program::link(plan, &Cpu::new(1).unwrap()) {
        Err(Error::OtherMachine { problem }) => assert!(problem.contains("operand 0 of rms_norm"), "{problem}"),
        other => panic!("{:?}", other.err()),
    }
    // Products take scratch that depends on the instruction set.
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [300, 300]);
    let routines = [Routine::new("r").output("y", &x.matmul(&x))];
    let plans = Isa::available().into_iter().map(|isa| {
        let cpu = Cpu::with_isa(2, isa).unwrap();
        let plan = trace.plan(&cpu, &routines, Options::default()).unwrap();
        (cpu, plan)
    });
    let plans: Vec<(Cpu, Plan)> = plans.collect();
    for (cpu, _) in &plans {
        for (_, plan) in &plans {
            match Program::link(plan.clone(), cpu) {
                Ok(mut program) => program.run("r").unwrap(),
                Err(error) => assert!(matches!(error, Error::OtherMachine { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn a_program_that_refuses_a_plan_goes_on_with_its_own() {
    let ones = vec![bf16::from_f32(1.0); 100_000];
    let cpu = Cpu::new(2).unwrap();
    let trace = Trace::new();
    let routines = [step(&trace, DType::Bf16, 100_000)];
    let run = |program: &mut Program| {
        program.write("x", &ones).unwrap();
        program.run("step").unwrap();
        (program.read("w").unwrap(), program.read("y").unwrap())
    };
    let mut undisturbed = trace.compile(&cpu, &routines).unwrap();
    let expected = [run(&mut undisturbed), run(&mut undisturbed)];

    let mut program = trace.compile(&cpu, &routines).unwrap();
    assert!(run(&mut program) == expected[0]);
    let narrow = trace.plan(&Cpu::new(1).unwrap(), &routines, Options::default()).unwrap();
    assert!(matches!(program.relink(narrow), Err(Error::OtherMachine { .. })));
    // One of the same states, and with so much besides that the arena would move, that cannot be linked at its end.
    let other = Trace::new();
    let [wanted] = [step(&other, DType::Bf16, 100_000)];
    let wide = other.input("wide", DType::F64, [1 << 20]).exp();
    let plan = other.plan(&Reference, &[wanted.output("wide", &wide)], Options::default()).unwrap();
    assert!(program.relink(plan).is_err());
    assert!(run(&mut program) == expected[1], "what was refused has changed something");
}

#[test]
fn parts_that_reach_past_their_memory_make_no_plan() {
    let trace = Trace::new();
    let table = trace.state("table", Array::zeros(DType::F32, [8, 16]).unwrap());
    let ids = trace.input("ids", DType::I32, [4]);
    let x = table.embedding(&ids).matmul(&trace.constant(Array::zeros(DType::F32, [16, 16]).unwrap()));
    let slope = gradient(&x.sum_of_squares(&[0, 1]), &[&table]).unwrap().remove(0);
    let routine = Routine::new("step").assign(&table, &(&table - slope)).output("x", &x);
    let plan = trace.plan(&Cpu::new(2).unwrap(), &[routine], Options::default()).unwrap();
    assert!(Plan::new(Parts::clone(&plan)).is_ok());
    let state = plan.buffers.iter().position(|buffer| matches!(buffer.kind, BufferKind::State(..))).unwrap();
    let constant = plan.buffers.iter().position(|buffer| matches!(buffer.kind, BufferKind::Constant(_))).unwrap();
    let last = plan.routines[0].steps.len() - 1;
    type Way<'a> = (&'a str, &'a dyn Fn(&mut Parts));
    let ways: [Way<'_>; 18] = [
        ("a state outside", &|parts| parts.buffers[state].offset = parts.regions.total()),
        ("a state at the end of all addresses", &|parts| parts.buffers[state].offset = usize::MAX - 63),
        ("a state over a constant", &|parts| parts.buffers[state].offset = parts.buffers[constant].offset),
        ("a state larger than its numbers", &|parts| parts.buffers[state].ty.shape = [8, 17].into()),
        ("a constant of another type", &|parts| parts.buffers[constant].ty.dtype = DType::I32),
        ("sizes that cannot be added", &|parts| parts.regions.transients = usize::MAX),
        ("an arena that is too small", &|parts| parts.regions.transients = 0),
        ("no alignment", &|parts| parts.alignment = 0),
        ("an operand that is not there", &|parts| parts.routines[0].steps[0].inputs[0].buffer = 1000),
        ("a result that is not there", &|parts| parts.routines[0].steps[0].outputs[0].buffer = 1000),
        ("scratch that is not there", &|parts| parts.routines[0].steps[0].scratch = Some(1000)),
        ("a state as scratch", &|parts| parts.routines[0].steps[last].scratch = Some(state)),
        ("a constant as a result", &|parts| parts.routines[0].steps[1].outputs[0].buffer = constant),
        ("strides that wrap around", &|parts| {
            parts.routines[0].steps[1].inputs[1].layout.strides = vec![usize::MAX, 1];
        }),
        ("too few strides", &|parts| parts.routines[0].steps[1].inputs[1].layout.strides.truncate(1)),
        ("an output past its buffer", &|parts| parts.routines[0].outputs[0].1.layout.offset = 1),
        ("an assignment of what is not there", &|parts| parts.routines[0].assigns[0].1 = 1000),
        ("an assignment of another type", &|parts| parts.routines[0].assigns[0].1 = constant),
    ];
    for (what, way) in ways {
        let mut parts = Parts::clone(&plan);
        way(&mut parts);
        assert!(Plan::new(parts).is_err(), "{what} is accepted:\n{plan}");
    }
}

#[test]
fn nothing_may_lie_nowhere_and_an_arena_be_without_end() {
    let trace = Trace::new();
    let y = trace.input("x", DType::F32, [0]).exp();
    let plan = trace.plan(&Cpu::new(1).unwrap(), &[Routine::new("r").output("y", &y)], Options::default()).unwrap();
    let mut parts = Parts::clone(&plan);
    let (kind, ty) = (BufferKind::Transient, TensorType::new(DType::F32, [0]));
    parts.buffers.push(Buffer { kind, ty, offset: usize::MAX - 63 });
    parts.routines[0].steps[0].inputs[0].buffer = parts.buffers.len() - 1;
    assert!(Plan::new(parts).unwrap_err().contains("not inside the arena"));
    let mut parts = Parts { buffers: vec![], routines: vec![], ..Parts::clone(&plan) };
    assert!(Plan::new(parts.clone()).is_ok());
    (parts.regions.states, parts.regions.workers) = (64, usize::MAX);
    assert_eq!(parts.regions.total(), usize::MAX);
    assert!(Plan::new(parts).unwrap_err().contains("more bytes than can be counted"));
}

#[test]
fn bad_data_leave_every_state_as_it_was() {
    // The rows that are picked are not asked for, only their gradient, which looks at the indices alone.
    for threads in [1, 3] {
        let trace = Trace::new();
        let count = trace.zero_state("count", DType::F32, []);
        let sum = trace.zero_state("sum", DType::F32, [5, 2]);
        let table = trace.input("table", DType::F32, [5, 2]);
        let weights = trace.input("weights", DType::F32, [3, 2]);
        let total = (table.embedding(&trace.input("ids", DType::I32, [3])) * weights).sum_all();
        let slope = gradient(&total, &[&table]).unwrap().remove(0);
        let next = accumulated(&[&sum], &[&slope]).remove(0);
        let routine = Routine::new("r").assign(&count, &(&count + 1.0)).assign(&sum, &next);
        let mut program = trace.compile(&Cpu::new(threads).unwrap(), &[routine]).unwrap();
        assert!(!program.plan().to_string().contains("= embedding("), "{}", program.plan());
        program.write("weights", &[1.0f32; 6]).unwrap();
        program.write("ids", &[0, 5, 4]).unwrap();
        assert!(matches!(program.run("r"), Err(Error::Index { index: 5, bound: 5, .. })));
        assert_eq!(program.scalar("count").unwrap(), 0.0);
        assert_eq!(program.read("sum").unwrap(), Array::zeros(DType::F32, [5, 2]).unwrap());
        program.write("ids", &[0, 4, 4]).unwrap();
        program.run("r").unwrap();
        assert_eq!(program.scalar("count").unwrap(), 1.0);
        assert_eq!(program.read("sum").unwrap().to_f64(), [1., 1., 0., 0., 0., 0., 0., 0., 2., 2.]);
    }
}

#[test]
fn a_new_value_that_is_found_bad_is_not_assigned() {
    let trace = Trace::new();
    let w = trace.state("w", Array::new([2], &[1.0f32, 2.0]).unwrap());
    let next = &w / trace.input("x", DType::F32, [2]);
    let routine = Routine::new("r").assign(&w, &next).output("checked", &next.check_finite("the new weight"));
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
    program.write("x", &[2.0f32, 0.0]).unwrap();
    assert!(matches!(program.run("r"), Err(Error::NonFinite { element: 1, .. })));
    assert_eq!(program.read("w").unwrap().to_f64(), [1.0, 2.0]);
    program.write("x", &[2.0f32, 4.0]).unwrap();
    program.run("r").unwrap();
    assert_eq!(program.read("w").unwrap().to_f64(), [0.5, 0.5]);
}

#[test]
fn a_state_written_before_a_fault_makes_no_plan() {
    let trace = Trace::new();
    let count = trace.zero_state("count", DType::F32, []);
    let rows = trace.input("table", DType::F32, [5, 2]).embedding(&trace.input("ids", DType::I32, [3]));
    let routine = Routine::new("r").assign(&count, &(&count + 1.0)).output("rows", &rows);
    let plan = trace.plan(&Cpu::new(1).unwrap(), &[routine], Options::default()).unwrap();
    let mut parts = Parts::clone(&plan);
    parts.routines[0].steps.reverse();
    assert!(Plan::new(parts).unwrap_err().contains("a state has been written"), "{plan}");
}
