//! A task of memory: what is shown in the first steps of an episode is asked for in its last.

use super::environment::Environment;
use super::random::Pcg64;

/// Boxes with a thing each. They are opened one after another at the beginning; then there is a long stretch in which boxes and
/// things appear that do not count; in the end the agent is asked what is in a box, again and again.
#[derive(Clone, Debug)]
pub struct Recall {
    /// The thing in each box.
    things: [usize; BOXES],
    /// By step, a box and the thing beside it.
    shown: [(usize, usize); STEPS],
    step: usize,
}

const BOXES: usize = 3;
const THINGS: usize = 3;
/// Steps of an episode.
pub const STEPS: usize = 64;
/// Of these, those at the end in which is asked.
const ASKED: usize = 12;

impl Recall {
    pub fn new() -> Recall {
        Recall { things: [0; BOXES], shown: [(0, 0); STEPS], step: 0 }
    }

    fn is_asked(&self) -> bool {
        self.step >= STEPS - ASKED
    }
}

impl Environment for Recall {
    /// The box, the thing, whether it counts, and whether the agent is asked.
    const OBSERVATION: usize = BOXES + THINGS + 2;
    const ACTIONS: usize = THINGS;
    /// It terminates before.
    const LIMIT: u32 = STEPS as u32 + 1;

    fn reset(&mut self, random: &mut Pcg64) {
        self.step = 0;
        self.things = std::array::from_fn(|_| random.below(THINGS));
        self.shown = std::array::from_fn(|_| (random.below(BOXES), random.below(THINGS)));
        let mut order: [usize; BOXES] = std::array::from_fn(|index| index);
        random.shuffle(&mut order);
        for (shown, place) in self.shown.iter_mut().zip(order) {
            *shown = (place, self.things[place]);
        }
    }

    fn step(&mut self, action: usize) -> (f32, bool) {
        let is_right = self.is_asked() && action == self.things[self.shown[self.step].0];
        self.step += 1;
        (if is_right { 1.0 / ASKED as f32 } else { 0.0 }, self.step == STEPS)
    }

    fn observe(&self, seen: &mut [f32]) {
        seen.fill(0.0);
        // After the last step there is nothing to see.
        let Some((place, thing)) = self.shown.get(self.step) else { return };
        seen[*place] = 1.0;
        if self.is_asked() {
            seen[BOXES + THINGS + 1] = 1.0;
        } else {
            seen[BOXES + thing] = 1.0;
            seen[BOXES + THINGS] = if self.step < BOXES { 1.0 } else { 0.0 };
        }
    }
}
