//! Steps that were taken, to be learned from again and again.

use super::random::Pcg64;

/// The last so many steps. What is seen is kept in a byte a pixel.
pub struct Replay {
    capacity: usize,
    observation: usize,
    observations: Vec<u8>,
    next: Vec<u8>,
    actions: Vec<i32>,
    rewards: Vec<f32>,
    /// 1 where there is nothing to expect after the step: an episode that was truncated would have gone on.
    terminated: Vec<f32>,
    added: usize,
}

/// What an environment saw, did and got in a step.
pub struct Taken<'a> {
    pub observation: &'a [f32],
    pub action: i32,
    pub reward: f32,
    pub next: &'a [f32],
    pub terminated: bool,
}

/// Steps that were drawn, one after another.
pub struct Drawn {
    pub observations: Vec<f32>,
    pub next: Vec<f32>,
    pub actions: Vec<i32>,
    pub rewards: Vec<f32>,
    pub terminated: Vec<f32>,
}

impl Drawn {
    pub fn new(rows: usize, observation: usize) -> Drawn {
        let numbers = |count: usize| vec![0.0; count];
        Drawn {
            observations: numbers(rows * observation),
            next: numbers(rows * observation),
            actions: vec![0; rows],
            rewards: numbers(rows),
            terminated: numbers(rows),
        }
    }
}

impl Replay {
    pub fn new(capacity: usize, observation: usize) -> Replay {
        Replay {
            capacity,
            observation,
            observations: vec![0; capacity * observation],
            next: vec![0; capacity * observation],
            actions: vec![0; capacity],
            rewards: vec![0.0; capacity],
            terminated: vec![0.0; capacity],
            added: 0,
        }
    }

    /// Steps that can be drawn.
    pub fn len(&self) -> usize {
        self.added.min(self.capacity)
    }

    /// Keeps a step, over the oldest if there is no room.
    pub fn add(&mut self, taken: &Taken<'_>) {
        let row = self.added % self.capacity;
        let place = row * self.observation..(row + 1) * self.observation;
        for (kept, seen) in [(&mut self.observations, taken.observation), (&mut self.next, taken.next)] {
            kept[place.clone()].iter_mut().zip(seen).for_each(|(kept, &seen)| *kept = (255.0 * seen) as u8);
        }
        self.actions[row] = taken.action;
        self.rewards[row] = taken.reward;
        self.terminated[row] = if taken.terminated { 1.0 } else { 0.0 };
        self.added += 1;
    }

    /// Draws as many steps as there is room for, any of them more than once.
    pub fn draw(&self, random: &mut Pcg64, drawn: &mut Drawn) {
        let width = self.observation;
        for to in 0..drawn.actions.len() {
            let from = random.below(self.len());
            for (drawn, kept) in [(&mut drawn.observations, &self.observations), (&mut drawn.next, &self.next)] {
                let kept = &kept[from * width..(from + 1) * width];
                let drawn = &mut drawn[to * width..(to + 1) * width];
                drawn.iter_mut().zip(kept).for_each(|(drawn, &kept)| *drawn = kept as f32 / 255.0);
            }
            drawn.actions[to] = self.actions[from];
            drawn.rewards[to] = self.rewards[from];
            drawn.terminated[to] = self.terminated[from];
        }
    }
}
