//! Runs in which nothing is wrong.

use crate::models::{Mlp, convolutional, language, points, recurrent, sequences};
use crate::{alerts, reports, settings, trainer};
use gradus_engine::Tensor;
use gradus_train::config::{Clip, OptimizerKind, Precision, ScheduleKind};
use gradus_train::models::Family;
use gradus_train::optimizers::Sgd;
use gradus_train::step::Objective;
use gradus_train::trainer::{BatchSource, Settings};
use gradus_train::watch::Verdict;

/// Trains, and nothing is raised; the loss falls.
fn raises_nothing(
    name: &str,
    objective: impl Objective + 'static,
    settings: Settings,
    batches: impl BatchSource + 'static,
) {
    let found = reports(&mut trainer(objective, settings), batches);
    assert_eq!(alerts(&found), vec![], "{name}");
    assert!(found.iter().all(|report| report.verdict == Some(Verdict::Healthy)), "{name}");
    let (first, last) = (found[0].loss, found[found.len() - 1].loss);
    assert!(last < 0.9 * first, "{name} learns: {first} to {last}");
    assert!(found.iter().filter(|report| report.health.is_some()).count() > 20, "{name} is measured");
}

#[test]
fn language_models_raise_nothing() {
    let usual = || Settings { batch: 8, learning_rate: 3e-3, ..settings(150) };
    let with = |kind: OptimizerKind| kind.grouped(kind.usual());
    for (name, family, settings) in [
        ("gpt2", Family::Gpt2, usual()),
        ("llama", Family::Llama, usual()),
        ("qwen2", Family::Qwen2, usual()),
        (
            "qwen3",
            Family::Qwen3,
            Settings { micro_batch: 2, warmup_steps: 20, schedule: ScheduleKind::Cosine, ..usual() },
        ),
        ("gpt2 in bf16", Family::Gpt2, Settings { precision: Precision::Bf16, ..usual() }),
        ("llama in f16", Family::Llama, Settings { precision: Precision::F16, ..usual() }),
        (
            "gpt2 by lion",
            Family::Gpt2,
            Settings { optimizer: with(OptimizerKind::Lion), learning_rate: 1e-3, ..usual() },
        ),
        (
            "llama by adafactor",
            Family::Llama,
            Settings { optimizer: with(OptimizerKind::Adafactor), learning_rate: 1e-2, ..usual() },
        ),
        ("gpt2 clipped by value", Family::Gpt2, Settings { clip: Clip::Value(0.05), micro_batch: 4, ..usual() }),
    ] {
        raises_nothing(name, language(family), settings, sequences(|_| false));
    }
}

#[test]
fn other_models_raise_nothing() {
    let usual = || Settings { learning_rate: 5e-3, ..settings(150) };
    let sgd =
        || Settings { optimizer: Sgd { momentum: 0.9, ..Sgd::default() }.into(), learning_rate: 0.05, ..settings(150) };
    raises_nothing("relu", Mlp::new(3, Tensor::relu).losses(), usual(), points);
    raises_nothing("relu by sgd", Mlp::new(3, Tensor::relu).losses(), sgd(), points);
    raises_nothing("tanh", Mlp::new(4, Tensor::tanh).losses(), Settings { micro_batch: 8, ..usual() }, points);
    // A last layer of zeros: at first no gradient passes it.
    let from_zeros = Mlp { scale: |layer| if layer == 2 { 0.0 } else { 1.0 }, ..Mlp::new(3, Tensor::relu) };
    raises_nothing("a last layer of zeros", from_zeros.losses(), usual(), points);
    raises_nothing("convolutional", convolutional, usual(), points);
    raises_nothing("gru", recurrent(false), usual(), points);
    raises_nothing("lstm", recurrent(true), usual(), points);
}
