//! Operations that are not of the list: kernels on slices cannot reach past their memory whatever they say of themselves,
//! functions and gradients of one's own hold, and parts are made again where that is asked for.

use gradus::backend::{Backend, Cpu, In, Job, Out, Reference};
use gradus::ops::{
    Case, Check, Cost, CudaLinker, Cut, Differentiation, Effect, Form, Kernels, Linearization, Linker, Lowering,
    Numbers, NumbersMut, Operation, Reals, SliceKernel, Trusted, Unsupported, ViewRule,
};
use gradus::plan::{Options, Recompute};
use gradus::{
    Array, DType, Error, GradientTape, Layout, Mismatch, Program, Routine, Tensor, TensorType, Trace, custom_gradient,
    gradient, jacobian_vector_product,
};
use std::sync::Arc;

/// An operation that says of itself what a test wants: each row plus a number, by a kernel on slices.
#[derive(Clone, Debug)]
struct Probe {
    added: f64,
    cut: Cut,
    in_place: Vec<(usize, usize)>,
    effect: Effect,
    panics: bool,
    gradient: Wrong,
    lowering: Way,
}

#[derive(Clone, Debug, PartialEq)]
enum Wrong {
    Nothing,
    Shape,
    Count,
}

#[derive(Clone, Debug)]
enum Way {
    Slices,
    PastItsOperand,
    LentKernels(Arc<dyn Operation>),
}

impl Probe {
    fn new() -> Probe {
        Probe {
            added: 1.5,
            cut: Cut::Rows(vec![0]),
            in_place: vec![],
            effect: Effect::Pure,
            panics: false,
            gradient: Wrong::Nothing,
            lowering: Way::Slices,
        }
    }
}

macro_rules! plain_operation {
    () => {
        fn name(&self) -> &'static str {
            "probe"
        }
        fn output_count(&self) -> usize {
            1
        }
        fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
            Cost::per_element(1, inputs, outputs)
        }
        fn form(&self) -> Form<'_> {
            Form::Opaque
        }
    };
}

impl Operation for Probe {
    plain_operation!();

    fn accumulates(&self) -> Vec<usize> {
        vec![0]
    }

    fn attributes(&self) -> String {
        self.added.to_string()
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        match inputs[0].dtype {
            DType::F32 => Ok(vec![inputs[0].clone()]),
            other => Err(Mismatch::DType(format!("takes f32, not {other}; cast first"))),
        }
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        match self.gradient {
            Wrong::Nothing => vec![Some(at.gradient(0))],
            Wrong::Shape => vec![Some(at.gradient(0).sum_all())],
            Wrong::Count => vec![],
        }
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        match self.gradient {
            Wrong::Nothing => vec![at.tangent(0).cloned()],
            Wrong::Shape => vec![at.tangent(0).map(Tensor::sum_all)],
            Wrong::Count => vec![],
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        self.in_place.clone()
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        self.effect.clone()
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![Reals::new(&inputs[0].shape, inputs[0].data.iter().map(|x| x + self.added).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        match &self.lowering {
            Way::Slices => Lowering::Slices(self),
            Way::PastItsOperand => Lowering::View(self),
            Way::LentKernels(product) => product.lowering(),
        }
    }

    fn cases() -> Vec<Case> {
        let on = |probe: Probe| move |x: &[Tensor]| vec![x[0].trace().apply_one(probe.clone(), &[&x[0]])];
        vec![
            Case::new("rows", &[&[5, 3]], on(Probe::new())),
            Case::new("many rows", &[&[301, 130]], on(Probe::new())),
            Case::new("long rows", &[&[2, 40_001]], on(Probe::new())),
            Case::new("whole", &[&[7, 3]], on(Probe { cut: Cut::Whole, ..Probe::new() })),
            Case::new("one number", &[&[]], on(Probe { cut: Cut::Whole, ..Probe::new() })),
            Case::new("no rows", &[&[0, 4]], on(Probe::new())),
        ]
    }
}

impl SliceKernel for Probe {
    fn cut(&self, _inputs: &[TensorType]) -> Cut {
        self.cut.clone()
    }

    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        assert!(!self.panics, "a probe that panics");
        let (x, y) = (inputs[0].of::<f32>(), outputs[0].of::<f32>());
        assert_eq!(x.len(), y.len());
        x.iter().zip(y).for_each(|(x, y)| *y = x + self.added as f32);
    }
}

impl ViewRule for Probe {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        Some(Layout { offset: if input.is_dense() { 0 } else { 1000 }, ..input.clone() })
    }
}

/// As [`Probe`] in name and text, and another function.
#[derive(Debug)]
struct Twin(Probe);

impl Operation for Twin {
    plain_operation!();

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        self.0.outputs(inputs)
    }
    fn gradient(&self, _at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn tangent(&self, _at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }
    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }
    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![inputs[0].clone()]
    }
    fn lowering(&self) -> Lowering<'_> {
        Lowering::Slices(self)
    }
    fn cases() -> Vec<Case> {
        vec![]
    }
}

impl SliceKernel for Twin {
    fn cut(&self, _inputs: &[TensorType]) -> Cut {
        Cut::Whole
    }
    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        outputs[0].of::<f32>().copy_from_slice(inputs[0].of());
    }
}

/// The operand times a number, by a job over pointers, which may lie over the operand; or added to earlier sums. What the
/// number is shows in the type alone.
#[derive(Debug)]
struct Times<const FACTOR: u8>;

struct TimesJob {
    x: In<f32>,
    y: Out<f32>,
    factor: f32,
    accumulates: bool,
}

const PART: usize = 1000;

impl Job for TimesJob {
    fn parts(&self) -> usize {
        self.y.len().div_ceil(PART)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        for at in part * PART..((part + 1) * PART).min(self.y.len()) {
            // SAFETY: both have as many elements; a part reads and writes its own, one at a time, so that they may be one.
            unsafe {
                let x = self.x.slice(at..at + 1)[0];
                let y = &mut self.y.slice(at..at + 1)[0];
                *y = self.factor * x + if self.accumulates { *y } else { 0.0 };
            }
        }
    }
}

// SAFETY: operand and result have the same shape by the rule, and are dense; see the job.
unsafe impl<const FACTOR: u8> Trusted for Times<FACTOR> {}

impl<const FACTOR: u8> Kernels for Times<FACTOR> {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0).read(), linker.output(0).write());
        linker.job(TimesJob { x, y, factor: FACTOR as f32, accumulates: linker.accumulates(0) });
        Ok(())
    }

    // For the CPU alone.
    fn cuda(&self, _linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        Err(Unsupported(DType::F32))
    }
}

impl<const FACTOR: u8> Operation for Times<FACTOR> {
    plain_operation!();

    fn accumulates(&self) -> Vec<usize> {
        vec![0]
    }

    fn attributes(&self) -> String {
        String::new()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Probe::new().outputs(inputs)
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0) * FACTOR as f32)]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent * FACTOR as f32)]
    }
    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }
    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![Reals::new(&inputs[0].shape, inputs[0].data.iter().map(|x| FACTOR as f64 * x).collect())]
    }
    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }
    fn cases() -> Vec<Case> {
        let shapes: [&[usize]; 4] = [&[], &[0, 3], &[7, 5], &[5, 1300]];
        let times = |x: &[Tensor]| vec![x[0].trace().apply_one(Times::<FACTOR>, &[&x[0]])];
        shapes.map(|shape| Case::new(&format!("{shape:?}"), &[shape], times)).into()
    }
}

/// A program that applies a probe to a product, in between two others, and assigns a state.
fn compiled(probe: Probe, threads: usize) -> gradus::Result<Program> {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [64, 600]);
    let w = trace.zero_state("w", DType::F32, [64, 600]);
    let y = trace.apply_one(probe, &[&(&x * 2.0)]);
    let routine = Routine::new("r").output("y", &(&y * 3.0)).assign(&w, &(&w + &y));
    trace.compile(&Cpu::new(threads)?, &[routine])
}

#[test]
fn a_kernel_on_slices_is_tested_as_those_of_the_list() {
    gradus::testing::check_operation::<Probe>();
}

#[test]
fn jobs_over_pointers_are_tested_as_those_of_the_list() {
    gradus::testing::check_operation::<Times<2>>();
}

#[test]
fn a_panic_in_a_kernel_is_an_error_and_ends_the_program() {
    for threads in [1, 3] {
        let mut program = compiled(Probe { panics: true, ..Probe::new() }, threads).unwrap();
        let error = program.run("r").unwrap_err().to_string();
        assert!(error.contains("own_operations.rs") && error.contains("a probe that panics"), "{error}");
        assert!(matches!(program.run("r"), Err(Error::Unlinked)));
        // The pool goes on.
        let mut program = compiled(Probe::new(), threads).unwrap();
        program.run("r").unwrap();
        assert_eq!(program.read("y").unwrap().to_f64(), vec![4.5; 64 * 600]);
    }
}

#[test]
fn what_a_kernel_on_slices_cannot_do_is_refused() {
    let refused = [
        (Probe { in_place: vec![(0, 0)], ..Probe::new() }, "does not write over its operands"),
        (
            Probe { effect: Effect::Faults(Check::Finite { input: 0, name: "x".into() }), ..Probe::new() },
            "raise a fault",
        ),
        (Probe { cut: Cut::Rows(vec![3]), ..Probe::new() }, "cut by the rows of operands [3]"),
    ];
    for (probe, words) in refused {
        let error = compiled(probe, 1).err().expect(words).to_string();
        assert!(error.contains("own_operations.rs") && error.contains(words), "{error}");
    }
}

/// The rule holds for operands that lie densely, as far as the trace can see.
#[test]
#[should_panic(expected = "wrong plan")]
fn a_view_past_its_operand_makes_no_plan() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [4, 6]).transpose(0, 1);
    let y = trace.apply_one(Probe { lowering: Way::PastItsOperand, ..Probe::new() }, &[&x]);
    let _ = trace.compile(&Cpu::new(1).unwrap(), &[Routine::new("r").output("y", &(y * 2.0))]);
}

#[test]
fn kernels_of_another_operation_are_not_lent() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [1000, 1000]);
    let product = x.matmul(&x).handle().unwrap().node;
    let product = trace.to_graph().nodes()[product].op().unwrap().clone();
    let error = compiled(Probe { lowering: Way::LentKernels(product), ..Probe::new() }, 1).err().unwrap().to_string();
    assert!(error.contains("own_operations.rs") && error.contains("kernels that are not its own"), "{error}");
}

#[test]
fn operations_of_two_types_are_two_whatever_they_are_called() {
    for backend in [&Cpu::new(1).unwrap() as &dyn Backend, &Reference] {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [3]);
        let probe = trace.apply_one(Probe::new(), &[&x]);
        let twin = trace.apply_one(Twin(Probe { cut: Cut::Whole, ..Probe::new() }), &[&x]);
        let same = trace.apply_one(Probe::new(), &[&x]);
        let routine = Routine::new("r").output("all", &Tensor::concat(&[&probe, &twin, &same], 0));
        let mut program = trace.compile(backend, &[routine]).unwrap();
        program.run("r").unwrap();
        assert_eq!(program.read("all").unwrap().to_f64(), [1.5, 1.5, 1.5, 0.0, 0.0, 0.0, 1.5, 1.5, 1.5]);
        let steps = &program.plan().routines[0].steps;
        assert_eq!(steps.iter().filter(|step| step.op.name() == "probe").count(), 2, "{}", program.plan());
    }
}

#[test]
fn what_a_gradient_rule_gives_is_checked() {
    for (wrong, words) in
        [(Wrong::Shape, "gives f32[] for operand 0, which is f32[2]"), (Wrong::Count, "0 tensors for 1 operands")]
    {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2]);
        let y = trace.apply_one(Probe { gradient: wrong, ..Probe::new() }, &[&x]);
        let line = line!() - 1;
        let error = gradient(&y, &[&x]).unwrap_err().to_string();
        assert!(error.contains(&format!("own_operations.rs:{line}")) && error.contains(words), "{error}");
    }
}

#[test]
fn what_a_tangent_rule_gives_is_checked() {
    for (wrong, words) in
        [(Wrong::Shape, "gives f32[] for result 0, which is f32[2]"), (Wrong::Count, "0 tensors for 1 results")]
    {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2]);
        let y = trace.apply_one(Probe { gradient: wrong, ..Probe::new() }, &[&x]);
        let line = line!() - 1;
        let error = jacobian_vector_product(&[&y], &[&x], &[&x]).unwrap_err().to_string();
        assert!(error.contains(&format!("own_operations.rs:{line}")) && error.contains(words), "{error}");
    }
}

#[test]
fn sums_are_not_taken_to_go_on_in_kernels_from_outside() {
    // The probe claims that its result is a sum which can go on; its kernel knows nothing of that.
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [2]);
    let sum = trace.state("sum", Array::new([2], &[10.0f32, 20.0]).unwrap());
    let term = trace.apply_one(Probe::new(), &[&x]);
    let next = gradus::ops::accumulated(&[&sum], &[&term]).remove(0);
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[Routine::new("r").assign(&sum, &next)]).unwrap();
    program.run("r").unwrap();
    assert_eq!(program.read("sum").unwrap().to_f64(), [11.5, 21.5]);
}

/// Two that go on from the same sums, and of which only the types inside tell which is which. A result that goes on begins
/// with the earlier sum, and so does not lie over its operand.
#[test]
fn sums_that_go_on_are_told_apart_by_the_type_of_their_operation() {
    for backend in [&Cpu::new(1).unwrap() as &dyn Backend, &Reference] {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2]);
        let sum = trace.state("sum", Array::new([2], &[10.0f32, 20.0]).unwrap());
        let [once, more] = [&x * 1.5, &x * 2.5];
        let terms = [
            trace.apply_one(Times::<2>, &[&once]),
            trace.apply_one(Times::<3>, &[&once]),
            trace.apply_one(Times::<3>, &[&more]),
        ];
        let sums: Vec<Tensor> = terms.iter().map(|term| gradus::ops::accumulated(&[&sum], &[term]).remove(0)).collect();
        let all = Tensor::concat(&sums.iter().collect::<Vec<_>>(), 0);
        let mut program = trace.compile(backend, &[Routine::new("r").output("all", &all)]).unwrap();
        program.write(&x, &[2f32, 4.0]).unwrap();
        program.run("r").unwrap();
        assert_eq!(program.read("all").unwrap().to_f64(), [16.0, 32.0, 19.0, 38.0, 25.0, 50.0]);
    }
}

#[test]
fn an_own_gradient_takes_the_place_of_the_true_one_at_every_order() {
    let tape = GradientTape::on(Reference);
    let x = tape.watch(Array::new([2], &[0.5f64, -2.0]).unwrap());
    // The cube, said to have the slope y x: so its slope's slope, by the same rule, is y x x + y.
    let y =
        custom_gradient(&[&x], |x| vec![&x[0] * &x[0] * &x[0]], |x, y, g| vec![Some(&g[0] * &y[0] * &x[0])]).remove(0);
    let slope = tape.gradient(&y, &[&x]).unwrap().remove(0);
    let bend = tape.gradient(&slope, &[&x]).unwrap().remove(0);
    let read = tape.read_all(&[&y, &slope, &bend]).unwrap();
    let exact = |of: fn(f64, f64) -> f64| [0.5f64, -2.0].map(|x| of(x, x * x * x)).to_vec();
    assert_eq!(read[0].to_f64(), exact(|_, y| y));
    assert_eq!(read[1].to_f64(), exact(|x, y| y * x));
    assert_eq!(read[2].to_f64(), exact(|x, y| y * x * x + y));
}

#[test]
fn an_own_gradient_need_not_be_one_and_says_what_is_wrong() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::new([3], &[1.0f32, 2.0, 3.0]).unwrap());
    let w = tape.watch(Array::new([3], &[2.0f32, 2.0, 2.0]).unwrap());
    // Gradients that are clipped on their way back; what forward uses besides its operands has none.
    let clip = |_: &[Tensor], _: &[Tensor], g: &[Tensor]| vec![Some(g[0].clamp(-1.0, 1.0))];
    let y = custom_gradient(&[&x], |x| vec![&x[0] * &w], clip).remove(0);
    let slope = tape.gradient(&(&y * &y), &[&x]).unwrap().remove(0);
    assert_eq!(tape.read(&slope).unwrap().to_f64(), [1.0, 1.0, 1.0]);
    assert!(matches!(tape.gradient(&y, &[&w]), Err(Error::NoGradient { .. })));
    let wrong = custom_gradient(&[&x], |x| vec![x[0].clone()], |_, _, _| vec![]).remove(0);
    let line = line!() - 1;
    let error = tape.gradient(&wrong, &[&x]).unwrap_err().to_string();
    assert!(
        error.contains(&format!("own_operations.rs:{line}")) && error.contains("0 tensors for 1 operands"),
        "{error}"
    );
    // Operands are counted as the caller gave them, without the results.
    let tape = GradientTape::new().unwrap();
    let [x, w] = [(); 2].map(|()| tape.watch(Array::new([3], &[1.0f32, 2.0, 3.0]).unwrap()));
    let rule = |_: &[Tensor], _: &[Tensor], g: &[Tensor]| vec![None, Some(g[0].sum_all())];
    let wrong = custom_gradient(&[&x, &w], |x| vec![&x[0] * &x[1]], rule).remove(0);
    let line = line!() - 1;
    let error = tape.gradient(&wrong, &[&w]).unwrap_err().to_string();
    let words = "gives f32[] for operand 1, which is f32[3]";
    assert!(error.contains(&format!("own_operations.rs:{line}")) && error.contains(words), "{error}");
    let nothing = Trace::new();
    assert!(custom_gradient(&[&nothing.input("x", DType::F32, [])], |_| vec![], |_, _, _| vec![]).is_empty());
    assert!(nothing.check().unwrap_err().to_string().contains("0 results"));
}

#[test]
fn an_own_elementwise_function_takes_any_operands_that_broadcast() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::new([2, 1], &[1.0f32, 2.0]).unwrap());
    let y = tape.watch(Array::new([3], &[1.0f32, 2.0, 3.0]).unwrap());
    let z = Tensor::elementwise([&x, &y], |[x, y]| 2.0 * x * x - y / 4.0 + x.less(y).select(y, x));
    let slope = tape.gradient(&z, &[&x]).unwrap().remove(0);
    let read = tape.read_all(&[&z, &slope]).unwrap();
    assert_eq!(read[0].to_f64(), [2.75, 3.5, 4.25, 9.75, 9.5, 10.25]);
    // 4 x for each of three columns, and 1 where x is chosen.
    assert_eq!(read[1].to_f64(), [13.0, 26.0]);
    let constant = Tensor::elementwise([&x], |[x]| x.constant(7.0));
    assert_eq!(tape.read(&constant).unwrap().to_f64(), [7.0, 7.0]);
    let error = tape.read(&Tensor::elementwise([&x, &tape.watch(Array::scalar(1i32))], |[x, y]| x + y));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("own_operations.rs") && error.contains("i32"), "{error}");
}

/// Layers of which some are made again: the weights after a step, the bytes of transients, and how many steps occur twice.
fn trained(checkpointed: bool, options: Options) -> (Array, usize, usize) {
    let trace = Trace::new();
    let w = trace.state("w", Array::from_f64(TensorType::new(DType::F32, [16, 16]), &numbers(256)).unwrap());
    let mut x = trace.input("x", DType::F32, [512, 16]);
    for _ in 0..6 {
        let layer = || {
            let hidden = x.matmul(&w).tanh();
            (&hidden * hidden.sigmoid()).softmax(-1) * 3.0
        };
        let next = if checkpointed { trace.checkpoint(layer) } else { layer() };
        x = next;
    }
    let loss = x.sum_of_squares(&[0, 1]);
    let slope = gradient(&loss, &[&w]).unwrap().remove(0);
    let step = Routine::new("step").output("loss", &loss).assign(&w, &(&w - slope * 0.1));
    let mut program = trace.compile_with(&Cpu::new(1).unwrap(), &[step], options).unwrap();
    let x = Array::from_f64(TensorType::new(DType::F32, [512, 16]), &numbers(512 * 16)).unwrap();
    program.write_array("x", &x).unwrap();
    program.run("step").unwrap();
    let again = program.plan().routines[0].steps.iter().filter(|step| step.again).count();
    (program.read("w").unwrap(), program.plan().regions.transients, again)
}

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|index| (index * 37 % 101) as f64 / 101.0 - 0.5).collect()
}

#[test]
fn a_checkpointed_part_is_made_again_whatever_the_policy() {
    let (kept, most, none) = trained(false, Options::default());
    assert_eq!(none, 0);
    for recompute in [Recompute::None, Recompute::Auto, Recompute::Selective { operations_per_byte: 1 }] {
        let (remade, least, again) = trained(true, Options { recompute, ..Options::default() });
        assert!(remade.bytes() == kept.bytes(), "{recompute:?}: other bits");
        assert!(again >= 6, "{recompute:?}: {again} steps occur again");
        // What enters each of the six parts is kept, and one part's inside at a time. A policy that evicts what enters
        // them too makes all of them again at once.
        let evicts_more = matches!(recompute, Recompute::Selective { .. });
        assert!(evicts_more || least < most * 2 / 3, "{recompute:?}: {least} bytes of {most}");
    }
    let (plain, _, again) = trained(true, Options { simplify: false, ..Options::default() });
    assert!(plain.bytes() == kept.bytes() && again >= 6);
}

/// A part that reads a state whose new value is there before the gradient is: it is kept, for it could not be made again.
#[test]
fn a_checkpointed_part_that_reads_an_assigned_state_is_kept() {
    let trace = Trace::new();
    let [x, w] = ["x", "w"].map(|name| trace.input(name, DType::F32, [64]));
    let state = trace.state("s", Array::new([64], &[0.5f32; 64]).unwrap());
    let y = trace.checkpoint(|| (&x * &state).exp() * &w);
    let new = &state + 1.0;
    let slope = gradient(&y.sum(&[0]), &[&w]).unwrap().remove(0);
    let routine = Routine::new("r").output("y", &y).output("slope", &slope).assign(&state, &new);
    for recompute in [Recompute::None, Recompute::Auto, Recompute::Selective { operations_per_byte: 1 << 20 }] {
        let options = Options { recompute, ..Options::default() };
        let mut program = trace.compile_with(&Cpu::new(1).unwrap(), std::slice::from_ref(&routine), options).unwrap();
        program.write(&x, &[2f32; 64]).unwrap();
        program.write(&w, &[3f32; 64]).unwrap();
        for turn in 0..2 {
            program.run(&routine).unwrap();
            let expected = (2.0 * (0.5 + turn as f64)).exp();
            let found = program.read(&slope).unwrap().to_f64();
            assert!(found.iter().all(|slope| (slope / expected - 1.0).abs() < 1e-6), "{recompute:?}: {found:?}");
        }
    }
}
