//! Operations that contradict themselves are refused where they enter a trace, with the caller's line; so are those of the
//! list on operands that are not theirs. None of it panics.

use gradus::backend::{Cpu, Reference};
use gradus::ops::{
    AdamW, Argument, Case, Check, Cost, Cut, Differentiation, Effect, Elementwise, Form, Function, Instruction,
    LayerNormGradient, Linearization, Lion, Lowering, Matmul, Numbers, NumbersMut, Operation, Reals, ScalarProgram,
    Sgd, SliceKernel, ViewRule,
};
use gradus::plan::Options;
use gradus::{DType, Error, Layout, Mismatch, Routine, Tensor, TensorType, Trace, gradient, jacobian_vector_product};
use std::any::Any;

/// An operation that gives its operand back, as often as asked for, and says of itself what a test wants.
#[derive(Clone, Debug)]
struct Claim {
    results: usize,
    output_count: usize,
    in_place: Vec<(usize, usize)>,
    effect: Effect,
    accumulates: Vec<usize>,
    form: Claimed,
    lowering: Way,
    /// How many results its meaning has, and how many its gradient goes through.
    meant: usize,
    /// Whether its kernel panics, with something that panics again when it is dropped.
    panics: bool,
}

struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[derive(Clone, Debug)]
enum Claimed {
    Opaque,
    Elementwise(Elementwise),
    Product(Matmul),
    Update(usize),
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Slices,
    View,
    PastItsOperand,
    Identity,
}

impl Claim {
    fn honest() -> Claim {
        Claim {
            results: 1,
            output_count: 1,
            in_place: vec![],
            effect: Effect::Pure,
            accumulates: vec![],
            form: Claimed::Opaque,
            lowering: Way::Slices,
            meant: 1,
            panics: false,
        }
    }
}

impl Operation for Claim {
    fn name(&self) -> &'static str {
        "claim"
    }
    fn attributes(&self) -> String {
        format!("{self:?}")
    }
    fn output_count(&self) -> usize {
        self.output_count
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Ok(vec![inputs[0].clone(); self.results])
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![x[0].clone(); self.meant])
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![x[0].clone(); self.meant])
    }
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(1, inputs, outputs)
    }
    fn in_place(&self) -> Vec<(usize, usize)> {
        self.in_place.clone()
    }
    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        self.effect.clone()
    }
    fn accumulates(&self) -> Vec<usize> {
        self.accumulates.clone()
    }
    fn form(&self) -> Form<'_> {
        match &self.form {
            Claimed::Opaque => Form::Opaque,
            Claimed::Elementwise(program) => Form::Elementwise(program),
            Claimed::Product(product) => Form::Product(product),
            Claimed::Update(gradient) => Form::Update { gradient: *gradient },
        }
    }
    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![inputs[0].clone(); self.meant]
    }
    fn lowering(&self) -> Lowering<'_> {
        match self.lowering {
            Way::Slices => Lowering::Slices(self),
            Way::View | Way::PastItsOperand => Lowering::View(self),
            Way::Identity => Lowering::Identity,
        }
    }
    fn cases() -> Vec<Case> {
        vec![]
    }
}

impl SliceKernel for Claim {
    fn cut(&self, _inputs: &[TensorType]) -> Cut {
        Cut::Whole
    }
    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        if self.panics {
            std::panic::panic_any(PanicsAgain);
        }
        outputs.iter_mut().for_each(|output| output.of::<f32>().copy_from_slice(inputs[0].of()));
    }
}

impl ViewRule for Claim {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        let offset = if let Way::PastItsOperand = self.lowering { usize::MAX - 1 } else { 0 };
        Some(Layout { offset, ..input.clone() })
    }
}

/// A program of one instruction on operands of this type; what is not used of it names an operand that is not there.
fn program(function: Function, operands: usize, ty: &TensorType) -> Elementwise {
    let mut arguments = [Argument::Input(99); 3];
    (0..function.arity()).for_each(|at| arguments[at] = Argument::Input(at.min(operands - 1)));
    let program =
        ScalarProgram { instructions: vec![Instruction { function, arguments }], result: Argument::Result(0) };
    Elementwise { program, input_count: operands, shape: ty.shape.clone(), dtype: ty.dtype }
}

/// A product as it stands in a graph.
fn product(trace: &Trace, x: &Tensor) -> Matmul {
    let node = x.matmul(x).handle().unwrap().node;
    let op = trace.to_graph().nodes()[node].op().unwrap().clone();
    *(op.as_ref() as &dyn Any).downcast_ref().unwrap()
}

#[test]
fn what_contradicts_itself_is_refused_where_it_is_applied() {
    let honest = Claim::honest();
    let (trace, ty) = (Trace::new(), TensorType::new(DType::F32, [3, 3]));
    let product = product(&trace, &trace.input("x", DType::F32, [3, 3]));
    let looks = |input| Effect::Faults(Check::Finite { input, name: "x".to_string() });
    let doubled = program(Function::Add, 1, &ty);
    let other_type = Elementwise { dtype: DType::Bf16, ..doubled.clone() };
    let claims = [
        (Claim { output_count: 2, ..honest.clone() }, "`output_count` says 2"),
        (Claim { output_count: 0, ..honest.clone() }, "`output_count` says 0"),
        (Claim { results: 0, output_count: 0, ..honest.clone() }, "gives 0 results"),
        (Claim { in_place: vec![(0, 1)], ..honest.clone() }, "`in_place` gives (0, 1)"),
        (Claim { in_place: vec![(1, 0)], ..honest.clone() }, "`in_place` gives (1, 0)"),
        (Claim { effect: looks(1), ..honest.clone() }, "`effect` looks at operand 1"),
        (Claim { accumulates: vec![1], ..honest.clone() }, "`accumulates` gives [1]"),
        (Claim { accumulates: vec![0, 0], ..honest.clone() }, "`accumulates` gives [0, 0]"),
        (Claim { form: Claimed::Update(1), ..honest.clone() }, "`form` names operand 1"),
        (Claim { form: Claimed::Product(product), ..honest.clone() }, "it is matmul"),
        (Claim { form: Claimed::Elementwise(program(Function::Add, 2, &ty)), ..honest.clone() }, "it is elementwise"),
        (Claim { form: Claimed::Elementwise(other_type), ..honest.clone() }, "it is elementwise"),
        (Claim { form: Claimed::Elementwise(doubled.clone()), results: 2, output_count: 2, ..honest.clone() }, "other"),
        (Claim { form: Claimed::Elementwise(doubled), effect: looks(0), ..honest.clone() }, "it is elementwise"),
        (Claim { lowering: Way::View, effect: looks(0), ..honest.clone() }, "no computation"),
        (Claim { lowering: Way::Identity, effect: looks(0), ..honest.clone() }, "no computation"),
        (Claim { lowering: Way::PastItsOperand, ..honest.clone() }, "reach past"),
        (Claim { lowering: Way::Identity, results: 2, output_count: 2, ..honest.clone() }, "operands for results"),
    ];
    for (claim, words) in claims {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [3, 3]);
        let line = line!() + 1;
        let y = trace.apply_one(claim, &[&x]);
        let error = y.handle().expect_err(words).to_string();
        assert!(error.contains(&format!("lying_operations.rs:{line}")) && error.contains(words), "{error}");
    }
    for lowering in [Way::Slices, Way::View, Way::Identity] {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [3, 3]);
        trace.apply_one(Claim { lowering, ..honest.clone() }, &[&x]).handle().unwrap();
    }
}

#[test]
fn operations_of_the_list_count_their_operands() {
    for count in [0, 1, 2, 3, 4, 6, 8] {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [3, 3]);
        let product = product(&trace, &x);
        let apply = |build: &dyn Fn(&Trace, &[&Tensor]) -> Tensor| {
            let trace = Trace::new();
            let x = trace.input("x", DType::F32, [3, 3]);
            build(&trace, &vec![&x; count]).handle().err().map(|error| error.to_string())
        };
        let wrong = [
            apply(&|trace, x| trace.apply_one(Sgd::default(), x)),
            apply(&|trace, x| trace.apply_one(AdamW::default(), x)),
            apply(&|trace, x| trace.apply_one(Lion::default(), x)),
            apply(&|trace, x| trace.apply_one(LayerNormGradient::default(), x)),
            apply(&move |trace, x| trace.apply_one(product, x)).or((count == 2).then(|| "takes 2".to_string())),
        ];
        for error in wrong {
            let error = error.expect("other operands are refused");
            assert!(error.contains("takes") && (count == 2 || error.contains("lying_operations.rs")), "{error}");
        }
    }
}

#[test]
fn what_a_gradient_goes_through_must_give_the_results() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let line = line!() + 1;
    let y = trace.apply_one(Claim { meant: 2, ..Claim::honest() }, &[&x]);
    let error = gradient(&y, &[&x]).unwrap_err().to_string();
    let words = "goes through gives 2 tensors for 1 results";
    assert!(error.contains(&format!("lying_operations.rs:{line}")) && error.contains(words), "{error}");
}

#[test]
fn what_a_tangent_goes_through_must_give_the_results() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let line = line!() + 1;
    let y = trace.apply_one(Claim { meant: 2, ..Claim::honest() }, &[&x]);
    let error = jacobian_vector_product(&[&y], &[&x], &[&x]).unwrap_err().to_string();
    let words = "goes through gives 2 tensors for 1 results";
    assert!(error.contains(&format!("lying_operations.rs:{line}")) && error.contains(words), "{error}");
}

#[test]
fn a_meaning_with_fewer_results_is_an_error_of_the_replay() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let line = line!() + 1;
    let y = trace.apply(Claim { results: 2, output_count: 2, ..Claim::honest() }, &[&x]);
    let mut program = trace.compile(&Reference, &[Routine::new("r").output("y", &y[1])]).unwrap();
    let error = program.run("r").unwrap_err().to_string();
    assert!(error.contains(&format!("lying_operations.rs:{line}")) && error.contains("`reference` gives"), "{error}");
}

#[test]
fn arguments_that_are_not_used_may_name_anything() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let y = trace.apply_one(program(Function::Neg, 1, &x.ty()), &[&x.exp()]);
    let routine = Routine::new("r").output("y", &(y * 2.0));
    let mut results = vec![];
    for backend in [&Cpu::new(1).unwrap() as &dyn gradus::backend::Backend, &Reference] {
        let mut program = trace.compile(backend, std::slice::from_ref(&routine)).unwrap();
        program.write("x", &[0.0f32; 3]).unwrap();
        program.run("r").unwrap();
        results.extend(program.read("y").unwrap().to_f64());
    }
    assert_eq!(results, [-2.0; 6]);
}

/// A routine that keeps what a claim makes of an input, and does nothing else.
fn keeping(claim: Claim) -> (Trace, Routine) {
    let trace = Trace::new();
    let kept = trace.zero_state("kept", DType::F32, [3]);
    let y = trace.apply_one(claim, &[&trace.input("x", DType::F32, [3])]);
    (trace, Routine::new("r").assign(&kept, &y))
}

#[test]
fn a_plan_that_is_refused_for_its_kernels_leaves_the_program_as_it_was() {
    let cpu = Cpu::new(1).unwrap();
    let (trace, routine) = keeping(Claim::honest());
    let mut program = trace.compile(&cpu, &[routine]).unwrap();
    program.write("x", &[1f32, 2.0, 3.0]).unwrap();
    // Another machine asks nothing of kernels.
    let looks = Effect::Faults(Check::Finite { input: 0, name: "x".to_string() });
    for claim in [Claim { in_place: vec![(0, 0)], ..Claim::honest() }, Claim { effect: looks, ..Claim::honest() }] {
        let (trace, routine) = keeping(claim);
        let plan = trace.plan(&Reference, &[routine], Options::default()).unwrap();
        let error = program.relink(plan).unwrap_err().to_string();
        assert!(error.contains("lying_operations.rs") && error.contains("a kernel on slices"), "{error}");
    }
    program.run("r").unwrap();
    assert_eq!(program.read("kept").unwrap().to_f64(), [1.0, 2.0, 3.0]);
    let other = Trace::new();
    let w = other.zero_state("w", DType::F32, [3]);
    let plan = other.plan(&cpu, &[Routine::new("r").assign(&w, &(&w + 1.0))], Options::default()).unwrap();
    let line = line!() + 1;
    let error = program.relink(plan).unwrap_err().to_string();
    assert!(error.contains(&format!("lying_operations.rs:{line}")) && error.contains("other states"), "{error}");
}

#[test]
fn nothing_goes_on_from_states_that_a_panic_left_half_written() {
    let cpu = Cpu::new(2).unwrap();
    let (trace, routine) = keeping(Claim { panics: true, ..Claim::honest() });
    let mut program = trace.compile(&cpu, &[routine]).unwrap();
    assert!(matches!(program.run("r"), Err(Error::Panicked { .. })));
    let (trace, routine) = keeping(Claim::honest());
    let plan = trace.plan(&cpu, &[routine], Options::default()).unwrap();
    assert!(matches!(program.relink(plan), Err(Error::Unlinked)));
    assert!(matches!(program.run("r"), Err(Error::Unlinked)));
}
