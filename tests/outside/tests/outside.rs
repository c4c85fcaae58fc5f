//! The operation is tested as gradus tests its own; the model learns with the optimizer, within a budget and with parts
//! made again, and writes what it has learned.

use gradus::backend::Cpu;
use gradus::generate::{Generator, Sampling, Texts};
use gradus::models::{CausalModel, Parameters};
use gradus::optimizers::{GroupedOptimizer, StepNumbers};
use gradus::plan::{Options, Recompute};
use gradus::{DType, Precision, Program, Routine, Tensor, Trace, gradient};
use outside::{Hadamard, Mixer, Signum, hadamard};

#[test]
fn the_operation_holds() {
    gradus::testing::check_operation::<Hadamard>();
}

#[test]
fn the_operation_refuses_what_it_does_not_take() {
    let trace = Trace::new();
    let y = hadamard(&trace.input("x", DType::F32, [3, 6]));
    let error = y.handle().unwrap_err().to_string();
    assert!(error.contains("tests/outside.rs") && error.contains("power of two"), "{error}");
}

const BATCH: usize = 8;
const SEQUENCE: usize = 16;
const MODEL: Mixer = Mixer { vocabulary: 16, context: 32, width: 32, layers: 2 };

/// The token after another, in the only sentence there is.
fn next(token: usize) -> usize {
    (5 * token + 3) % MODEL.vocabulary
}

struct Training {
    program: Program,
    parameters: Parameters,
    tokens: Tensor,
    targets: Tensor,
    loss: Tensor,
    step: Routine,
}

/// The training step, planned with a limit of the arena if there is one.
fn training(limit: Option<usize>) -> Training {
    let trace = Trace::new();
    let parameters = MODEL.declare(&trace);
    let tokens = trace.input("tokens", DType::I32, [BATCH, SEQUENCE]);
    let targets = trace.input("targets", DType::I32, [BATCH, SEQUENCE]);
    let loss = MODEL.loss(&parameters, &tokens, &targets);
    let weights = parameters.tensors();
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>()).unwrap();
    let names = parameters.list();
    let numbers = StepNumbers::new(&trace.full(3e-3, DType::F32, []));
    let named = names.iter().map(|parameter| &parameter.name[..]).zip(&weights);
    let step = Routine::new("step").output("loss", &loss);
    let step = GroupedOptimizer::new(Signum { beta: 0.9 }).update(step, named, &gradients, &numbers);
    let (cpu, recompute) = (Cpu::new(2).unwrap(), limit.map_or(Recompute::None, |_| Recompute::Auto));
    let planner = trace.planner(&cpu, &[step.clone()], Options { recompute, ..Options::default() }).unwrap();
    let plan = planner.plan(limit.unwrap_or(usize::MAX));
    assert!(limit.is_none_or(|limit| plan.regions.total() <= limit), "{} bytes", plan.regions.total());
    let mut program = Program::link(plan, &cpu).unwrap();
    parameters.initialize(&mut program, 1).unwrap();
    Training { program, parameters, tokens, targets, loss, step }
}

impl Training {
    fn steps(&mut self, count: usize) -> f32 {
        for step in 0..count {
            let mut sentences = vec![];
            for row in 0..BATCH {
                let first = (step * 7 + row * 3) % MODEL.vocabulary;
                sentences.push(std::iter::successors(Some(first), |&token| Some(next(token))));
            }
            let take = |skip: usize| {
                let rows = sentences.iter().flat_map(|row| row.clone().skip(skip).take(SEQUENCE));
                rows.map(|token| token as i32).collect::<Vec<_>>()
            };
            self.program.write(&self.tokens, &take(0)).unwrap();
            self.program.write(&self.targets, &take(1)).unwrap();
            self.program.run(&self.step).unwrap();
        }
        self.program.scalar(&self.loss).unwrap()
    }

    fn weights(&self) -> Vec<Vec<f32>> {
        let read = |tensor: &Tensor| self.program.read(tensor).unwrap().to_vec::<f32>().unwrap();
        self.parameters.tensors().iter().map(read).collect()
    }
}

#[test]
fn the_model_learns_with_the_optimizer_and_writes_what_it_has_learned() {
    let mut training = training(None);
    let first = training.steps(1);
    let last = training.steps(150);
    assert!(first > 2.0 && last < 0.2, "the loss went from {first} to {last}");
    let weights = |parameter: &gradus::models::Parameter| training.program.read(&parameter.name).unwrap();
    let texts = Texts { count: 1, prompt_tokens: 1, max_tokens: 12 };
    let mut generator = Generator::new(&MODEL, weights, Precision::F32, &Cpu::new(1).unwrap(), texts).unwrap();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let text = generator.generate(&[4], &greedy, 12, &[], &mut |_, _| Ok(())).unwrap();
    let sentence = std::iter::successors(Some(4), |&token| Some(next(token))).skip(1);
    assert_eq!(text[0], sentence.take(12).map(|token| token as i32).collect::<Vec<_>>());
}

#[test]
fn a_budget_changes_no_bit() {
    let mut whole = training(None);
    let mut tight = training(Some(whole.program.plan().regions.total() * 9 / 10));
    assert!(tight.program.plan().routines[0].steps.iter().any(|step| step.again), "nothing is made again");
    (whole.steps(3), tight.steps(3));
    assert!(whole.weights() == tight.weights());
}
