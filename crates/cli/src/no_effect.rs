//! Options that cannot have an effect beside others: refused, rather than taken without a word.

use crate::args::TrainArgs;
use crate::numbers::shortest;
use clap::ArgMatches;
use clap::parser::ValueSource;
use gradus_train::config::{DeviceChoice, LocalSteps, OptimizerKind, ScheduleKind, TrainConfig, Validation};
use gradus_train::models::ModelConfig;
use gradus_train::{Error, Result};

/// An option that cannot have an effect.
struct Idle {
    /// Its name on the command line.
    option: &'static str,
    /// Whether a file states it otherwise than it would be without. A run's own `config.toml` states all there is.
    differs: bool,
    /// Why it has none.
    why: String,
}

/// Refuses options of the command line or of its `--config` file that the run has no use for.
pub fn refuse(command_line: &ArgMatches, stated: &TrainArgs, config: &TrainConfig) -> Result<()> {
    let given = |option: &str| command_line.value_source(&option.replace('-', "_")) == Some(ValueSource::CommandLine);
    match idle(stated, config).into_iter().find(|idle| given(idle.option) || idle.differs) {
        None => Ok(()),
        Some(Idle { option, why, .. }) => Err(Error::Config(format!("--{option} has no effect: {why}; leave it out"))),
    }
}

/// Every option that cannot have an effect in this run, whether given or not.
fn idle(stated: &TrainArgs, config: &TrainConfig) -> Vec<Idle> {
    let mut idle = vec![];
    let mut add = |option, differs, why: &str| idle.push(Idle { option, differs, why: why.to_string() });
    let differs = |number: Option<f64>, usual: f64| number.is_some_and(|number| number != usual);
    let usual_theta = f64::from(ModelConfig::gpt2(1, 1, 1, 1, 1).rope_theta);
    for (option, why) in config.model.family.idle_options() {
        // A run's own file states the angles' base whatever the family.
        add(option, option == "rope-theta" && differs(stated.rope_theta, usual_theta), &why);
    }
    let usual = config.optimizer.usual();
    let [beta1, beta2] = [usual.beta1, usual.beta2].map(shortest);
    if config.optimizer == OptimizerKind::Adafactor {
        add("beta1", differs(stated.beta1, beta1), "adafactor keeps no first moment");
        add("beta2", differs(stated.beta2, beta2), "what adafactor keeps of its second moment follows from the step");
    }
    if config.optimizer == OptimizerKind::Sgd {
        add("beta2", differs(stated.beta2, beta2), "sgd keeps no second moment (beta1 is its momentum)");
    }
    if config.schedule == ScheduleKind::Constant {
        for option in ["min-learning-rate-share", "decay-steps", "decay-time"] {
            add(option, false, "the learning rate of --schedule constant does not fall");
        }
    }
    if config.validation == Validation::Fraction(0.0) {
        add("eval-every", false, "--validation 0 holds nothing out to evaluate");
    }
    if let Some(steps) = config.steps.filter(|&steps| steps < config.watch_curvature) {
        add("watch-curvature", false, &format!("the run ends after {steps} steps, before the first that is measured"));
    }
    if let DeviceChoice::Cuda(_) = config.device {
        add("overlap", false, "ranks on GPUs exchange in turns with what they compute");
    }
    if !config.compress.is_some() {
        let differs = stated.compress_warmup.is_some_and(|steps| steps > 0);
        add("compress-warmup", differs, "gradients are not compressed without --compress");
    }
    if config.local_steps == 0 {
        let outer = [
            ("outer-learning-rate", stated.outer_learning_rate, LocalSteps::USUAL_RATE),
            ("outer-momentum", stated.outer_momentum, LocalSteps::USUAL_MOMENTUM),
        ];
        for (option, number, usual) in outer {
            add(option, differs(number, usual), "there is no outer step without --local-steps");
        }
    }
    idle
}

#[cfg(test)]
mod tests {
    use crate::layers::train_options;
    use crate::resolve::resolve;

    fn problem(line: &str) -> Option<String> {
        let matches = train_options().try_get_matches_from(line.split_whitespace()).unwrap();
        resolve(&matches).err().map(|error| error.to_string())
    }

    #[test]
    fn options_that_cannot_have_an_effect_are_refused() {
        for (line, part) in [
            ("--kv-heads 4", "--kv-heads has no effect: gpt2 has as many heads"),
            ("--rope-theta 10000", "--rope-theta has no effect: gpt2 has no rotary angles (unlike llama, mistral"),
            ("--window 8", "window cannot be chosen: gpt2 has no sliding window (unlike mistral, qwen2, qwen3)"),
            ("--model llama --window 8", "window cannot be chosen: llama has no sliding window"),
            (
                "--model mistral --window 8 --full-layers 1",
                "full-layers cannot be chosen: mistral has the same attention",
            ),
            ("--head-size 8", "head-size cannot be chosen: gpt2 has heads as wide"),
            ("--model qwen2 --attention-bias", "attention-bias cannot be chosen: qwen2 has no choice of biases"),
            ("--optimizer adafactor --beta1 0.9", "--beta1 has no effect: adafactor keeps no first moment"),
            ("--optimizer adafactor --beta2 0.9", "--beta2 has no effect"),
            ("--optimizer sgd --beta2 0.95", "--beta2 has no effect: sgd keeps no second moment"),
            ("--schedule constant --min-learning-rate-share 0.5", "--min-learning-rate-share has no effect"),
            ("--validation 0 --eval-every 5", "--eval-every has no effect"),
            ("--steps 3 --watch-curvature 10", "--watch-curvature has no effect: the run ends after 3 steps"),
            ("--outer-momentum 0.5", "--outer-momentum has no effect: there is no outer step"),
            ("--compress-warmup 5", "--compress-warmup has no effect: gradients are not compressed"),
        ] {
            let text = problem(line).unwrap_or_else(|| panic!("{line} is refused"));
            assert!(text.contains(part) && text.ends_with("leave it out"), "{line}: {text}");
        }
        for line in [
            "--model llama --kv-heads 2 --rope-theta 500000",
            "--model llama --rope-scaling llama3:8,1,4,64 --attention-bias --mlp-bias",
            "--model mistral --window 16 --head-size 48",
            "--model qwen3 --window 16 --full-layers 2 --attention-bias",
            "--optimizer sgd --beta1 0.5 --weight-decay 0.1",
            "--optimizer adafactor --weight-decay 0.1",
            "--optimizer lion --beta1 0.8 --beta2 0.9",
            "--steps 10 --watch-curvature 10",
        ] {
            assert_eq!(problem(line), None, "{line}");
        }
    }

    /// The file that a run leaves states every choice, and can be used as options again.
    #[test]
    fn the_whole_file_of_a_run_is_taken_and_what_it_cannot_mean_is_not() {
        let path = std::env::temp_dir().join(format!("gradus-no-effect-{}.toml", std::process::id()));
        for optimizer in ["adamw", "sgd", "lion", "adafactor", "muon", "soap", "sophia"] {
            let matches = train_options().try_get_matches_from(["--optimizer", optimizer]).unwrap();
            let whole = resolve(&matches).unwrap().config.to_toml();
            std::fs::write(&path, &whole).unwrap();
            assert_eq!(problem(&format!("--config {} --out other-run", path.display())), None, "{optimizer}");
        }
        std::fs::write(&path, "optimizer = 'adafactor'\nbeta2 = 0.5\n").unwrap();
        let text = problem(&format!("--config {}", path.display())).expect("refused");
        assert!(text.starts_with("--beta2 has no effect"), "{text}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_optimizer_has_its_own_defaults() {
        for (optimizer, rate, decay, betas) in [
            ("adamw", 1e-3, 0.1, (0.9, 0.95)),
            ("adafactor", 1e-3, 0.1, (0.9, 0.95)),
            ("lion", 3e-4, 0.3, (0.9, 0.99)),
            ("sgd", 0.3, 0.0003, (0.9, 0.95)),
            ("muon", 8e-3, 0.1, (0.95, 0.95)),
            ("soap", 4e-3, 0.1, (0.95, 0.95)),
            ("sophia", 3e-4, 0.1, (0.96, 0.99)),
        ] {
            let matches = train_options().try_get_matches_from(["--optimizer", optimizer]).unwrap();
            let config = resolve(&matches).unwrap().config;
            assert_eq!((config.learning_rate, config.weight_decay), (rate, decay), "{optimizer}");
            assert_eq!((config.beta1, config.beta2), betas, "{optimizer}");
        }
        let stated = ["--optimizer", "lion", "--learning-rate", "0.01", "--weight-decay", "0", "--beta2", "0.5"];
        let config = resolve(&train_options().try_get_matches_from(stated).unwrap()).unwrap().config;
        assert_eq!((config.learning_rate, config.weight_decay, config.beta2), (0.01, 0.0, 0.5));
    }

    #[test]
    fn tying_alone_means_true() {
        let tied = |line: &str| {
            let matches = train_options().try_get_matches_from(line.split_whitespace()).unwrap();
            resolve(&matches).unwrap().config.model.tie_embeddings
        };
        assert!(tied("--model llama --tie-embeddings") && tied("--model llama --tie-embeddings --layers 2"));
        assert!(
            tied("--model llama --tie-embeddings true") && !tied("--tie-embeddings=false") && !tied("--model llama")
        );
    }
}
