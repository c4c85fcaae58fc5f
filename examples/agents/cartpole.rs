//! A cart that is pushed left or right so that the pole on it stays up: Gymnasium's CartPole-v1.

use super::environment::Environment;
use super::random::Pcg64;

/// Position, velocity, angle and angular velocity.
#[derive(Clone, Debug, Default)]
pub struct CartPole([f64; 4]);

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half of the pole's length.
const LENGTH: f64 = 0.5;
const FORCE: f64 = 10.0;
/// Seconds of a step.
const TIME: f64 = 0.02;
const FARTHEST: f64 = 2.4;
const STEEPEST: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;

impl Environment for CartPole {
    const OBSERVATION: usize = 4;
    const ACTIONS: usize = 2;
    const LIMIT: u32 = 500;

    fn reset(&mut self, random: &mut Pcg64) {
        self.0 = std::array::from_fn(|_| random.uniform(-0.05, 0.05));
    }

    fn step(&mut self, action: usize) -> (f32, bool) {
        let [x, speed, angle, turning] = self.0;
        let (sin, cos) = (angle.sin(), angle.cos());
        let force = if action == 1 { FORCE } else { -FORCE };
        let push = (force + POLE_MASS * LENGTH * (turning * turning) * sin) / TOTAL_MASS;
        let turn = (GRAVITY * sin - cos * push) / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let acceleration = push - POLE_MASS * LENGTH * turn * cos / TOTAL_MASS;
        self.0 = [x + TIME * speed, speed + TIME * acceleration, angle + TIME * turning, turning + TIME * turn];
        (1.0, self.0[0].abs() > FARTHEST || self.0[2].abs() > STEEPEST)
    }

    fn observe(&self, seen: &mut [f32]) {
        seen.iter_mut().zip(self.0).for_each(|(seen, number)| *seen = number as f32);
    }
}
