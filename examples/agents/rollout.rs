//! What was seen, done and got in some steps of all environments, and what follows from it for each step.

/// Steps of every environment: those of the first one after another, then those of the next.
pub struct Rollout {
    steps: usize,
    observation: usize,
    pub observations: Vec<f32>,
    pub actions: Vec<i32>,
    /// Logarithms of the probabilities that the actions had.
    pub log_probabilities: Vec<f32>,
    pub values: Vec<f32>,
    /// How much better an action was than what was expected.
    pub advantages: Vec<f32>,
    /// What values are to become.
    pub returns: Vec<f32>,
    rewards: Vec<f32>,
    /// The value of what came after, where the episode ended: 0 if it terminated, and that of its last observation if it was
    /// truncated. `None`: it goes on.
    ends: Vec<Option<f32>>,
}

/// What an agent saw and did in one step of all environments.
pub struct Acted<'a> {
    pub observations: &'a [f32],
    pub actions: &'a [i32],
    pub log_probabilities: &'a [f32],
    pub values: &'a [f32],
}

impl Rollout {
    pub fn new(environments: usize, steps: usize, observation: usize) -> Rollout {
        let (rows, zeros) = (environments * steps, || vec![0.0; environments * steps]);
        Rollout {
            steps,
            observation,
            observations: vec![0.0; rows * observation],
            actions: vec![0; rows],
            log_probabilities: zeros(),
            values: zeros(),
            advantages: zeros(),
            returns: zeros(),
            rewards: zeros(),
            ends: vec![None; rows],
        }
    }

    /// Keeps what was done in a step, before what comes of it is known.
    pub fn act(&mut self, step: usize, acted: Acted<'_>) {
        let width = self.observation;
        for (environment, seen) in acted.observations.chunks_exact(width).enumerate() {
            let row = environment * self.steps + step;
            self.observations[row * width..(row + 1) * width].copy_from_slice(seen);
            self.actions[row] = acted.actions[environment];
            self.log_probabilities[row] = acted.log_probabilities[environment];
            self.values[row] = acted.values[environment];
        }
    }

    /// Keeps what came of a step in an environment, and the value of what would have come after, if its episode ended.
    pub fn get(&mut self, step: usize, environment: usize, reward: f32, end: Option<f32>) {
        let row = environment * self.steps + step;
        (self.rewards[row], self.ends[row]) = (reward, end);
    }

    /// Generalised advantages: sums of what each later step of the episode got beyond its value, discounted, each the less by
    /// `trace` the later it is. `next` are the values of what environments see after the last step.
    pub fn judge(&mut self, next: &[f32], discount: f32, trace: f32) {
        for (environment, &next) in next.iter().enumerate() {
            let (mut advantage, mut next) = (0.0, next);
            for row in (environment * self.steps..(environment + 1) * self.steps).rev() {
                if let Some(end) = self.ends[row] {
                    (advantage, next) = (0.0, end);
                }
                advantage = self.rewards[row] + discount * next - self.values[row] + discount * trace * advantage;
                self.advantages[row] = advantage;
                self.returns[row] = advantage + self.values[row];
                next = self.values[row];
            }
        }
    }
}
