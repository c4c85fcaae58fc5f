//! Proximal policy optimization. One program has three routines over the same weights: `act` decides for all environments at
//! once, `value` judges what they see, and `update` takes a minibatch of what they did. Nothing is allocated by a step.

use super::environment::Environment;
use super::policy::{Acting, Policy};
use super::random::Pcg64;
use super::rollout::{Acted, Rollout};
use super::vector::Vector;
use gradus::backend::Cpu;
use gradus::optimizers::{AdamW, GroupedOptimizer, StepNumbers};
use gradus::train::clipping::{NormStatistics, clip_by_norm};
use gradus::train::{Error, Result};
use gradus::{Clip, DType, Parameters, Program, Routine, Tensor, Trace, gradient};

/// How a policy learns.
#[derive(Clone)]
pub struct Settings {
    /// Environments side by side.
    pub environments: usize,
    /// Steps that each takes before the policy is updated.
    pub steps: usize,
    /// How often each step is learned from.
    pub epochs: usize,
    /// Parts that a rollout is learned from in.
    pub minibatches: usize,
    pub learning_rate: f32,
    /// Steps of all environments over which the learning rate falls to zero.
    pub annealed_over: u64,
    /// What a reward counts for one step earlier.
    pub discount: f32,
    /// How much of what comes later advantages trust rewards rather than values for.
    pub trace: f32,
    /// How far the probability of an action may move in an update, as a share of it.
    pub ratio: f32,
    /// What the losses of values and the entropy of actions count beside the loss of actions.
    pub value_share: f32,
    pub entropy_share: f32,
    /// How gradients are clipped.
    pub clip: Clip,
    pub optimizer: GroupedOptimizer,
    pub seed: u64,
    pub threads: usize,
}

impl Default for Settings {
    /// What single-file implementations usually have, but for the clipping, which is adaptive.
    fn default() -> Settings {
        Settings {
            environments: 4,
            steps: 128,
            epochs: 4,
            minibatches: 4,
            learning_rate: 2.5e-4,
            annealed_over: 500_000,
            discount: 0.99,
            trace: 0.95,
            ratio: 0.2,
            value_share: 0.5,
            entropy_share: 0.01,
            clip: Clip::Adaptive,
            optimizer: AdamW { epsilon: 1e-5, weight_decay: 0.0, ..AdamW::default() }.into(),
            seed: 0,
            threads: 1,
        }
    }
}

impl Settings {
    /// Steps of all environments in a rollout.
    fn rows(&self) -> usize {
        self.environments * self.steps
    }

    fn check(&self, span: usize) -> Result<()> {
        let units = self.rows() / span.max(1);
        if self.steps == 0 || !self.steps.is_multiple_of(span) || self.minibatches == 0 || self.environments == 0 {
            return Err(Error::Config(format!(
                "{} environments of {} steps in {} minibatches: give at least one of each, and steps that are a multiple of {span}",
                self.environments, self.steps, self.minibatches
            )));
        }
        match units.is_multiple_of(self.minibatches) && self.rows() / self.minibatches > 1 {
            true => Ok(()),
            false => Err(Error::Config(format!(
                "{units} parts of a rollout cannot be shared out over {} minibatches; take a divisor, so that each has two steps \
                 or more",
                self.minibatches
            ))),
        }
    }
}

/// An agent that learns.
pub struct Ppo {
    settings: Settings,
    span: usize,
    program: Program,
    rollout: Rollout,
    /// The parts of a rollout, in the order of their minibatches.
    order: Vec<i32>,
    random: Pcg64,
    /// The seed in as many bits as keys of random numbers have.
    key: u32,
    norms: NormStatistics,
    actions: Vec<i32>,
    log_probabilities: Vec<f32>,
    values: Vec<f32>,
    finals: Vec<f32>,
    /// Steps of each environment.
    acted: u64,
    /// The loss of values in the last minibatch.
    pub value_loss: f32,
    /// The norm of gradients in the last minibatch.
    pub gradient_norm: f32,
}

impl Ppo {
    pub fn new(policy: &dyn Policy, observation: usize, settings: Settings) -> Result<Ppo> {
        let span = policy.span();
        settings.check(span)?;
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let (count, rows) = (settings.environments, settings.rows());
        let mut routines = acting(policy, &parameters, [count, observation]);
        routines.push(updating(policy, &parameters, observation, &settings)?);
        let mut program = trace.compile(&Cpu::new(settings.threads)?, &routines)?;
        let mut random = Pcg64::new(settings.seed);
        let key = random.bits() as u32;
        parameters.initialize(&mut program, key)?;
        Ok(Ppo {
            span,
            program,
            rollout: Rollout::new(count, settings.steps, observation),
            order: (0..(rows / span) as i32).collect(),
            random,
            key,
            norms: NormStatistics::default(),
            actions: vec![0; count],
            log_probabilities: vec![0.0; count],
            values: vec![0.0; count],
            finals: vec![0.0; count],
            acted: 0,
            value_loss: 0.0,
            gradient_norm: 0.0,
            settings,
        })
    }

    /// The program with the policy's weights.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What the last rollout held.
    pub fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Steps of all environments that were taken.
    pub fn taken(&self) -> u64 {
        self.acted * self.settings.environments as u64
    }

    /// Takes a rollout and learns from it.
    pub fn learn<E: Environment>(&mut self, vector: &mut Vector<E>) -> Result<()> {
        self.collect(vector)?;
        self.update()
    }

    /// Acts in all environments for the steps of a rollout.
    pub fn collect<E: Environment>(&mut self, vector: &mut Vector<E>) -> Result<()> {
        for step in 0..self.settings.steps {
            self.act(&vector.observations, step)?;
            let (actions, log_probabilities, values) = (&self.actions, &self.log_probabilities, &self.values);
            let observations = &vector.observations;
            self.rollout.act(step, Acted { observations, actions, log_probabilities, values });
            vector.step(&self.actions);
            if vector.truncated.contains(&true) {
                self.value(&vector.finals)?;
            }
            for environment in 0..vector.count() {
                let end = if vector.terminated[environment] { 0.0 } else { self.finals[environment] };
                let end = vector.ended(environment).then_some(end);
                self.rollout.get(step, environment, vector.rewards[environment], end);
            }
        }
        self.value(&vector.observations)?;
        self.rollout.judge(&self.finals, self.settings.discount, self.settings.trace);
        Ok(())
    }

    /// Draws an action for each environment, by the seed and the number of the step alone.
    fn act(&mut self, observations: &[f32], step: usize) -> Result<()> {
        self.program.write("observations", observations)?;
        self.program.write("key", &[self.key, self.acted as u32])?;
        if self.span > 1 {
            self.program.write("place", &[(step % self.span) as i32])?;
        }
        self.program.run("act")?;
        self.program.read_into("actions", &mut self.actions)?;
        self.program.read_into("log_probabilities", &mut self.log_probabilities)?;
        self.program.read_into("values", &mut self.values)?;
        self.acted += 1;
        Ok(())
    }

    /// Judges what is seen. After a whole episode there is nothing to judge.
    fn value(&mut self, observations: &[f32]) -> Result<()> {
        if self.span > 1 {
            self.finals.fill(0.0);
            return Ok(());
        }
        self.program.write("observations", observations)?;
        self.program.run("value")?;
        Ok(self.program.read_into("values", &mut self.finals)?)
    }

    /// Learns from the rollout.
    pub fn update(&mut self) -> Result<()> {
        self.program.write("rollout.observations", &self.rollout.observations)?;
        self.program.write("rollout.actions", &self.rollout.actions)?;
        self.program.write("rollout.log_probabilities", &self.rollout.log_probabilities)?;
        self.program.write("rollout.values", &self.rollout.values)?;
        self.program.write("rollout.advantages", &self.rollout.advantages)?;
        self.program.write("rollout.returns", &self.rollout.returns)?;
        let begun = (self.taken() - self.settings.rows() as u64) as f32;
        let left = (1.0 - begun / self.settings.annealed_over as f32).max(0.0);
        self.program.write("learning_rate", &[self.settings.learning_rate * left])?;
        for _ in 0..self.settings.epochs {
            self.random.shuffle(&mut self.order);
            for chosen in self.order.chunks_exact(self.order.len() / self.settings.minibatches) {
                self.program.write("chosen", chosen)?;
                self.program.write("clip_norm", &[self.norms.threshold(self.settings.clip)])?;
                self.program.run("update")?;
                self.gradient_norm = self.program.scalar("gradient_norm")?;
                self.norms.observe(self.gradient_norm, self.settings.clip);
            }
        }
        self.value_loss = self.program.scalar("value_loss")?;
        Ok(())
    }
}

/// The routines that decide and judge, for observations of this shape.
fn acting(policy: &dyn Policy, parameters: &Parameters, shape: [usize; 2]) -> Vec<Routine> {
    let trace = parameters.trace();
    let observations = trace.input("observations", DType::F32, shape).check_finite("the observations");
    let (key, place) = (trace.input("key", DType::U32, [2]), trace.input("place", DType::I32, [1]));
    let Acting { logits, values, remembered } = policy.act(parameters, &observations, &place);
    let actions = logits.random_categorical(&key, 0); // [n]
    let log_probabilities = picked(&logits.log_softmax(-1), &actions); // [n]
    let act = Routine::new("act").output("actions", &actions).output("log_probabilities", &log_probabilities);
    let act = remembered.iter().fold(act.output("values", &values), |act, (state, new)| act.assign(state, new));
    let value = Routine::new("value").output("values", &values);
    if policy.span() > 1 { vec![act] } else { vec![act, value] }
}

/// Of each row of numbers [..., actions], that of the action taken.
fn picked(numbers: &Tensor, actions: &Tensor) -> Tensor {
    numbers.gather(-1, &actions.unsqueeze(-1)).squeeze(-1)
}

/// The routine that learns from a minibatch.
fn updating(policy: &dyn Policy, parameters: &Parameters, observation: usize, settings: &Settings) -> Result<Routine> {
    let (trace, span) = (parameters.trace(), policy.span());
    let units = settings.rows() / span;
    let chosen = trace.input("chosen", DType::I32, [units / settings.minibatches]);
    let field = |name: &str, dtype: DType, shape: &[usize]| {
        let shape = [&[units, span], shape].concat();
        trace.input(&format!("rollout.{name}"), dtype, shape).index_select(0, &chosen) // [b, t, ...]
    };
    let number = |name: &str| field(name, DType::F32, &[]);
    let actions = field("actions", DType::I32, &[]);
    let (logits, values) = policy.evaluate(parameters, &field("observations", DType::F32, &[observation]));
    let log_probabilities = logits.log_softmax(-1); // [b, t, actions]
    let entropy = -(log_probabilities.exp() * &log_probabilities).sum(&[-1]).mean_all();

    let ratio = (picked(&log_probabilities, &actions) - number("log_probabilities")).exp(); // [b, t]
    let drift = (&ratio - 1.0).abs().mean_all();
    let advantages = number("advantages");
    let spread = advantages.standard_deviation(&advantages.all_axes()) + 1e-8;
    let advantages = (&advantages - advantages.mean_all()) / spread;
    let within = ratio.clamp(1.0 - settings.ratio, 1.0 + settings.ratio);
    let action_loss = -(&advantages * &ratio).minimum(&(&advantages * within)).mean_all();

    let (before, returns) = (number("values"), number("returns"));
    let near = &before + (&values - &before).clamp(-settings.ratio, settings.ratio);
    let [free, held] = [values, near].map(|values| {
        let error = values - &returns;
        &error * &error
    });
    let value_loss = free.maximum(&held).mean_all() * 0.5;

    let loss = action_loss + &value_loss * settings.value_share - &entropy * settings.entropy_share;
    let weights = parameters.tensors();
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let norm = Tensor::global_norm(&gradients.iter().collect::<Vec<_>>()).check_finite("the gradient norm");
    let scale = clip_by_norm(&norm, &trace.input("clip_norm", DType::F32, []));
    // One, but only once the norm is known to be finite: so no weight is updated before that.
    let one = &norm * 0.0 + 1.0;
    let numbers = StepNumbers { learning_rate: trace.input("learning_rate", DType::F32, []), scale, one };
    let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
    let named = names.iter().map(|name| &name[..]).zip(&weights);
    let update = Routine::new("update").output("value_loss", &value_loss).output("entropy", &entropy);
    let update = update.output("drift", &drift).output("gradient_norm", &norm).times_per_step(1);
    Ok(settings.optimizer.update(update, named, &gradients, &numbers))
}
