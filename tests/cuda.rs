//! CUDA: every operation linked for a device, its kernels compiled where NVIDIA's compiler is, and run where a device is.

#[path = "cuda/precision.rs"]
mod precision;
#[path = "cuda/ranks.rs"]
mod ranks;

use gradus::backend::{Backend, Cpu, Cuda, GpuKind, Reference, Timing};
use gradus::models::ModelConfig;
use gradus::ops::{self, AttentionOptions, ListedOperation};
use gradus::plan::{Options, PlannedRoutine, Step};
use gradus::testing::{SecondMachine, check_on, plans_for};
use gradus::train::step::StepConfig;
use gradus::{Array, DType, Precision, Program, Routine, Tensor, TensorType, Trace, gradient};
use gradus_cuda::{Command, Product, can_compile, compile};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The operations, or the one that `GRADUS_TEST_OP` names.
fn operations() -> Vec<ListedOperation> {
    let only = std::env::var("GRADUS_TEST_OP").ok();
    ops::all().into_iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.type_name)).collect()
}

/// The sources of all kernels that an operation's cases need, and the function in each.
fn sources(entry: &ListedOperation) -> BTreeMap<String, (&'static str, String)> {
    let cuda = Cuda::of_kind(GpuKind::H200);
    let mut sources = BTreeMap::new();
    for (what, plan) in plans_for(&cuda, entry) {
        let commands = cuda.commands(&plan, 1 << 32).unwrap_or_else(|error| panic!("{what}: {error}"));
        for command in commands.into_iter().flatten().flatten() {
            if let Command::Launch(launch) = command {
                sources.entry(launch.source).or_insert((launch.entry, what.clone()));
            }
        }
    }
    sources
}

#[test]
fn every_operation_is_linked_for_a_device() {
    for entry in operations() {
        sources(&entry);
    }
}

/// The products that a routine of one output takes on a device.
fn products(output: &Tensor) -> Vec<Product> {
    let cuda = Cuda::of_kind(GpuKind::H200);
    let routine = Routine::new("r").output("y", output);
    let plan = output.trace().plan(&cuda, &[routine], Options::default()).unwrap();
    let commands = cuda.commands(&plan, 1 << 32).unwrap().into_iter().flatten().flatten();
    commands.filter_map(|command| if let Command::Product(product) = command { Some(product) } else { None }).collect()
}

#[test]
fn epilogues_are_what_was_traced() {
    let trace = Trace::new();
    let [x, w, r] = ["x", "w", "r"].map(|name| trace.input(name, DType::F32, [16, 16]));
    let rounded = |x: &Tensor| x.cast(DType::Bf16).cast(DType::F32);
    let product = x.matmul(&w);
    assert!(products(&(&product + &r))[0].added.is_some(), "a plain sum is the library's");
    for asked in [rounded(&(&product + &r)), &product + rounded(&r), rounded(&product) + &r] {
        assert!(products(&asked)[0].added.is_none(), "what is to be rounded on the way is rounded");
    }
    let [x, w] =
        [("a", [3, 9, 16].to_vec()), ("b", vec![16, 8])].map(|(name, shape)| trace.input(name, DType::Bf16, shape));
    assert!(products(&x.matmul(&w).gelu()).iter().all(|product| product.gelu.is_some()), "rows of one product");
    let batch = products(&x.slice(1, 1..9).matmul(&w).gelu());
    assert!(batch.iter().all(|product| product.gelu.is_none()), "a batch keeps what GELU is taken of by itself");
}

#[test]
fn what_a_norm_takes_in_is_a_sum_with_another() {
    let trace = Trace::new();
    let [x, other] = ["x", "other"].map(|name| trace.input(name, DType::F32, [3, 8]));
    let [gain, bias] = ["gain", "bias"].map(|name| trace.input(name, DType::F32, [8]));
    let y = x.layer_norm(&gain, &bias, 1e-5);
    let g = gradient(&(&y * &other).sum_all(), &[&x]).unwrap().remove(0);
    let twice = Tensor::elementwise([&g, &other], |[g, _]| g + g);
    let once = Tensor::elementwise([&g, &other], |[g, other]| g + other);
    let numbers: Vec<f32> = (0..24).map(|index| (index as f32 * 0.7).sin()).collect();
    let results = |backend: &dyn Backend, value: &Tensor| {
        let mut program = trace.compile(backend, &[Routine::new("r").output("y", value)]).unwrap();
        [("x", 24), ("other", 24), ("gain", 8), ("bias", 8)].iter().for_each(|&(name, count)| {
            // What a routine does not need, its program does not have.
            let _ = program.write(name, &numbers[..count]);
        });
        program.run("r").unwrap();
        program.read("y").unwrap().to_f64()
    };
    for value in [&twice, &once] {
        let (found, exact) = (results(&SecondMachine, value), results(&Reference, value));
        assert!(found.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} instead of {exact:?}");
    }
}

#[test]
fn a_norm_sums_the_columns_of_the_copy_that_it_makes() {
    let config = StepConfig { precision: Precision::Bf16, ..StepConfig::plain(ModelConfig::gpt2(61, 64, 3, 2, 32), 4) };
    let plan = config.planner(&Cuda::of_kind(GpuKind::H200), Options::default()).unwrap().plan(usize::MAX);
    let steps = plan.routines.iter().find(|routine| routine.name == "step").unwrap().steps.iter();
    let count = |name: &str, attribute: &str| {
        steps.clone().filter(|step| step.op.name() == name && step.op.attributes().contains(attribute)).count()
    };
    // Two products of each layer end in the residual stream; the two others, whose results are 192 and 256 wide, do not.
    assert_eq!((count("layer_norm_gradient", "sums"), count("matmul", "column sums")), (2 * 3, 2 * 3));
}

/// Of a layer, in each routine with a gradient: how many fused products keep what a program makes of them, keep themselves, and sum
/// columns, from earlier sums on or not.
fn fused_products(micro_batch: usize, micro_batches: usize) -> [usize; 3] {
    const LAYERS: usize = 3;
    let plain = StepConfig::plain(ModelConfig::gpt2(61, 128, LAYERS, 2, 32), micro_batch);
    let config = StepConfig { precision: Precision::Bf16, micro_batches, ..plain };
    let plan = config.planner(&Cuda::of_kind(GpuKind::H200), Options::default()).unwrap().plan(usize::MAX);
    let backward = |routine: &&PlannedRoutine| routine.steps.iter().any(|step| step.part.backward);
    let routines: Vec<&PlannedRoutine> = plan.routines.iter().filter(backward).collect();
    let steps = || routines.iter().flat_map(|routine| &routine.steps);
    let is_fused =
        |step: &&Step| [step.op.name(), &step.op.attributes()].iter().any(|text| text.starts_with("fused_matmul"));
    [", kept as ", ", kept,", ", column sums"].map(|attribute| {
        let found = steps().filter(is_fused).filter(|step| step.op.attributes().contains(attribute)).count();
        assert!(found.is_multiple_of(LAYERS * routines.len()), "{attribute}: {found}");
        found / LAYERS / routines.len()
    })
}

#[test]
fn large_products_give_the_slope_of_gelu_and_sum_columns() {
    assert_eq!(fused_products(16, 1), [1, 0, 1]);
    assert_eq!(fused_products(16, 2), [1, 0, 1], "also those that go on from an earlier micro-batch");
    assert_eq!(fused_products(8, 1), [0, 1, 0], "too few rows");
}

#[test]
fn what_is_more_than_a_device_counts_is_refused() {
    let trace = Trace::new();
    let y = trace.input("x", DType::F32, [1 << 31, 2]).softmax(-1);
    let refused = trace.plan(&Cuda::of_kind(GpuKind::H200), &[Routine::new("r").output("y", &y)], Options::default());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("tests/cuda.rs") && error.contains("softmax is cut into 2147483648 blocks"), "{error}");
}

#[test]
fn a_product_without_depth_is_no_product() {
    let trace = Trace::new();
    let (x, w) = (trace.input("x", DType::F32, [4, 0]), trace.input("w", DType::F32, [7, 0]));
    let losses = x.linear_cross_entropy_rows(&w, &trace.input("targets", DType::I32, [4]), None);
    assert_eq!(products(&losses), []);
}

#[test]
#[ignore = "takes NVIDIA's compiler, and minutes: run by bench/cuda"]
fn every_kernel_compiles() {
    can_compile().unwrap();
    for entry in operations() {
        let sources = sources(&entry);
        println!("{}: {} kernels", entry.type_name, sources.len());
        for (source, (entry, what)) in sources {
            compile(entry, &source).unwrap_or_else(|error| panic!("{what}: {error}\n{source}"));
        }
    }
}

/// What an operation's cases came to on a device: nothing, or what was wrong first.
fn on_a_device(cuda: &Cuda, entry: &ListedOperation) -> Option<String> {
    let held = catch_unwind(AssertUnwindSafe(|| check_on(cuda, entry)));
    let message = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "panicked".to_string(),
    };
    held.err().map(message)
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn every_operation_on_a_device_equals_the_reference() {
    let (operations, next, wrong) = (operations(), AtomicUsize::new(0), Mutex::new(vec![]));
    // Most of the time goes to compiling, so several operations are tried at once, each worker on a stream of its own.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cuda = Cuda::new(0).unwrap();
                while let Some(entry) = operations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = on_a_device(&cuda, entry);
                    println!("{:<30} {}", entry.type_name, found.as_deref().unwrap_or("as the reference"));
                    wrong.lock().unwrap().extend(found.map(|_| entry.type_name));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "other numbers than the reference: {wrong:?}");
}

/// An attention [b, h, g, t, d] over a joint projection, whether it is causal, and its window.
type Sizes = ([usize; 5], bool, Option<usize>);

/// The result of an attention and the gradient of the projection, computed in this type, from numbers that all types
/// hold alike.
fn attention(backend: &dyn Backend, dtype: DType, (sizes, causal, window): Sizes) -> Vec<Vec<f64>> {
    let [b, h, g, t, d] = sizes;
    let trace = Trace::new();
    let numbers = |count: usize, step: usize| -> Vec<f64> {
        (0..count).map(|i| ((i * step % 1009) as f64 - 504.0) / 512.0).map(|x| (x * 64.0).round() / 32.0).collect()
    };
    let joint = trace.input("joint", dtype, [b, t, h + 2 * g, d]);
    let weights = trace.input("weights", dtype, [b, h, t, d]);
    let part = |first: usize, heads: usize| joint.slice(2, first..first + heads).permute(&[0, 2, 1, 3]);
    let options = AttentionOptions { causal, window, scale: None };
    let result = part(0, h).attention_with(&part(h, g), &part(h + g, g), options);
    let gradient =
        gradient(&(&result * &weights).cast(DType::F32).sum(&[0, 1, 2, 3]), &[&joint]).unwrap().swap_remove(0);
    let routine = Routine::new("attention").output("result", &result).output("gradient", &gradient);
    let mut program = trace.compile(backend, &[routine]).unwrap();
    // Weights that run as the values do are nearly parallel to the results: what their products have in common cancels in the
    // gradient, and the rounding of the results, many times as large as elsewhere, does not.
    for (name, tensor, step) in [("joint", &joint, 7919), ("weights", &weights, 7027)] {
        let ty = TensorType::new(dtype, tensor.shape());
        let numbers = numbers(ty.shape.elements(), step);
        program.write_array(name, &Array::from_f64(ty, &numbers).unwrap()).unwrap();
    }
    program.run("attention").unwrap();
    ["result", "gradient"].map(|name| program.read(name).unwrap().to_f64()).to_vec()
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn attention_of_models_on_a_device_equals_the_cpu() {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), Cpu::new(2).unwrap());
    let sizes = [
        ([2, 3, 3, 300, 64], true, None),
        ([1, 4, 2, 260, 128], true, None),
        ([1, 4, 1, 400, 64], true, Some(150)),
        ([2, 2, 1, 200, 128], false, None),
        ([2, 2, 2, 129, 80], true, None),
        ([1, 3, 3, 127, 64], true, None),
        ([23, 6, 6, 200, 64], true, Some(70)),
        ([25, 12, 12, 450, 64], true, None),
    ];
    let mut wrong = vec![];
    for (sizes, (dtype, allowed)) in sizes.iter().flat_map(|sizes| {
        [(DType::F32, 2e-5), (DType::Bf16, 1.5e-2), (DType::F16, 2e-3)].map(|of_type| (*sizes, of_type))
    }) {
        let expected = attention(&cpu, DType::F32, sizes);
        let computed = attention(&cuda, dtype, sizes);
        assert_eq!(computed, attention(&cuda, dtype, sizes), "{sizes:?}, {dtype}: the same bits again");
        for (what, (computed, expected)) in ["result", "gradient"].iter().zip(computed.iter().zip(&expected)) {
            let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let error = computed
                .iter()
                .zip(expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0f64, |most, x| if x > most || x.is_nan() { x } else { most });
            let share = error / (allowed * largest);
            let found = format!("{sizes:?}, {dtype}: {what} off by {error:.2e}, {share:.2} of what is allowed");
            println!("{found}");
            wrong.extend((share > 1.0 || share.is_nan()).then_some(found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// GELU of a product, and the gradient of what led to it, from a product too: the weight's, the bias's and what the slope gives.
fn feed_forward(backend: &dyn Backend, dtype: DType, [rows, inner, columns]: [usize; 3]) -> Vec<Vec<f64>> {
    let trace = Trace::new();
    let shapes = [("x", vec![rows, inner]), ("w", vec![inner, columns]), ("b", vec![columns])];
    let [x, w, b] = shapes.clone().map(|(name, shape)| trace.input(name, dtype, shape));
    let further = [("v", vec![columns, inner]), ("g", vec![rows, inner])];
    let [v, g] = further.clone().map(|(name, shape)| trace.input(name, dtype, shape));
    let hidden = x.linear(&w, Some(&b));
    let active = hidden.gelu();
    let loss = (&active.matmul(&v) * &g).cast(DType::F32).sum_all();
    let [hidden, w, b] = <[Tensor; 3]>::try_from(gradient(&loss, &[&hidden, &w, &b]).unwrap()).ok().unwrap();
    let results = [("active", &active), ("hidden", &hidden), ("weight", &w), ("bias", &b)];
    let routine = results.iter().fold(Routine::new("r"), |routine, (name, of)| routine.output(name, of));
    let mut program = trace.compile(backend, &[routine]).unwrap();
    for ((name, shape), prime) in shapes.into_iter().chain(further).zip([7919, 7027, 6007, 5003, 4001]) {
        let ty = TensorType::new(dtype, shape);
        let number = |i: usize| ((i * prime % 100_003) % 257) as f64 / 128.0 - 1.0;
        let numbers: Vec<f64> = (0..ty.shape.elements()).map(number).collect();
        program.write_array(name, &Array::from_f64(ty, &numbers).unwrap()).unwrap();
    }
    program.run("r").unwrap();
    results.iter().map(|(name, _)| program.read(*name).unwrap().to_f64()).collect()
}

/// Products of more tiles than the device has room for at once, so that blocks go from one to the next; of little depth, which
/// leaves least between them. What a race would change is looked for by the bits of several runs.
#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn what_follows_products_of_many_tiles_is_what_the_cpu_computes() {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), Cpu::new(2).unwrap());
    // The first alone is enough for what looks at every access.
    let all = [[17_000, 64, 512], [20_000, 64, 1024], [9_001, 136, 1600], [16_384, 768, 512]];
    let count = if std::env::var_os("GRADUS_TEST_FIRST").is_some() { 1 } else { all.len() };
    for (sizes, (dtype, allowed)) in
        all[..count].iter().flat_map(|sizes| [(DType::Bf16, 5e-3), (DType::F16, 1e-3)].map(|of_type| (*sizes, of_type)))
    {
        let (expected, computed) = (feed_forward(&cpu, dtype, sizes), feed_forward(&cuda, dtype, sizes));
        for _ in 0..5 {
            assert!(computed == feed_forward(&cuda, dtype, sizes), "{sizes:?}, {dtype}: the same bits again");
        }
        for (what, (computed, expected)) in
            ["active", "hidden", "weight", "bias"].iter().zip(computed.iter().zip(&expected))
        {
            let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error = computed.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / size;
            println!("{sizes:?}, {dtype}: {what} off by {error:.1e}");
            assert!(error <= allowed, "{sizes:?}, {dtype}: {what} off by {error:e} of {size:e}");
        }
    }
}

/// A loss that looks at its targets, and a state that counts.
fn counted(cuda: &Cuda) -> (Program, Timing) {
    let trace = Trace::new();
    let logits = trace.input("logits", DType::F32, [4, 7]);
    let targets = trace.input("targets", DType::I32, [4]);
    let count = trace.zero_state("count", DType::F32, [3]);
    let loss = logits.cross_entropy_rows(&targets, None);
    let step = Routine::new("step").output("loss", &loss).assign(&count, &(&count + 1.0));
    let program = trace.compile(cuda, &[step]).unwrap();
    let timing = program.timing("step").unwrap();
    (program, timing)
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn bad_data_on_a_device_changes_no_state() {
    let (mut program, mut timing) = counted(&Cuda::new(0).unwrap());
    program.write("logits", &[0.5f32; 28]).unwrap();
    program.write("targets", &[0, 6, 3, 1]).unwrap();
    let count = |program: &Program| program.read("count").unwrap().to_vec::<f32>().unwrap();
    program.run("step").unwrap();
    assert_eq!(count(&program), [1.0; 3]);
    for (loss, expected) in program.read("loss").unwrap().to_vec::<f32>().unwrap().into_iter().zip([7f32.ln(); 4]) {
        assert!((loss - expected).abs() < 1e-6, "{loss}");
    }
    program.write("targets", &[0, 6, 7, 1]).unwrap();
    let error = program.run("step").unwrap_err().to_string();
    assert!(error.contains('7'), "{error}");
    assert_eq!(count(&program), [1.0; 3], "bad data changes nothing");
    assert!(program.run_timed("step", &mut timing).is_err());
    assert_eq!(count(&program), [1.0; 3], "bad data changes nothing, step by step");
    program.write("targets", &[0, 6, 5, 1]).unwrap();
    program.run_timed("step", &mut timing).unwrap();
    program.run("step").unwrap();
    assert_eq!(count(&program), [3.0; 3]);
    assert!(!timing.total().is_zero());
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn what_is_written_last_is_what_a_device_computes_with() {
    let trace = Trace::new();
    let (small, large) = (trace.input("small", DType::F32, [3]), trace.input("large", DType::F32, [100_000]));
    let count = trace.zero_state("count", DType::F32, [3]);
    let step = Routine::new("step")
        .output("doubled", &(&small * 2.0))
        .output("tripled", &(&large * 3.0))
        .output("counted", &(&count + 0.0))
        .assign(&count, &(&count + &small));
    let mut program = trace.compile(&Cuda::new(0).unwrap(), &[step]).unwrap();
    let read = |program: &Program, name: &str| program.read(name).unwrap().to_vec::<f32>().unwrap();
    for round in 0..20 {
        // More than once without a run between, so that there is no room for all of it on its way.
        for number in 0..=round {
            program.write("small", &[(round * 100 + number) as f32; 3]).unwrap();
            program.write("large", &vec![(round * 100 + number) as f32; 100_000]).unwrap();
        }
        let before = read(&program, "count");
        program.run("step").unwrap();
        let last = (round * 101) as f32;
        assert_eq!(read(&program, "doubled"), [last * 2.0; 3]);
        assert!(read(&program, "tripled").iter().all(|&number| number == last * 3.0));
        assert_eq!(read(&program, "counted"), before);
        assert_eq!(read(&program, "count"), [before[0] + last; 3]);
        // A result is what it was until something is written; a state is what was written.
        program.write("count", &[round as f32; 3]).unwrap();
        assert_eq!(read(&program, "count"), [round as f32; 3]);
        assert_eq!(read(&program, "doubled"), [last * 2.0; 3]);
    }
}
