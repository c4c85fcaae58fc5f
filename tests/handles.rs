//! Handles name what they were traced as, in programs of their own trace and in no others.

use gradus::backend::{Backend, Cpu, Reference};
use gradus::plan::{Options, Parts, Plan};
use gradus::{Array, DType, Program, Routine, Tensor, Trace};

/// A trace with an input, a state and two routines.
struct Traced {
    trace: Trace,
    x: Tensor,
    w: Tensor,
    sum: Tensor,
    product: Tensor,
    step: Routine,
    look: Routine,
}

fn traced() -> Traced {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let w = trace.state("w", Array::new([2], &[1.0f32, 2.0]).unwrap());
    let (sum, product) = (&w + &x, &w * &x);
    let step = Routine::new("step").output("sum", &sum).output("old w", &w).assign(&w, &sum);
    let look = Routine::new("look").output("sum", &product);
    Traced { trace, x, w, sum, product, step, look }
}

impl Traced {
    fn compile(&self, backend: &dyn Backend) -> Program {
        self.trace.compile(backend, &[self.step.clone(), self.look.clone()]).unwrap()
    }
}

#[test]
fn handles_name_what_names_do() {
    for backend in [&Cpu::new(1).unwrap() as &dyn Backend, &Reference] {
        let traced = traced();
        let mut program = traced.compile(backend);
        program.write(&traced.x, &[10.0f32, 20.0]).unwrap();
        program.run(&traced.step).unwrap();
        assert_eq!(program.read(&traced.sum).unwrap().to_f64(), [11.0, 22.0]);
        assert_eq!(program.read(&traced.sum).unwrap(), program.read("sum").unwrap());
        // The handle of a state is the state, not what a routine gave of it before it was assigned.
        assert_eq!(program.read(&traced.w).unwrap().to_f64(), [11.0, 22.0]);
        assert_eq!(program.read("old w").unwrap().to_f64(), [1.0, 2.0]);
        // Both routines give something as "sum".
        program.run(&traced.look).unwrap();
        assert_eq!(program.read(&traced.product).unwrap().to_f64(), [110.0, 440.0]);
        program.write_array(&traced.w, &Array::new([2], &[0.5f32, 0.25]).unwrap()).unwrap();
        program.run(&traced.look).unwrap();
        let mut read = [0.0f32; 2];
        program.read_into(&traced.product, &mut read).unwrap();
        assert_eq!(read, [5.0, 5.0]);
        assert_eq!(program.size(&traced.x).unwrap(), 2);
        assert_eq!(*program.bytes(&traced.w).unwrap(), [0.5f32.to_le_bytes(), 0.25f32.to_le_bytes()].concat());
    }
}

#[test]
fn handles_that_name_nothing_are_refused() {
    let traced = traced();
    let mut program = traced.compile(&Cpu::new(1).unwrap());
    let said = |result: gradus::Result<()>, words: &[&str]| {
        let error = result.expect_err(words[0]).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let read = |program: &Program, tensor: &Tensor| program.read(tensor).map(|_| ());
    said(read(&program, &traced.sum), &["elementwise of f32[2]", "no output of the routine that ran last"]);
    program.run(&traced.look).unwrap();
    said(read(&program, &traced.sum), &["no output of the routine that ran last"]);
    said(program.write(&traced.sum, &[0.0f32; 2]), &["neither an input nor a state"]);
    said(program.write(&traced.x, &[1i32, 2]), &["input \"x\" of f32[2]", "2 numbers of i32"]);
    said(program.write(&traced.x, &[0.0f32; 3]), &["input \"x\" of f32[2]", "3 numbers of f32"]);
    said(program.write_array(&traced.x, &Array::zeros(DType::F32, [1, 2]).unwrap()), &["f32[2]", "f32[1, 2]"]);
    // What was traced or stated after compiling.
    said(program.write(&traced.trace.input("late", DType::F32, []), &[0.0f32]), &["input \"late\"", "compile"]);
    said(read(&program, &(&traced.x * &traced.x)), &["no output of the routine"]);
    said(program.run(&traced.look.clone().output("x", &traced.x)), &["routine \"look\"", "compile it"]);
}

#[test]
fn handles_of_another_trace_are_refused() {
    let (mine, other) = (traced(), traced());
    let mut program = mine.compile(&Cpu::new(1).unwrap());
    program.run(&mine.step).unwrap();
    let refusals = [
        program.write(&other.x, &[0.0f32; 2]),
        program.run(&other.step),
        program.read(&other.sum).map(|_| ()),
        program.read(&other.w).map(|_| ()),
        program.fill(&other.w, |_| Ok(())),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err().to_string();
        assert!(error.contains("another trace") || error.contains("compile it"), "{error}");
    }
    assert_eq!(program.read("sum").unwrap().to_f64(), [1.0, 2.0], "what was refused has changed nothing");
    // A program that goes on with a plan of another trace goes on with that one's handles.
    let routines = [other.look.clone()];
    let plan = other.trace.plan(&Cpu::new(1).unwrap(), &routines, Options::default()).unwrap();
    program.relink(plan).unwrap();
    program.run(&other.look).unwrap();
    assert!(program.read(&other.product).is_ok() && program.read(&mine.product).is_err());
}

#[test]
fn handles_of_other_parts_do_not_panic() {
    let (mine, other) = (traced(), traced());
    let cpu = Cpu::new(1).unwrap();
    let whole = mine.trace.plan(&cpu, &[mine.look.clone(), mine.step.clone()], Options::default()).unwrap();
    let less = other.trace.plan(&cpu, std::slice::from_ref(&other.look), Options::default()).unwrap();
    let mut parts = Parts::clone(&less);
    parts.handles = whole.handles.clone();
    let mut program = Program::link(Plan::new(parts).unwrap(), &cpu).unwrap();
    assert!(program.run(&mine.step).is_err());
    program.run("look").unwrap();
    assert!(program.read(&mine.sum).is_err());
}
