//! The agents of the examples: their environments beside Gymnasium's, what a step allocates, the same bits on any number of threads,
//! and what clipping does for a task that is out of hand.
//!
//! A program of its own, not one of the test harness, for the same reason as `no_allocation`.

mod support;

#[path = "../examples/agents/mod.rs"]
mod agents;

use agents::acrobot::Acrobot;
use agents::attention::Attention;
use agents::cartpole::CartPole;
use agents::dqn::{self, Dqn};
use agents::environment::Environment;
use agents::maze::Maze;
use agents::policy::Perceptron;
use agents::ppo::{Ppo, Settings};
use agents::random::Pcg64;
use agents::recall::{self, Recall};
use agents::rollout::{Acted, Rollout};
use agents::vector::Vector;
use gradus::optimizers::Sgd;
use gradus::train::Result;
use gradus::{Clip, Program};
use support::counting::{Counting, count, counted};
use support::fixture::Fixture;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every step of the fixture, from the same seed and without being set right between: observations, rewards, and how episodes end.
fn steps_are_those_of_gymnasium<E: Environment>(name: &str, make: fn() -> E) {
    let fixture = Fixture::open("agents");
    let numbers = |kind: &str| fixture.array(&format!("{name}/{kind}")).to_f64();
    let (actions, observations, rewards, ends) =
        (numbers("actions"), numbers("observations"), numbers("rewards"), numbers("ends"));
    assert!(actions.len() >= 10_000 && [1.0, 2.0].iter().all(|end| ends.contains(end)));
    let mut vector = Vector::new(1, 7, make);
    for (step, expected) in observations.chunks(E::OBSERVATION).enumerate() {
        vector.step(&[actions[step] as i32]);
        let end = if vector.terminated[0] {
            1.0
        } else if vector.truncated[0] {
            2.0
        } else {
            0.0
        };
        assert_eq!((vector.rewards[0] as f64, end), (rewards[step], ends[step]), "{name}, step {step}");
        let seen = if vector.ended(0) { &vector.finals } else { &vector.observations };
        for (seen, expected) in seen.iter().zip(expected) {
            assert!(
                (*seen as f64 - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{name}, step {step}: {seen} {expected}"
            );
        }
    }
}

/// Environments of a vector are seeded one after another, and draw what NumPy draws.
fn seeds_are_those_of_gymnasium() {
    // numpy.random.default_rng(seed).random() for 0, 1 and 2**40 + 5.
    for (seed, first) in [(0, 0.6369616873214543), (1, 0.5118216247002567), ((1 << 40) + 5, 0.004739459374490829)] {
        assert_eq!(Pcg64::new(seed).uniform(0.0, 1.0), first, "seed {seed}");
    }
    let both = Vector::new(2, 5, CartPole::default);
    let second = Vector::new(1, 6, CartPole::default);
    assert_eq!(both.observations[4..], second.observations[..]);
    assert_ne!(both.observations[..4], second.observations[..]);
}

/// By hand: a terminated episode is worth nothing after its end, a truncated one what its last observation is worth.
fn advantages_tell_ends_apart() {
    let judged = |end: Option<f32>| {
        let mut rollout = Rollout::new(1, 2, 1);
        for (step, end) in [(0, end), (1, None)] {
            rollout.act(step, Acted { observations: &[0.0], actions: &[0], log_probabilities: &[0.0], values: &[2.0] });
            rollout.get(step, 0, 1.0, end);
        }
        rollout.judge(&[4.0], 0.5, 0.5);
        rollout.advantages
    };
    // The second step: 1 + 0.5 * 4 - 2 = 1. The first: 1 + 0.5 * (what comes) - 2, and a quarter of the second if it goes on.
    assert_eq!(judged(None), [0.25, 1.0]);
    assert_eq!(judged(Some(0.0)), [-1.0, 1.0]);
    assert_eq!(judged(Some(10.0)), [4.0, 1.0]);
}

fn small() -> Settings {
    Settings { environments: 3, steps: 16, epochs: 2, minibatches: 2, seed: 11, ..Settings::default() }
}

fn perceptron<E: Environment>(settings: &Settings) -> Ppo {
    let policy = Perceptron { width: 16, actions: E::ACTIONS };
    Ppo::new(&policy, E::OBSERVATION, settings.clone()).unwrap()
}

fn attention(settings: &Settings) -> Ppo {
    let policy = Attention { width: 16, heads: 2, steps: recall::STEPS, actions: Recall::ACTIONS };
    let settings = Settings { environments: 4, steps: recall::STEPS, ..settings.clone() };
    Ppo::new(&policy, Recall::OBSERVATION, settings).unwrap()
}

/// Rollouts and updates after the first, with episodes that end in both ways.
fn a_step_allocates_nothing() {
    for threads in [1, 3] {
        let settings = Settings { threads, ..small() };
        let mut agent = perceptron::<CartPole>(&settings);
        let mut vector = Vector::new(3, 11, CartPole::default);
        let mut looking_back = attention(&settings);
        let mut episodes = Vector::new(4, 11, Recall::new);
        let maze = Maze::new(11);
        let mut mazes = Vector::new(8, 11, || maze.clone());
        let mut dqn = Dqn::new::<Maze>(dqn::Settings { watched: 8, threads, ..dqn::Settings::default() }).unwrap();
        for turn in 0..12 {
            count(turn > 0);
            agent.learn(&mut vector).unwrap();
            looking_back.learn(&mut episodes).unwrap();
            (0..20).for_each(|_| dqn.learn(&mut mazes).unwrap());
        }
        assert_eq!(counted(), (0, 0), "calls after the first turn on {threads} threads");
        assert!(vector.episodes.count > 0 && mazes.episodes.count > 0 && episodes.episodes.count == 48);
    }
}

fn weights(program: &Program) -> Vec<u8> {
    let names: Vec<String> = program.states().map(|(name, ..)| name.to_string()).collect();
    names.iter().flat_map(|name| program.bytes(&name[..]).unwrap().to_vec()).collect()
}

/// The same weights for a seed on any number of threads, and others for another.
fn a_seed_is_a_run() {
    let trained = |seed: u64, threads: usize| {
        let mut agent = perceptron::<CartPole>(&Settings { seed, threads, ..small() });
        let mut vector = Vector::new(3, seed, CartPole::default);
        (0..5).for_each(|_| agent.learn(&mut vector).unwrap());
        weights(agent.program())
    };
    let once = trained(u64::MAX, 1);
    assert!([2, 3].iter().all(|threads| trained(u64::MAX, *threads) == once));
    assert!(trained(u64::MAX - 1, 1) != once && trained(u32::MAX as u64, 1) != once);
}

/// What a policy with a cache says step by step is what it says of the whole episode: so the first update of a rollout finds
/// probabilities that have not moved, and its minibatches are all that moves them.
fn a_cache_gives_what_whole_episodes_give() {
    let mut agent = attention(&Settings { learning_rate: 0.0, ..small() });
    let mut vector = Vector::new(4, 3, Recall::new);
    agent.learn(&mut vector).unwrap();
    let drift = agent.program().scalar("drift").unwrap();
    assert!(drift < 1e-5, "{drift}");
}

/// Sees what is not a number after a few steps.
#[derive(Default)]
struct Broken(CartPole, u32);

impl Environment for Broken {
    const OBSERVATION: usize = 4;
    const ACTIONS: usize = 2;
    const LIMIT: u32 = 500;

    fn reset(&mut self, random: &mut Pcg64) {
        self.0.reset(random);
    }

    fn step(&mut self, action: usize) -> (f32, bool) {
        self.1 += 1;
        self.0.step(action)
    }

    fn observe(&self, seen: &mut [f32]) {
        self.0.observe(seen);
        seen[2] = if self.1 == 5 { f32::NAN } else { seen[2] };
    }
}

fn what_is_not_a_number_is_refused() {
    let mut agent = perceptron::<Broken>(&small());
    let before = weights(agent.program());
    let error = agent.learn(&mut Vector::new(3, 0, Broken::default)).unwrap_err().to_string();
    assert!(error.contains("the observations"), "{error}");
    assert_eq!(weights(agent.program()), before);
}

fn settings_that_do_not_fit_are_refused() {
    let refused = |settings: Settings| {
        let policy = Perceptron { width: 4, actions: 2 };
        Ppo::new(&policy, 4, settings).err().expect("settings that do not fit").to_string()
    };
    assert!(refused(Settings { minibatches: 5, ..small() }).contains("divisor"));
    assert!(refused(Settings { minibatches: 48, ..small() }).contains("two steps"));
    for settings in [Settings { environments: 0, ..small() }, Settings { steps: 0, ..small() }] {
        assert!(refused(settings).contains("at least one"));
    }
    assert!(Dqn::new::<Maze>(dqn::Settings { environments: 0, ..dqn::Settings::default() }).is_err());
    // One environment is enough.
    let mut agent = perceptron::<Acrobot>(&Settings { environments: 1, ..small() });
    agent.learn(&mut Vector::new(1, 0, Acrobot::default)).unwrap();
}

/// A pole on a cart, whose rewards are now and then a million times too large.
#[derive(Default)]
struct Spiked(CartPole, u32);

impl Environment for Spiked {
    const OBSERVATION: usize = 4;
    const ACTIONS: usize = 2;
    const LIMIT: u32 = 500;

    fn reset(&mut self, random: &mut Pcg64) {
        self.0.reset(random);
    }

    fn step(&mut self, action: usize) -> (f32, bool) {
        self.1 += 1;
        let (reward, terminated) = self.0.step(action);
        (if self.1.is_multiple_of(997) { 1e6 * reward } else { reward }, terminated)
    }

    fn observe(&self, seen: &mut [f32]) {
        self.0.observe(seen);
    }
}

/// Learns a task whose gradients burst; the loss of values at the end.
fn out_of_hand(clip: Clip) -> Result<f32> {
    let optimizer = Sgd { momentum: 0.9, ..Sgd::default() }.into();
    let settings = Settings { clip, optimizer, learning_rate: 1e-3, environments: 4, steps: 64, ..small() };
    let mut agent = perceptron::<Spiked>(&settings);
    let mut vector = Vector::new(4, 1, Spiked::default);
    for _ in 0..150 {
        agent.learn(&mut vector)?;
    }
    Ok(agent.value_loss)
}

fn adaptive_clipping_holds_what_diverges_without() {
    let without = out_of_hand(Clip::None);
    let with = out_of_hand(Clip::Adaptive);
    println!("value loss without clipping {without:?}, with adaptive clipping {with:?}");
    assert!(without.is_err() || without.is_ok_and(|loss| loss > 1e6));
    assert!(with.unwrap() < 1e3);
}

fn main() {
    steps_are_those_of_gymnasium("CartPole-v1", CartPole::default);
    steps_are_those_of_gymnasium("Acrobot-v1", Acrobot::default);
    seeds_are_those_of_gymnasium();
    advantages_tell_ends_apart();
    a_step_allocates_nothing();
    a_seed_is_a_run();
    a_cache_gives_what_whole_episodes_give();
    what_is_not_a_number_is_refused();
    settings_that_do_not_fit_are_refused();
    adaptive_clipping_holds_what_diverges_without();
    println!("agents: ok");
}
