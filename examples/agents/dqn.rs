//! Deep Q-learning, with a replay and a second network that follows the first now and then. One program: `act` decides for all
//! environments, `learn` takes a minibatch of the replay, `follow` copies the weights. Nothing is allocated by a step.

use super::environment::Environment;
use super::maze::{COLOURS, SIZE};
use super::random::Pcg64;
use super::replay::{Drawn, Replay, Taken};
use super::vector::Vector;
use gradus::backend::Cpu;
use gradus::layers::{Conv2d, Linear};
use gradus::ops::Conv2dOptions;
use gradus::optimizers::{AdamW, GroupedOptimizer, StepNumbers};
use gradus::train::clipping::{NormStatistics, clip_by_norm};
use gradus::train::{Error, Result};
use gradus::{Clip, DType, Parameters, Program, Routine, Tensor, Trace, gradient};

/// How values of actions are learned.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Environments side by side.
    pub environments: usize,
    /// Steps that are kept.
    pub capacity: usize,
    /// Steps of all environments before anything is learned.
    pub watched: u64,
    /// Steps of a minibatch; one is taken for every step of the environments.
    pub minibatch: usize,
    /// Minibatches after which the second network follows.
    pub followed_every: u64,
    pub learning_rate: f32,
    /// What a reward counts for one step earlier.
    pub discount: f32,
    /// The share of actions that are any, and the steps of all environments over which it falls to the least one.
    pub explored: f32,
    pub explored_over: u64,
    pub clip: Clip,
    pub seed: u64,
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            environments: 8,
            capacity: 20_000,
            watched: 1_000,
            minibatch: 32,
            followed_every: 100,
            learning_rate: 1e-3,
            discount: 0.97,
            explored: 0.02,
            explored_over: 15_000,
            clip: Clip::Adaptive,
            seed: 0,
            threads: 1,
        }
    }
}

/// Values of actions [b, actions] for pictures [b, pixels].
fn values(parameters: &Parameters, pictures: &Tensor, actions: usize) -> Tensor {
    let x = pictures.reshape([pictures.size(0), COLOURS, SIZE, SIZE]);
    let halved = Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::default() };
    let x = Conv2d::new(&parameters.within("near"), COLOURS, 16, [3, 3], halved).forward(&x).relu(); // [b, 16, 5, 5]
    let x = Conv2d::new(&parameters.within("far"), 16, 32, [3, 3], halved).forward(&x).relu(); // [b, 32, 3, 3]
    let x = x.flatten(1); // [b, 288]
    let x = Linear::new(&parameters.within("hidden"), x.size(-1), 64).forward(&x).relu(); // [b, 64]
    Linear::new(&parameters.within("last"), 64, actions).forward(&x)
}

/// An agent that learns what actions are worth.
pub struct Dqn {
    settings: Settings,
    program: Program,
    replay: Replay,
    drawn: Drawn,
    random: Pcg64,
    /// The seed in as many bits as keys of random numbers have.
    key: u32,
    norms: NormStatistics,
    actions: Vec<i32>,
    before: Vec<f32>,
    /// Steps of each environment, and minibatches.
    acted: u64,
    learned: u64,
}

impl Dqn {
    pub fn new<E: Environment>(settings: Settings) -> Result<Dqn> {
        if [settings.environments, settings.capacity, settings.minibatch].contains(&0) || settings.followed_every == 0 {
            return Err(Error::Config(
                "an agent has at least one environment, and one of each step it keeps and takes".into(),
            ));
        }
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        let [ours, theirs] = ["learned", "followed"].map(|name| parameters.within(name));
        let [count, rows] = [settings.environments, settings.minibatch];
        let act = acting::<E>(&ours, count);
        let learn = learning::<E>(&ours, &theirs, rows, settings.discount)?;
        let follow = following(&parameters);
        let mut program = trace.compile(&Cpu::new(settings.threads)?, &[act, learn.times_per_step(1), follow])?;
        let mut random = Pcg64::new(settings.seed);
        let key = random.bits() as u32;
        parameters.initialize(&mut program, key)?;
        program.run("follow")?;
        Ok(Dqn {
            program,
            replay: Replay::new(settings.capacity, E::OBSERVATION),
            drawn: Drawn::new(rows, E::OBSERVATION),
            random,
            key,
            norms: NormStatistics::default(),
            actions: vec![0; count],
            before: vec![0.0; count * E::OBSERVATION],
            acted: 0,
            learned: 0,
            settings,
        })
    }

    /// Steps of all environments that were taken.
    pub fn taken(&self) -> u64 {
        self.acted * self.settings.environments as u64
    }

    /// Takes a step of all environments and learns from a minibatch.
    pub fn learn<E: Environment>(&mut self, vector: &mut Vector<E>) -> Result<()> {
        self.act(vector)?;
        if self.taken() < self.settings.watched {
            return Ok(());
        }
        self.replay.draw(&mut self.random, &mut self.drawn);
        self.program.write("drawn.observations", &self.drawn.observations)?;
        self.program.write("drawn.next", &self.drawn.next)?;
        self.program.write("drawn.actions", &self.drawn.actions)?;
        self.program.write("drawn.rewards", &self.drawn.rewards)?;
        self.program.write("drawn.terminated", &self.drawn.terminated)?;
        self.program.write("learning_rate", &[self.settings.learning_rate])?;
        self.program.write("clip_norm", &[self.norms.threshold(self.settings.clip)])?;
        self.program.run("learn")?;
        self.norms.observe(self.program.scalar("gradient_norm")?, self.settings.clip);
        self.learned += 1;
        if self.learned.is_multiple_of(self.settings.followed_every) {
            self.program.run("follow")?;
        }
        Ok(())
    }

    /// Takes a step of all environments and keeps it.
    fn act<E: Environment>(&mut self, vector: &mut Vector<E>) -> Result<()> {
        let least = self.settings.explored;
        let explored = (1.0 - self.taken() as f32 / self.settings.explored_over as f32).max(least);
        self.program.write("observations", &vector.observations)?;
        self.program.write("explored", &[explored])?;
        self.program.write("key", &[self.key, self.acted as u32])?;
        self.program.run("act")?;
        self.program.read_into("actions", &mut self.actions)?;
        self.before.copy_from_slice(&vector.observations);
        vector.step(&self.actions);
        for index in 0..vector.count() {
            let place = index * E::OBSERVATION..(index + 1) * E::OBSERVATION;
            let after = if vector.ended(index) { &vector.finals } else { &vector.observations };
            self.replay.add(&Taken {
                observation: &self.before[place.clone()],
                action: self.actions[index],
                reward: vector.rewards[index],
                next: &after[place],
                terminated: vector.terminated[index],
            });
        }
        self.acted += 1;
        Ok(())
    }
}

/// The best action of each environment, or now and then any.
fn acting<E: Environment>(parameters: &Parameters, count: usize) -> Routine {
    let trace = parameters.trace();
    let observations = trace.input("observations", DType::F32, [count, E::OBSERVATION]);
    let (key, explored) = (trace.input("key", DType::U32, [2]), trace.input("explored", DType::F32, []));
    let best = values(parameters, &observations.check_finite("the observations"), E::ACTIONS).argmax(-1); // [n]
    let any = (key.random_uniform(0, [count]) * E::ACTIONS as f32).cast(DType::I32); // [n]
    let explores = key.random_uniform(1, [count]).less(&explored).cast(DType::I32); // [n]
    let actions = &explores * any + (explores.ones_like() - &explores) * best;
    Routine::new("act").output("actions", &actions)
}

/// What the network that learns says is best, the one that follows says the worth of.
fn learning<E: Environment>(ours: &Parameters, theirs: &Parameters, rows: usize, discount: f32) -> Result<Routine> {
    let trace = ours.trace();
    let field = |name: &str, dtype: DType, shape: &[usize]| {
        trace.input(&format!("drawn.{name}"), dtype, [&[rows], shape].concat())
    };
    let [now, next] = ["observations", "next"].map(|name| field(name, DType::F32, &[E::OBSERVATION]));
    let [rewards, terminated] = ["rewards", "terminated"].map(|name| field(name, DType::F32, &[]));
    let picked = |values: &Tensor, actions: &Tensor| values.gather(-1, &actions.unsqueeze(-1)).squeeze(-1);
    let worth = picked(&values(ours, &now, E::ACTIONS), &field("actions", DType::I32, &[])); // [b]
    let best = values(ours, &next, E::ACTIONS).argmax(-1); // [b]
    let later = picked(&values(theirs, &next, E::ACTIONS), &best); // [b]
    let goal = rewards + later * (1.0 - terminated) * discount;
    let error = (worth - goal).abs();
    // Squared where it is small, straight beyond.
    let small = error.minimum(&error.ones_like());
    let loss = (&small * (&error - &small * 0.5)).mean_all();

    let is_ours = |name: &str| name.starts_with("learned.");
    let all = ours.list().into_iter().map(|parameter| parameter.name).zip(ours.tensors());
    let (names, weights): (Vec<String>, Vec<Tensor>) = all.filter(|(name, _)| is_ours(name)).unzip();
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let norm = Tensor::global_norm(&gradients.iter().collect::<Vec<_>>()).check_finite("the gradient norm");
    let scale = clip_by_norm(&norm, &trace.input("clip_norm", DType::F32, []));
    let one = &norm * 0.0 + 1.0;
    let numbers = StepNumbers { learning_rate: trace.input("learning_rate", DType::F32, []), scale, one };
    let adam = GroupedOptimizer::new(AdamW { weight_decay: 0.0, ..AdamW::default() });
    let learn = Routine::new("learn").output("loss", &loss).output("gradient_norm", &norm);
    Ok(adam.update(learn, names.iter().map(|name| &name[..]).zip(&weights), &gradients, &numbers))
}

/// Copies every weight that learns to the one that follows it.
fn following(parameters: &Parameters) -> Routine {
    let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
    let weights = parameters.tensors();
    let mut follow = Routine::new("follow");
    for (name, weight) in names.iter().zip(&weights) {
        let Some(rest) = name.strip_prefix("learned.") else { continue };
        let place = names.iter().position(|other| other.strip_prefix("followed.") == Some(rest));
        follow = follow.assign(&weights[place.expect("the same network twice")], weight);
    }
    follow
}
