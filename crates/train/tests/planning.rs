//! A step within a budget: what is computed again changes no bit, every limit is kept, more memory never takes more
//! time, and a step goes on under another plan.

use gradus_engine::Role;
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Plan, Recompute};
use gradus_train::config::OptimizerKind;
use gradus_train::models::{Family, ModelConfig};
use gradus_train::planning::{ArenaBytes, Chosen, Refusal, StepPlans};
use gradus_train::step::{StepConfig, StepScalars, TrainingStep};

const BATCH: usize = 4;
const SEQUENCE: usize = 32;
const VOCABULARY: usize = 40;

fn config(family: Family) -> StepConfig {
    let model = ModelConfig { dropout: 0.1, ..ModelConfig::new(family, VOCABULARY, 32, 4, 4, SEQUENCE) };
    StepConfig { micro_batch: 0, micro_batches: 0, ..StepConfig::plain(model, BATCH) }
}

fn run(step: &mut TrainingStep, from: u64, count: u64) {
    for number in from..from + count {
        let token = |index: usize| ((index * 7 + number as usize * 13) % VOCABULARY) as i32;
        let tokens: Vec<i32> = (0..BATCH * SEQUENCE).map(token).collect();
        let targets: Vec<i32> = (0..BATCH * SEQUENCE).map(|index| token(index + 1)).collect();
        let scalars = StepScalars { step: number, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 };
        let mut batch = step.batch();
        batch.write("tokens", &tokens).unwrap();
        batch.write("targets", &targets).unwrap();
        step.run(&batch, &scalars).unwrap();
    }
}

/// The bits of everything that the step remembers, by name.
fn states(step: &TrainingStep) -> Vec<(String, Vec<u8>)> {
    let program = step.program();
    let kept = program.states().filter(|(_, role, _)| *role != Role::Gradient);
    let mut states: Vec<_> =
        kept.map(|(name, _, _)| (name.to_string(), program.bytes(name).unwrap().to_vec())).collect();
    states.sort();
    states
}

fn trained(chosen: Chosen, backend: &dyn Backend, steps: u64) -> Vec<(String, Vec<u8>)> {
    let mut step = TrainingStep::link(chosen, backend).unwrap();
    step.initialize(1).unwrap();
    run(&mut step, 0, steps);
    states(&step)
}

/// A property of plans that holds on any machine.
macro_rules! on_every_machine {
    ($property:ident) => {
        mod $property {
            #[test]
            fn on_the_cpu() {
                super::$property(&gradus_engine::backend::Cpu::new(2).unwrap());
            }

            #[test]
            fn on_the_second_machine() {
                super::$property(&gradus_engine::testing::SecondMachine);
            }
        }
    };
}

on_every_machine!(every_policy_gives_the_same_bits_in_less_memory);

fn every_policy_gives_the_same_bits_in_less_memory(backend: &dyn Backend) {
    for family in [Family::Gpt2, Family::Llama] {
        let config = StepConfig { micro_batch: BATCH, micro_batches: 1, ..config(family) };
        let chosen = |recompute, limit| {
            let options = Options { recompute, ..Options::default() };
            Chosen { config: config.clone(), plan: config.planner(backend, options).unwrap().plan(limit) }
        };
        let kept = chosen(Recompute::None, usize::MAX);
        let most = kept.arena();
        let expected = trained(kept, backend, 3);
        for (recompute, limit) in [
            (Recompute::Block { every: 1 }, usize::MAX),
            (Recompute::Block { every: 2 }, usize::MAX),
            (Recompute::Selective { operations_per_byte: 8 }, usize::MAX),
            (Recompute::Auto, most - 1),
            (Recompute::Auto, 0),
        ] {
            let chosen = chosen(recompute, limit);
            // A policy that knows no limit need not evict what is alive where most is.
            let least = if matches!(recompute, Recompute::Selective { .. }) { most } else { most - 1 };
            assert!(chosen.arena() <= least, "{family:?} {recompute:?}: {} of {most}", chosen.arena());
            let again =
                chosen.plan.routines.iter().flat_map(|routine| &routine.steps).filter(|step| step.again).count();
            assert!(again > 0, "{family:?} {recompute:?}");
            assert!(trained(chosen, backend, 3) == expected, "{family:?} {recompute:?}: other bits");
        }
    }
}

on_every_machine!(curvature_and_matrices_keep_their_bits_in_less_memory);

/// Eleven steps, so that what is made new once in ten is so twice.
fn curvature_and_matrices_keep_their_bits_in_less_memory(backend: &dyn Backend) {
    for kind in [OptimizerKind::Muon, OptimizerKind::Sophia, OptimizerKind::Soap] {
        let optimizer = kind.grouped(kind.usual());
        let config = StepConfig { micro_batch: BATCH, micro_batches: 1, optimizer, ..config(Family::Gpt2) };
        let options = Options { recompute: Recompute::Auto, ..Options::default() };
        let planner = config.planner(backend, options).unwrap();
        let [kept, least] = [usize::MAX, 0].map(|limit| Chosen { config: config.clone(), plan: planner.plan(limit) });
        assert!(least.arena() < kept.arena(), "{kind:?}: {} of {}", least.arena(), kept.arena());
        let named = |plan: &Plan| plan.routines.iter().any(|routine| routine.name == "refresh");
        assert_eq!(named(&kept.plan), kind != OptimizerKind::Muon, "{kind:?}");
        let states = ArenaBytes::of(&kept.plan).optimizer;
        assert!(states >= ArenaBytes::of(&kept.plan).weights, "{kind:?}: what is remembered is counted");
        assert!(trained(least, backend, 11) == trained(kept, backend, 11), "{kind:?}: other bits");
    }
}

on_every_machine!(every_limit_is_kept_and_more_memory_never_takes_more_time);

fn every_limit_is_kept_and_more_memory_never_takes_more_time(backend: &dyn Backend) {
    let plans = StepPlans::new(&config(Family::Gpt2), BATCH, Recompute::Auto, backend).kept().unwrap();
    let (least, most) = (plans.smallest().unwrap().arena(), plans.fastest_within(usize::MAX).unwrap().unwrap().arena());
    assert!(plans.fastest_within(least - 1).unwrap().is_none());
    let mut last = f64::INFINITY;
    for limit in (least..=most).step_by((most - least) / 40) {
        let chosen = plans.fastest_within(limit).unwrap().unwrap();
        assert!(chosen.arena() <= limit && chosen.seconds() <= last, "at {limit} of {least}..{most}");
        last = chosen.seconds();
        let bytes = ArenaBytes::of(&chosen.plan);
        let kinds = [bytes.weights, bytes.gradients, bytes.optimizer, bytes.activations, bytes.scratch, bytes.data];
        assert_eq!(kinds.iter().sum::<usize>(), chosen.arena());
    }
    let curve = plans.curve().unwrap();
    assert!(curve.len() > 3 && curve.is_sorted_by(|a, b| a.arena < b.arena && a.seconds > b.seconds), "{curve:?}");
}

on_every_machine!(a_thrifty_plan_is_smaller_and_about_as_fast);

fn a_thrifty_plan_is_smaller_and_about_as_fast(backend: &dyn Backend) {
    let config = StepConfig { micro_batch: BATCH, micro_batches: 1, ..config(Family::Gpt2) };
    let plans = StepPlans::new(&config, BATCH, Recompute::Auto, backend).kept().unwrap();
    let [fastest, thrifty] = [plans.fastest_within(usize::MAX), plans.thrifty_within(usize::MAX)];
    let [fastest, thrifty] = [fastest, thrifty].map(|chosen| chosen.unwrap().unwrap());
    let allowed = fastest.seconds() * 1.02;
    assert!(thrifty.arena() <= fastest.arena() && thrifty.seconds() <= allowed);
    // Nothing much smaller is as fast.
    let smallest = plans.smallest().unwrap();
    let smaller = thrifty.arena() - (fastest.arena() - smallest.arena()) / 512;
    let found = plans.fastest_within(smaller).unwrap();
    assert!(found.is_none_or(|found| found.seconds() > allowed));
    assert!(plans.thrifty_within(smallest.arena() - 1).unwrap().is_none());
    let tight = plans.thrifty_within(smallest.arena()).unwrap().unwrap();
    assert_eq!(tight.arena(), smallest.arena());
}

on_every_machine!(a_refusal_names_what_works);

fn a_refusal_names_what_works(backend: &dyn Backend) {
    let config = config(Family::Gpt2);
    let plans = StepPlans::new(&config, BATCH, Recompute::Auto, backend);
    let refusal = Refusal::of(&plans, &config, BATCH, backend).unwrap();
    assert!(plans.fastest_within(refusal.smallest).unwrap().is_some());
    assert!(!refusal.changes.is_empty());
    assert!(refusal.changes.iter().all(|change| change.smallest < refusal.smallest), "{refusal:?}");
    // A change is told by itself: with as many computed at once as are stated.
    let stated = StepConfig { micro_batch: BATCH, micro_batches: 1, ..config };
    let smallest =
        |config: &StepConfig| StepPlans::new(config, BATCH, Recompute::Auto, backend).smallest().unwrap().arena();
    let plans = StepPlans::new(&stated, BATCH, Recompute::Auto, backend);
    let refusal = Refusal::of(&plans, &stated, BATCH, backend).unwrap();
    let optimizer = OptimizerKind::Sgd.grouped(OptimizerKind::Sgd.usual());
    for (options, changed) in [
        ("`settings.optimizer` sgd", StepConfig { optimizer, ..stated.clone() }),
        ("`settings.micro_batch` 1", StepConfig { micro_batch: 1, ..stated.clone() }),
    ] {
        let told = refusal.changes.iter().find(|change| change.options == options);
        assert_eq!(told.map(|change| change.smallest), Some(smallest(&changed)), "{options}: {refusal:?}");
    }
}

on_every_machine!(a_step_goes_on_under_another_plan);

fn a_step_goes_on_under_another_plan(backend: &dyn Backend) {
    let config = StepConfig { micro_batch: 2, micro_batches: 2, ..config(Family::Gpt2) };
    let options = Options { recompute: Recompute::Auto, ..Options::default() };
    let planner = config.planner(backend, options).unwrap();
    let chosen = |limit| Chosen { config: config.clone(), plan: planner.plan(limit) };
    let expected = trained(chosen(usize::MAX), backend, 4);
    let mut step = TrainingStep::link(chosen(usize::MAX), backend).unwrap();
    step.initialize(1).unwrap();
    for (number, limit) in [usize::MAX, 0, usize::MAX, 0].into_iter().enumerate() {
        step.relink(chosen(limit)).unwrap();
        run(&mut step, number as u64, 1);
    }
    assert!(states(&step) == expected, "other bits");
}
