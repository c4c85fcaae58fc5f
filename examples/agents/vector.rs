//! Environments side by side, stepped together.

use super::environment::Environment;
use super::random::Pcg64;

/// Environments whose episodes begin anew in the step that ends them, as Gymnasium's vectors do in `SAME_STEP` mode: what is
/// seen then is the first of the next episode, and the last of the one that ended stands in `finals`.
pub struct Vector<E> {
    environments: Vec<E>,
    /// Each its own, seeded by its number on from the seed.
    random: Vec<Pcg64>,
    /// What each sees: [environments, numbers].
    pub observations: Vec<f32>,
    /// What each saw last in the episode that the last step ended; of others nothing that counts.
    pub finals: Vec<f32>,
    /// Rewards of the last step.
    pub rewards: Vec<f32>,
    /// Whether the last step terminated an episode.
    pub terminated: Vec<bool>,
    /// Whether it truncated one, which did not terminate.
    pub truncated: Vec<bool>,
    /// Return and length of the episodes that go on.
    running: Vec<(f32, u32)>,
    /// Episodes that ended.
    pub episodes: Episodes,
}

/// The last hundred returns.
#[derive(Clone, Debug)]
pub struct Episodes {
    returns: [f32; Episodes::KEPT],
    /// How many ended.
    pub count: usize,
}

impl Episodes {
    const KEPT: usize = 100;

    fn add(&mut self, total: f32) {
        self.returns[self.count % Episodes::KEPT] = total;
        self.count += 1;
    }

    /// The mean of the last hundred returns, or of those that there are.
    pub fn mean(&self) -> Option<f32> {
        let kept = &self.returns[..self.count.min(Episodes::KEPT)];
        (!kept.is_empty()).then(|| kept.iter().sum::<f32>() / kept.len() as f32)
    }

    /// Whether a hundred episodes have this mean at least.
    pub fn reach(&self, goal: f32) -> bool {
        self.count >= Episodes::KEPT && self.mean().is_some_and(|mean| mean >= goal)
    }
}

impl<E: Environment> Vector<E> {
    /// So many environments, each at the beginning of an episode.
    pub fn new(count: usize, seed: u64, make: impl Fn() -> E) -> Vector<E> {
        let numbers = count * E::OBSERVATION;
        let mut vector = Vector {
            environments: (0..count).map(|_| make()).collect(),
            random: (0..count).map(|index| Pcg64::new(seed.wrapping_add(index as u64))).collect(),
            observations: vec![0.0; numbers],
            finals: vec![0.0; numbers],
            rewards: vec![0.0; count],
            terminated: vec![false; count],
            truncated: vec![false; count],
            running: vec![(0.0, 0); count],
            episodes: Episodes { returns: [0.0; Episodes::KEPT], count: 0 },
        };
        for index in 0..count {
            vector.environments[index].reset(&mut vector.random[index]);
            vector.environments[index].observe(&mut vector.observations[place::<E>(index)]);
        }
        vector
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.environments.len()
    }

    /// Whether the last step ended an episode of this environment.
    pub fn ended(&self, index: usize) -> bool {
        self.terminated[index] || self.truncated[index]
    }

    /// Takes an action in each.
    pub fn step(&mut self, actions: &[i32]) {
        for (index, &action) in actions.iter().enumerate() {
            let environment = &mut self.environments[index];
            let (reward, terminated) = environment.step(action as usize);
            let (total, length) = &mut self.running[index];
            *total += reward;
            *length += 1;
            self.rewards[index] = reward;
            self.terminated[index] = terminated;
            self.truncated[index] = !terminated && *length >= E::LIMIT;
            if terminated || self.truncated[index] {
                self.episodes.add(*total);
                self.running[index] = (0.0, 0);
                environment.observe(&mut self.finals[place::<E>(index)]);
                environment.reset(&mut self.random[index]);
            }
            environment.observe(&mut self.observations[place::<E>(index)]);
        }
    }
}

/// Where the numbers of an environment stand.
fn place<E: Environment>(index: usize) -> std::ops::Range<usize> {
    index * E::OBSERVATION..(index + 1) * E::OBSERVATION
}
