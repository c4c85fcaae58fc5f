//! Precisions on a device: what products multiply, and training in f16.

use gradus::backend::{Backend, Cpu, Cuda, GpuKind};
use gradus::loss_scale::SCALE;
use gradus::models::ModelConfig;
use gradus::ops::ProductTypes;
use gradus::plan::{Options, Recompute};
use gradus::train::planning::Chosen;
use gradus::train::step::{Outcome, StepConfig, StepScalars};
use gradus::{DType, Precision, Role, Routine, Trace, TrainingStep};
use gradus_cuda::{Command, Element, Product};

const BATCH: usize = 4;
const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

fn config(precision: Precision) -> StepConfig {
    StepConfig { precision, ..StepConfig::plain(ModelConfig::gpt2(VOCABULARY, 32, 2, 2, SEQUENCE), BATCH) }
}

/// As large as products must be for a kernel of our own to take in what follows them, also in two micro-batches.
fn wide(precision: Precision) -> StepConfig {
    let model = ModelConfig::gpt2(VOCABULARY, 128, 2, 2, SEQUENCE);
    StepConfig { precision, ..StepConfig::plain(model, 1024 / SEQUENCE) }
}

/// All products of a training step, of more rows than a kernel of our own takes.
fn products(precision: Precision) -> Vec<Product> {
    let cuda = Cuda::of_kind(GpuKind::H200);
    let config = StepConfig { micro_batch: 512 / SEQUENCE, ..config(precision) };
    let plan = config.planner(&cuda, Options::default()).unwrap().plan(usize::MAX);
    let step = plan.routines.iter().position(|routine| routine.name == "step").unwrap();
    let commands = cuda.commands(&plan, 1 << 32).unwrap().swap_remove(step).into_iter().flatten();
    commands.filter_map(|command| if let Command::Product(product) = command { Some(product) } else { None }).collect()
}

#[test]
fn every_product_of_a_step_multiplies_in_its_precision() {
    for (precision, element) in [
        (Precision::F32, Element::F32),
        (Precision::Tf32, Element::F32),
        (Precision::Bf16, Element::Bf16),
        (Precision::F16, Element::F16),
    ] {
        let products = products(precision);
        // Four a layer and the head's, each with two gradients.
        assert_eq!(products.len(), 3 * (4 * 2 + 1), "{precision:?}");
        for product in products {
            assert_eq!([product.a.element, product.b.element], [element; 2], "{precision:?}: {product:?}");
            assert_eq!(product.tf32, precision == Precision::Tf32, "{product:?}");
        }
    }
}

/// The largest error of a product of numbers with full mantissas, relative to the sum of what is multiplied, in size.
fn error_of_product(backend: &dyn Backend, allow_tf32: bool) -> f64 {
    let (rows, depth, columns) = (256, 512, 384);
    let numbers = |count: usize, prime: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * prime) % 100_003) as f32 / 100_003.0 - 0.37).collect()
    };
    let (a, b) = (numbers(rows * depth, 7919), numbers(depth * columns, 6007));
    let trace = Trace::new();
    let [x, y] =
        [("x", [rows, depth]), ("y", [depth, columns])].map(|(name, shape)| trace.input(name, DType::F32, shape));
    let product = x.matmul_as(&y, ProductTypes { allow_tf32, ..ProductTypes::all(DType::F32) });
    let mut program = trace.compile(backend, &[Routine::new("r").output("product", &product)]).unwrap();
    program.write("x", &a).unwrap();
    program.write("y", &b).unwrap();
    program.run("r").unwrap();
    let found = program.read("product").unwrap().to_f64();
    let mut largest = 0f64;
    for (index, found) in found.into_iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let terms = (0..depth).map(|step| a[row * depth + step] as f64 * b[step * columns + column] as f64);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        assert!(found.is_finite());
        largest = largest.max((found - sum).abs() / size);
    }
    largest
}

#[test]
fn where_nothing_multiplies_tf32_its_products_are_in_f32() {
    let cpu = Cpu::new(2).unwrap();
    assert_eq!(error_of_product(&cpu, true), error_of_product(&cpu, false));
    assert!(error_of_product(&cpu, true) < 1e-6);
    let refused = config(Precision::Tf32).planner(&cpu, Options::default()).err().unwrap().to_string();
    assert!(refused.contains("`settings.precision` tf32") && refused.contains("the cpu has none"), "{refused}");
}

/// Each operand keeps 10 bits, whether the others are rounded or cut off.
#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn products_in_tf32_on_a_device_are_rounded_as_stated() {
    let cuda = Cuda::new(0).unwrap();
    let (exact, rounded) = (error_of_product(&cuda, false), error_of_product(&cuda, true));
    assert!(exact < 1e-6, "f32: {exact:e}");
    assert!((1e-6..2f64.powi(-9)).contains(&rounded), "TF32: {rounded:e}");
}

fn trained(training: &mut TrainingStep, steps: u64) -> Vec<Outcome> {
    let run = |step: u64| {
        let token = |place: usize| ((place * 5 / SEQUENCE + place + step as usize * 11) % VOCABULARY) as i32;
        let mut batch = training.batch();
        for (name, first) in [("tokens", 0), ("targets", 1)] {
            let numbers = batch.numbers_mut::<i32>(name).unwrap();
            numbers.iter_mut().zip(first..).for_each(|(number, place)| *number = token(place));
        }
        training.run(&batch, &StepScalars { step, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 }).unwrap()
    };
    (0..steps).map(run).collect()
}

fn new(precision: Precision, backend: &dyn Backend) -> TrainingStep {
    begun(config(precision), backend)
}

fn begun(config: StepConfig, backend: &dyn Backend) -> TrainingStep {
    let mut training = TrainingStep::new(config, backend).unwrap();
    training.initialize(3).unwrap();
    training
}

/// The bits of all that a step leaves behind but for the scale.
fn states(training: &TrainingStep) -> Vec<Vec<u8>> {
    let program = training.program();
    let kept = program.states().filter(|(name, role, _)| role.outlasts_a_step() && !name.starts_with(SCALE));
    kept.map(|(name, _, _)| program.bytes(name).unwrap().to_vec()).collect()
}

/// After a first step, what AdamW remembers is the gradient and its square, times a factor: of every weight, on a device, what
/// it is on the CPU.
#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn gradients_in_every_precision_on_a_device_are_those_of_the_cpu() {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), Cpu::new(2).unwrap());
    let mut wrong = vec![];
    let precisions = [(Precision::F32, 1e-4), (Precision::Tf32, 1e-2), (Precision::F16, 2e-2), (Precision::Bf16, 1e-1)];
    for (config, (precision, allowed)) in
        [config as fn(Precision) -> StepConfig, wide].iter().flat_map(|config| precisions.map(|one| (config, one)))
    {
        let [mut expected, mut found] = [(Precision::F32, &cpu as &dyn Backend), (precision, &cuda)]
            .map(|(of, backend)| begun(config(of), backend));
        trained(&mut expected, 1);
        trained(&mut found, 1);
        for (name, role, _) in expected.program().states().filter(|(_, role, _)| *role == Role::Optimizer) {
            let [found, expected] = [&found, &expected].map(|training| training.program().read(name).unwrap().to_f64());
            let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error = found.iter().zip(&expected).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt() / size;
            if error.is_nan() || error >= allowed {
                wrong.push(format!("{precision:?} {name} ({role:?}): {error:.1e} of {size:.1e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What AdamW remembers after a first step.
fn moments(chosen: Chosen, cuda: &Cuda) -> Vec<Vec<f64>> {
    let mut training = TrainingStep::link(chosen, cuda).unwrap();
    training.initialize(3).unwrap();
    trained(&mut training, 1);
    let optimizer = training.program().states().filter(|(_, role, _)| *role == Role::Optimizer);
    optimizer.map(|(name, ..)| training.program().read(name).unwrap().to_f64()).collect()
}

/// What is made again is made of rounded numbers, where an epilogue had them unrounded; and micro-batches have sums of their own:
/// so gradients may differ from those of a step that takes all at once and keeps everything, by no more than their rounding does.
#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn gradients_of_all_micro_batches_and_levels_of_recomputation_are_alike() {
    let cuda = Cuda::new(0).unwrap();
    for (config, precision, parts, allowed) in [
        (config as fn(Precision) -> StepConfig, Precision::F32, &[1, 2, 4][..], 1e-5),
        (config, Precision::Bf16, &[1, 2, 4], 1e-2),
        (wide, Precision::Bf16, &[1, 2], 1e-2),
    ] {
        let options = Options { recompute: Recompute::Auto, ..Options::default() };
        let mut whole = None;
        for &micro_batches in parts {
            let all = config(precision);
            let micro_batch = all.micro_batch / micro_batches;
            let config = StepConfig { micro_batch, micro_batches, ..all };
            let planner = config.planner(&cuda, options).unwrap();
            let (mut limit, mut levels) = (usize::MAX, 0);
            loop {
                let chosen = Chosen { config: config.clone(), plan: planner.plan(limit) };
                let arena = chosen.arena();
                if arena > limit {
                    break;
                }
                let found = moments(chosen, &cuda);
                let whole = whole.get_or_insert(found.clone());
                for (found, whole) in found.iter().zip(whole.iter()) {
                    let size = whole.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let error = found.iter().zip(whole).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
                    let what = format!("{precision:?}, {micro_batch} at once in {arena} bytes");
                    assert!(error <= allowed * size, "{what}: {error:e} of {size:e}");
                }
                (limit, levels) = (arena - 1, levels + 1);
            }
            assert!(levels > 3, "{precision:?}: {levels} levels");
        }
    }
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn training_in_every_precision_on_a_device_follows_the_cpu() {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), Cpu::new(2).unwrap());
    let expected = trained(&mut new(Precision::F32, &cpu), 30);
    for (precision, allowed) in
        [(Precision::F32, 1e-3), (Precision::Tf32, 2e-2), (Precision::F16, 2e-2), (Precision::Bf16, 6e-2)]
    {
        let found = trained(&mut new(precision, &cuda), 30);
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found.loss - expected.loss).abs() / expected.loss;
            assert!(error < allowed, "{precision:?}, step {step}: {found:?} instead of {expected:?}");
        }
        assert_eq!(found, trained(&mut new(precision, &cuda), 30), "{precision:?}: the same bits again");
    }
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn an_overflow_on_a_device_changes_nothing_but_the_scale() {
    let mut training = new(Precision::F16, &Cuda::new(0).unwrap());
    let is_skipped = |outcome: &Outcome| outcome.scaling.unwrap().skipped;
    assert!(!trained(&mut training, 3).iter().any(is_skipped));
    training.program_mut().write(SCALE, &[2f32.powi(40)]).unwrap();
    let before = states(&training);
    let skipped = trained(&mut training, 1)[0].scaling.unwrap();
    assert_eq!((skipped.skipped, skipped.loss_scale, skipped.skipped_steps), (true, 2f32.powi(39), 1));
    assert!(states(&training) == before, "no weight and no moment has changed");
    let outcomes = trained(&mut training, 40);
    assert!(!is_skipped(&outcomes[39]) && outcomes[39].scaling.unwrap().loss_scale < 2f32.powi(30));
    assert!(states(&training) != before && outcomes[39].loss.is_finite());
}
