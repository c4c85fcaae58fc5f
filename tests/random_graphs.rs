//! Random graphs: what the planner makes of them computes what the reference says, to the same bits whatever the
//! planner was allowed to do and however many threads there are; and a plan that was tampered with is caught.

mod support;

use gradus::backend::{Backend, Cpu, Reference, evaluate};
use gradus::plan::verify::verify;
use gradus::plan::{BufferKind, Operand, Options, Parts, Plan, Recompute};
use gradus::testing::SecondMachine;
use gradus::{Array, DType, Program, Routine, Tensor, TensorType, Trace, gradient};
use proptest::prelude::*;
use support::numbers::Random;

/// A random computation with states that it assigns.
struct Computation {
    trace: Trace,
    states: Vec<(String, Tensor, Tensor)>,
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Tensor>,
}

/// Rows that every table has, and how many are looked up.
const ROWS: usize = 3;
const IDS: usize = 4;

const SHAPES: [&[usize]; 8] = [&[], &[1], &[5], &[4, 6], &[3, 1, 7], &[2, 3, 4], &[0], &[2, 0, 3]];

const OTHER_OUTPUTS: usize = 3;

impl Computation {
    fn random(seed: u64, size: usize, dtype: DType) -> Computation {
        let mut random = Random::new(seed);
        let trace = Trace::new();
        let mut pool: Vec<Tensor> = vec![];
        let ids = trace.input("ids", DType::I32, [IDS]);
        let (mut inputs, mut leaves) = (vec![], vec![]);
        for index in 0..3 {
            let shape = SHAPES[random.below(SHAPES.len())];
            let name = format!("input{index}");
            inputs.push((name.clone(), trace.input(&name, dtype, shape)));
            let name = format!("state{index}");
            let numbers = numbers(TensorType::new(dtype, shape), &mut random);
            leaves.push((name.clone(), trace.state(&name, numbers)));
        }
        pool.extend(inputs.iter().chain(&leaves).map(|(_, tensor)| tensor.clone()));
        for _ in 0..size {
            let layer = random.below(4);
            let next = trace.in_layer(layer, || random_operation(&pool, &ids, &mut random));
            pool.push(next);
        }
        // Inputs are finite; what is computed of nothing, such as a mean, is not.
        pool.push(inputs[0].1.check_finite("an input").tanh());
        pool.extend(leaves.iter().filter(|(_, leaf)| is_table(leaf)).map(|(_, leaf)| looked_up(leaf, &ids)).take(1));
        let mut outputs: Vec<Tensor> = (0..3).map(|_| pool[random.below(pool.len())].clone()).collect();
        let total = pool.iter().rev().take(4).fold(trace.full(0.0, dtype, []), |sum, tensor| sum + tensor.mean_all());
        outputs.extend(leaves.iter().filter_map(|(_, leaf)| gradient(&total, &[leaf]).ok()).flatten());
        outputs.push(total);
        pool.extend(outputs.iter().cloned());
        let assigned = |(name, state): (String, Tensor)| {
            let fits: Vec<&Tensor> = pool.iter().filter(|tensor| tensor.ty() == state.ty()).collect();
            let value = fits[random.below(fits.len())].clone();
            (name, state, value)
        };
        let states = leaves.into_iter().map(assigned).collect();
        trace.check().unwrap();
        Computation { trace, states, inputs, outputs }
    }

    fn routine(&self) -> Routine {
        let mut routine = Routine::new("step");
        for (index, output) in self.outputs.iter().enumerate() {
            routine = routine.output(&format!("output{index}"), output);
        }
        self.states.iter().fold(routine, |routine, (_, state, value)| routine.assign(state, value))
    }

    /// Another routine over the same states: some of them, inputs and results, given and assigned at random.
    fn other_routine(&self, seed: u64) -> Routine {
        let mut random = Random::new(!seed);
        let of_states = self.states.iter().flat_map(|(_, state, value)| [state, value]);
        let inputs = self.inputs.iter().map(|(_, input)| input);
        let pool: Vec<&Tensor> = self.outputs.iter().chain(of_states).chain(inputs).collect();
        let mut routine = Routine::new("other");
        for index in 0..OTHER_OUTPUTS {
            routine = routine.output(&format!("other{index}"), pool[random.below(pool.len())]);
        }
        for (_, state, _) in self.states.iter().filter(|_| random.below(3) > 0).collect::<Vec<_>>() {
            let fits: Vec<&&Tensor> = pool.iter().filter(|tensor| tensor.ty() == state.ty()).collect();
            routine = routine.assign(state, fits[random.below(fits.len())]);
        }
        routine
    }

    fn routines(&self, seed: u64) -> [Routine; 2] {
        [self.routine(), self.other_routine(seed)]
    }

    /// Replays with new inputs each time and gives everything that can be read.
    fn replayed(&self, mut program: Program, seed: u64) -> Vec<Array> {
        let mut random = Random::new(seed);
        let mut seen = vec![];
        for replay in 0..3 {
            program.write("ids", &ids(replay)).unwrap();
            for (name, input) in &self.inputs {
                let array = numbers(input.ty(), &mut random);
                match input.dtype() {
                    DType::F32 => program.write(name, &array.to_vec::<f32>().unwrap()).unwrap(),
                    _ => program.write(name, &array.to_vec::<gradus_kernels::bf16>().unwrap()).unwrap(),
                }
            }
            program.run("step").unwrap();
            seen.extend((0..self.outputs.len()).map(|index| program.read(&format!("output{index}")).unwrap()));
            seen.extend(self.states.iter().map(|(name, ..)| program.read(name).unwrap()));
            program.run("other").unwrap();
            seen.extend((0..OTHER_OUTPUTS).map(|index| program.read(&format!("other{index}")).unwrap()));
            seen.extend(self.states.iter().map(|(name, ..)| program.read(name).unwrap()));
        }
        seen
    }

    fn states_of(&self, program: &Program) -> Vec<Array> {
        self.states.iter().map(|(name, ..)| program.read(name).unwrap()).collect()
    }
}

/// The rows that a replay looks up.
fn ids(replay: usize) -> [i32; IDS] {
    std::array::from_fn(|index| ((index * 2 + replay) % ROWS) as i32)
}

fn numbers(ty: TensorType, random: &mut Random) -> Array {
    let numbers: Vec<f64> = (0..ty.shape.elements()).map(|_| random.below(257) as f64 / 128.0 - 1.0).collect();
    Array::from_f64(ty, &numbers).unwrap()
}

/// An operation on tensors of the pool that keeps numbers within a few units.
fn random_operation(pool: &[Tensor], ids: &Tensor, random: &mut Random) -> Tensor {
    let x = &pool[random.below(pool.len())];
    let rank = x.shape().rank();
    let axis = random.below(rank) as isize;
    match random.below(26) {
        17.. if is_table(x) => random_layer(x, ids, random),
        14 if rank > 1 => x.tanh().matmul(&(x.tanh() * 0.3).transpose(-1, -2)),
        15 if rank > 1 => x.tanh().transpose(-1, -2).matmul(&(x.tanh() * 0.3)),
        16 if rank > 1 => {
            let product = x.tanh().matmul(&(x.tanh() * 0.3).transpose(-1, -2));
            (&product * 0.5).tanh() + product
        }
        0 => x.tanh(),
        1 => x.sigmoid() - 0.25,
        2 => x.gelu() * 0.75,
        3 => (x * x * -0.5).exp(),
        4..=6 => {
            let joins = |y: &&Tensor| x.shape().broadcast(&y.shape()).is_some();
            let partners: Vec<&Tensor> = pool.iter().filter(joins).collect();
            let y = partners[random.below(partners.len())];
            match random.below(3) {
                0 => x * 0.5 + y * 0.5,
                1 => (x - y).tanh(),
                _ => x.sigmoid() * y,
            }
        }
        7 if rank > 0 => x.mean(&[axis]),
        8 if rank > 1 => x.transpose(axis, -1),
        9 if rank > 0 && x.shape()[axis as usize] > 1 => x.slice_by(axis, 1..x.shape()[axis as usize], 2),
        10 if rank > 1 => x.reshape([x.shape().elements()]),
        11 if rank > 0 => Tensor::concat(&[x, &(x * 0.5)], axis),
        12 if rank > 0 => x.softmax(-1),
        13 if rank > 0 => x.pad(axis, [1, 0], 0.5),
        _ => -x,
    }
}

/// Whether there are rows to look up.
fn is_table(x: &Tensor) -> bool {
    x.shape().rank() > 0 && x.shape().elements() > 0
}

/// Rows of a tensor and of two more that are made of it, so that there are enough.
fn looked_up(x: &Tensor, ids: &Tensor) -> Tensor {
    let (rows, columns) = x.shape().rows_and_columns();
    let table = x.reshape([rows, columns]);
    Tensor::concat(&[&table, &(&table * 0.5), &-&table], 0).embedding(ids)
}

/// What models are made of: operations that are fused, look things up, may fault, or draw random numbers.
fn random_layer(x: &Tensor, ids: &Tensor, random: &mut Random) -> Tensor {
    let (trace, shape) = (x.trace(), x.shape());
    let (rows, columns) = shape.rows_and_columns();
    let table = x.reshape([rows, columns]);
    let numbers = |shape: &[usize], random: &mut Random| {
        trace.constant(numbers(TensorType::new(DType::F32, shape), random)).cast(x.dtype())
    };
    let integers = |shape: &[usize], bound: usize, random: &mut Random| {
        let numbers: Vec<f64> = (0..shape.iter().product()).map(|_| random.below(bound) as f64).collect();
        trace.constant(Array::from_f64(TensorType::new(DType::I32, shape), &numbers).unwrap())
    };
    match random.below(9) {
        0 => x.layer_norm(&numbers(&[columns], random), &numbers(&[columns], random), 0.1),
        1 => x.rms_norm(&numbers(&[columns], random), 0.1),
        2 => looked_up(x, ids),
        3 => {
            let mut picked = shape.to_vec();
            let axis = random.below(picked.len());
            let size = std::mem::replace(&mut picked[axis], 3);
            let index = integers(&picked, size, random);
            let gathered = x.gather(axis as isize, &index);
            (x * 0.5).scatter_add(axis as isize, &index, &(gathered * 0.2))
        }
        4 => {
            let heads = table.tanh().reshape([1, 1, rows, columns]);
            heads.attention(&(&heads * 0.5), &heads.sigmoid(), random.below(2) == 0).reshape(&shape)
        }
        5 => table.cross_entropy_rows(&integers(&[rows], columns, random), Some(0)).cast(x.dtype()) * 0.25,
        6 => {
            let losses = table.tanh().linear_cross_entropy_rows(&table, &integers(&[rows], rows, random), None);
            losses.cast(x.dtype()) * 0.25
        }
        7 => x.dropout(0.25, &trace.constant(key(random)), random.below(3) as u32) * 0.75,
        _ => {
            let product = table.tanh().linear(&numbers(&[columns, 4], random), Some(&numbers(&[4], random)));
            product.gelu() * 0.2
        }
    }
}

/// Two words that make the mask of a dropout.
fn key(random: &mut Random) -> Array {
    let words = [random.below(100) as f64, random.below(100) as f64];
    Array::from_f64(TensorType::new(DType::U32, [2]), &words).unwrap()
}

fn every_option() -> Vec<Options> {
    let bit = |number: u32, place: u32| number >> place & 1 == 1;
    let recompute = |again: bool| if again { Recompute::Block { every: 1 } } else { Recompute::None };
    let option = |n| Options {
        simplify: bit(n, 0),
        in_place: bit(n, 1),
        reorder: bit(n, 2),
        share: bit(n, 3),
        recompute: recompute(bit(n, 4)),
    };
    (0..32).map(option).collect()
}

/// NaN, as the mean of nothing is, is close to NaN.
fn close(computed: &Array, wanted: &[f64], tolerance: f64) -> bool {
    let scale = wanted.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
    computed
        .to_f64()
        .iter()
        .zip(wanted)
        .all(|(a, b)| a == b || (a - b).abs() <= tolerance * scale || (a.is_nan() && b.is_nan()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn planned_equals_reference(seed in any::<u64>(), size in 1usize..40) {
        let computation = Computation::random(seed, size, DType::F32);
        let reference = computation.trace.compile(&Reference, &computation.routines(seed)).unwrap();
        let wanted = computation.replayed(reference, seed);
        let mut computed = vec![];
        for backend in [&SecondMachine as &dyn Backend, &Cpu::new(1).unwrap()] {
            let program = computation.trace.compile(backend, &computation.routines(seed)).unwrap();
            computed = computation.replayed(program, seed);
            for (index, (computed, wanted)) in computed.iter().zip(&wanted).enumerate() {
                let name = backend.name();
                prop_assert!(close(computed, &wanted.to_f64(), 2e-5), "{name}, value {index}: {computed:?} {wanted:?}");
            }
        }
        // The first replay once more, straight from the graph, with no plan between.
        let handles: Vec<_> = computation.outputs.iter().map(|output| output.handle().unwrap()).collect();
        let mut random = Random::new(seed);
        let feeds: Vec<_> = computation
            .inputs
            .iter()
            .map(|(_, input)| (input.handle().unwrap().node, numbers(input.ty(), &mut random).to_f64()))
            .collect();
        let graph = computation.trace.to_graph();
        let direct = evaluate(&graph, &handles, |node| {
            let first_ids = || (graph.nodes()[node].label() == "input \"ids\"").then(|| ids(0).map(f64::from).to_vec());
            feeds.iter().find(|feed| feed.0 == node).map(|feed| feed.1.clone()).or_else(first_ids)
        });
        for (computed, direct) in computed.iter().zip(&direct) {
            prop_assert!(close(computed, &direct.data, 2e-5));
        }
    }

    #[test]
    fn every_plan_gives_the_same_bits(seed in any::<u64>(), size in 1usize..40, half in any::<bool>()) {
        let computation = Computation::random(seed, size, if half { DType::Bf16 } else { DType::F32 });
        let cpu = Cpu::new(1).unwrap();
        let mut expected: Option<Vec<Array>> = None;
        for options in every_option() {
            let program = computation.trace.compile_with(&cpu, &computation.routines(seed), options).unwrap();
            verify(program.plan()).unwrap();
            let computed = computation.replayed(program, seed);
            let expected = expected.get_or_insert_with(|| computed.clone());
            let same = computed.iter().zip(expected.iter()).all(|(a, b)| a.bytes() == b.bytes());
            prop_assert!(same, "other bits with {options:?}");
        }
    }

    /// Whatever is computed again, and however little memory there is: the plan keeps the limit, more memory never
    /// takes more time, and the bits are the same.
    #[test]
    fn every_budget_is_kept_with_the_same_bits(seed in any::<u64>(), size in 1usize..40, share in 0.0f64..1.0) {
        let computation = Computation::random(seed, size, DType::F32);
        for backend in [&SecondMachine as &dyn Backend, &Cpu::new(1).unwrap()] {
            every_budget_is_kept(&computation, seed, share, backend)?;
        }
    }

    /// Moves results onto bytes that are still needed, and drops, swaps and redirects steps: all must be caught.
    #[test]
    fn a_corrupted_plan_is_caught(seed in any::<u64>(), size in 8usize..40) {
        let computation = Computation::random(seed, size, DType::F32);
        let plan = computation.trace.plan(&Cpu::new(1).unwrap(), &computation.routines(seed), Options::default()).unwrap();
        prop_assert!(verify(&plan).is_ok());
        for (what, corrupted) in corruptions(&plan) {
            prop_assert!(Plan::new(corrupted.clone()).is_err(), "not caught: {what}\n{corrupted}");
        }
    }
}

/// Plans of every policy and limit on a machine: each keeps its limit and gives the same bits.
fn every_budget_is_kept(
    computation: &Computation,
    seed: u64,
    share: f64,
    backend: &dyn Backend,
) -> Result<(), TestCaseError> {
    let routines = computation.routines(seed);
    let expected = computation.replayed(computation.trace.compile(backend, &routines).unwrap(), seed);
    let mut plans = vec![];
    for recompute in
        [Recompute::Block { every: 1 }, Recompute::Block { every: 2 }, Recompute::Selective { operations_per_byte: 2 }]
    {
        plans.push(computation.trace.plan(backend, &routines, Options { recompute, ..Options::default() }).unwrap());
    }
    let options = Options { recompute: Recompute::Auto, ..Options::default() };
    let planner = computation.trace.planner(backend, &routines, options).unwrap();
    let (smallest, largest) = (planner.plan(0), planner.plan(usize::MAX));
    let [least, most] = [&smallest, &largest].map(|plan| plan.regions.total());
    let limit = least + ((most - least) as f64 * share) as usize;
    let between = planner.plan(limit);
    prop_assert!(between.regions.total() <= limit, "{} of {limit}", between.regions.total());
    let seconds = |plan: &Plan| plan.routines.iter().map(|routine| routine.seconds()).sum::<f64>();
    prop_assert!(seconds(&largest) <= seconds(&between) && seconds(&between) <= seconds(&smallest));
    plans.extend([smallest, between, largest]);
    for plan in plans {
        verify(&plan).unwrap();
        let computed = computation.replayed(Program::link(plan, backend).unwrap(), seed);
        let same = computed.iter().zip(&expected).all(|(a, b)| a.bytes() == b.bytes());
        prop_assert!(same, "other bits within {limit} bytes");
    }
    Ok(())
}

fn corruptions(plan: &Plan) -> Vec<(String, Parts)> {
    let mut corrupted = vec![];
    let steps = &plan.routines[0].steps;
    let mut change = |what: String, by: &dyn Fn(&mut Parts)| {
        let mut copy = Parts::clone(plan);
        by(&mut copy);
        corrupted.push((what, copy));
    };
    let transient = |buffer: usize| matches!(plan.buffers[buffer].kind, BufferKind::Transient);
    for (at, step) in steps.iter().enumerate() {
        let result = step.outputs[0].buffer;
        if plan.buffers[result].bytes() == 0 {
            continue;
        }
        let read_later =
            |buffer: usize| steps[at + 1..].iter().any(|later| later.inputs.iter().any(|i| i.buffer == buffer));
        let is_read = read_later(result) || plan.routines[0].outputs.iter().any(|(_, output)| output.buffer == result);
        // Something that is made before and read after this step.
        for alive in steps[..at].iter().map(|earlier| earlier.outputs[0].buffer) {
            if alive != result && plan.buffers[alive].bytes() > 0 && read_later(alive) {
                let offset = plan.buffers[alive].offset;
                change(format!("step {at} writes over buffer {alive}"), &move |plan| {
                    plan.buffers[result].offset = offset
                });
            }
        }
        change(format!("step {at} writes outside"), &|plan| plan.buffers[result].offset = plan.regions.total());
        change(format!("step {at} writes unaligned"), &|plan| plan.buffers[result].offset += 4);
        if is_read {
            change(format!("step {at} is gone"), &|plan| drop(plan.routines[0].steps.remove(at)));
        }
        let seen = |input: &Operand| transient(input.buffer) && input.layout.shape.elements() > 0;
        if let Some(input) = step.inputs.iter().position(seen) {
            change(format!("step {at} reads past its operand"), &|plan| {
                let buffer = plan.routines[0].steps[at].inputs[input].buffer;
                plan.routines[0].steps[at].inputs[input].layout.offset = plan.buffers[buffer].bytes() + 1;
            });
            let earlier = steps[..at]
                .iter()
                .rposition(|earlier| earlier.outputs.iter().any(|output| output.buffer == step.inputs[input].buffer));
            if let Some(earlier) = earlier.filter(|&earlier| plan.buffers[steps[earlier].outputs[0].buffer].bytes() > 0)
            {
                change(format!("step {at} comes before {earlier}"), &|plan| plan.routines[0].steps.swap(earlier, at));
            }
        }
    }
    corrupted
}

/// A row that is not there stops a replay, with nothing assigned, whatever the planner was allowed to do; the next
/// replay is as good as any.
#[test]
fn a_fault_assigns_nothing_in_every_plan() {
    let faults = |backend: &dyn Backend| (0..24).map(|seed| faults_of_a_seed(seed, backend)).sum::<usize>();
    for backend in [&SecondMachine as &dyn Backend, &Cpu::new(1).unwrap()] {
        assert!(faults(backend) > 200, "faults were tried on {}", backend.name());
    }
}

/// How often a replay of this computation failed.
fn faults_of_a_seed(seed: u64, backend: &dyn Backend) -> usize {
    let mut faults = 0;
    let computation = Computation::random(seed, 20, DType::F32);
    let mut outcomes = vec![];
    for options in every_option() {
        let mut program = computation.trace.compile_with(backend, &[computation.routine()], options).unwrap();
        for (name, input) in &computation.inputs {
            program.write_bytes(name, &vec![0; input.ty().bytes()]).unwrap();
        }
        program.write("ids", &ids(0)).unwrap();
        program.run("step").unwrap();
        let before = computation.states_of(&program);
        program.write("ids", &[0, 1, i32::MAX, 2]).unwrap();
        let outcome = program.run("step").map_err(|error| error.to_string());
        if outcome.is_err() {
            let same = computation.states_of(&program).iter().zip(&before).all(|(a, b)| a.bytes() == b.bytes());
            assert!(same, "seed {seed}: a state was assigned before the fault, with {options:?}");
            faults += 1;
        }
        program.write("ids", &ids(1)).unwrap();
        program.run("step").unwrap();
        outcomes.push((outcome.is_err(), computation.states_of(&program)));
    }
    assert!(outcomes.iter().all(|outcome| outcome.0 == outcomes[0].0), "seed {seed}: a fault in some plans alone");
    // A plan's freedom changes no bit of the CPU's; the reference rounds only what is stored.
    let bits = |states: &[Array]| states.iter().map(|state| state.bytes().to_vec()).collect::<Vec<_>>();
    let exact = backend.name() == "cpu";
    let same = |states: &[Array]| !exact || bits(states) == bits(&outcomes[0].1);
    assert!(outcomes.iter().all(|outcome| same(&outcome.1)), "seed {seed}: other bits");
    faults
}

/// What lies between integers and integers is asked for: a planner that leaves it out gives other numbers.
#[test]
fn a_cast_there_and_back_rounds_whatever_the_planner_may_do() {
    const LARGE: i32 = (1 << 24) + 1;
    for back in [DType::I32, DType::U32] {
        for options in every_option() {
            let trace = Trace::new();
            let x = trace.input("x", DType::I32, [1]);
            let routine = Routine::new("step").output("y", &x.cast(DType::F32).cast(back));
            let mut program = trace.compile_with(&Cpu::new(1).unwrap(), &[routine], options).unwrap();
            program.write("x", &[LARGE]).unwrap();
            program.run("step").unwrap();
            assert_eq!(program.read("y").unwrap().to_f64(), [(1 << 24) as f64], "{back} with {options:?}");
        }
    }
}
