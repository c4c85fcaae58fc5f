//! What a plan is estimated to need and take is what it needs and takes.

use gradus_engine::backend::Cpu;
use gradus_engine::plan::{Options, Recompute};
use gradus_train::models::ModelConfig;
use gradus_train::planning::{ArenaBytes, StepPlans};
use gradus_train::step::StepConfig;

fn config(micro_batch: usize, micro_batches: usize) -> StepConfig {
    let plain = StepConfig::plain(ModelConfig::gpt2(100, 32, 3, 2, 32), micro_batch);
    StepConfig { micro_batches, ..plain }
}

#[test]
fn an_estimate_is_what_the_plan_comes_to() {
    let backend = Cpu::new(1).unwrap();
    let options = Options { recompute: Recompute::Auto, ..Options::default() };
    for config in [config(4, 1), config(2, 2)] {
        let planner = config.planner(&backend, options).unwrap();
        let (most, least) = (planner.estimate(usize::MAX), planner.estimate(0));
        assert!(least.arena < most.arena);
        for tenth in 0..=10 {
            let limit = least.arena + (most.arena - least.arena) * tenth / 10;
            let (estimate, plan) = (planner.estimate(limit), planner.plan(limit));
            assert!(estimate.arena <= limit);
            assert_eq!(estimate.arena, plan.regions.total());
            assert_eq!(estimate.seconds, plan.seconds());
            let seconds = |name: &str| plan.routines.iter().find(|known| known.name == name).map(|r| r.seconds());
            let step = match config.micro_batches {
                1 => seconds("step").unwrap(),
                _ => seconds("first").unwrap() + seconds("accumulate").unwrap() + seconds("update").unwrap(),
            };
            assert!((plan.seconds() / step - 1.0).abs() < 1e-12, "{} not {step}", plan.seconds());
        }
    }
}

#[test]
fn the_curve_falls_and_its_points_can_be_had() {
    let backend = Cpu::new(1).unwrap();
    let plans = StepPlans::new(&config(0, 0), 4, Recompute::Auto, &backend);
    let curve = plans.curve().unwrap();
    assert!(curve.len() > 3, "{curve:?}");
    assert!(curve.windows(2).all(|pair| pair[0].arena < pair[1].arena && pair[0].seconds > pair[1].seconds));
    assert_eq!(curve[0].arena, plans.smallest().unwrap().arena());
    for point in curve {
        let chosen = plans.fastest_within(point.arena).unwrap().unwrap();
        assert_eq!((chosen.arena(), chosen.seconds()), (point.arena, point.seconds));
        let ArenaBytes { weights, gradients, optimizer, activations, scratch, data } = ArenaBytes::of(&chosen.plan);
        assert_eq!(weights + gradients + optimizer + activations + scratch + data, chosen.arena());
    }
}
