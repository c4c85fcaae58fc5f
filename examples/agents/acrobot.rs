//! Two links that hang from a joint and are swung up by a torque between them: Gymnasium's Acrobot-v1.

use super::environment::Environment;
use super::random::Pcg64;
use std::f64::consts::PI;

/// The angle of the first link from straight down, that of the second from the first, and their velocities.
#[derive(Clone, Debug, Default)]
pub struct Acrobot([f64; 4]);

const GRAVITY: f64 = 9.8;
/// From a link's joint to its centre of mass. Links are 1 long, with a mass and a moment of inertia of 1.
const CENTRE: f64 = 0.5;
/// Seconds of a step.
const TIME: f64 = 0.2;
const FASTEST: [f64; 2] = [4.0 * PI, 9.0 * PI];

/// How fast each number of the state changes.
fn slope([first, second, first_speed, second_speed]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin, cos) = (second.sin(), second.cos());
    let inertia = CENTRE * CENTRE + (1.0 + CENTRE * CENTRE + 2.0 * CENTRE * cos) + 2.0;
    let coupling = CENTRE * CENTRE + CENTRE * cos + 1.0;
    let second_weight = CENTRE * GRAVITY * (first + second - PI / 2.0).cos();
    let first_weight = -CENTRE * (second_speed * second_speed) * sin - 2.0 * CENTRE * second_speed * first_speed * sin
        + (CENTRE + 1.0) * GRAVITY * (first - PI / 2.0).cos()
        + second_weight;
    let pull = torque + coupling / inertia * first_weight - CENTRE * (first_speed * first_speed) * sin - second_weight;
    let second_turn = pull / (CENTRE * CENTRE + 1.0 - coupling * coupling / inertia);
    let first_turn = -(coupling * second_turn + first_weight) / inertia;
    [first_speed, second_speed, first_turn, second_turn]
}

/// A state some time later, at this slope.
fn moved(state: [f64; 4], time: f64, slope: [f64; 4]) -> [f64; 4] {
    std::array::from_fn(|index| state[index] + time * slope[index])
}

/// An angle within half a turn of zero.
fn wrapped(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}

impl Environment for Acrobot {
    const OBSERVATION: usize = 6;
    const ACTIONS: usize = 3;
    const LIMIT: u32 = 500;

    fn reset(&mut self, random: &mut Pcg64) {
        self.0 = std::array::from_fn(|_| random.uniform(-0.1, 0.1) as f32 as f64);
    }

    /// By one step of the classical Runge-Kutta method.
    fn step(&mut self, action: usize) -> (f32, bool) {
        let torque = action as f64 - 1.0;
        let k1 = slope(self.0, torque);
        let k2 = slope(moved(self.0, TIME / 2.0, k1), torque);
        let k3 = slope(moved(self.0, TIME / 2.0, k2), torque);
        let k4 = slope(moved(self.0, TIME, k3), torque);
        let sum = std::array::from_fn(|index| k1[index] + 2.0 * k2[index] + 2.0 * k3[index] + k4[index]);
        let [first, second, first_speed, second_speed] = moved(self.0, TIME / 6.0, sum);
        let speeds = [first_speed.clamp(-FASTEST[0], FASTEST[0]), second_speed.clamp(-FASTEST[1], FASTEST[1])];
        self.0 = [wrapped(first), wrapped(second), speeds[0], speeds[1]];
        let is_up = -self.0[0].cos() - (self.0[1] + self.0[0]).cos() > 1.0;
        (if is_up { 0.0 } else { -1.0 }, is_up)
    }

    fn observe(&self, seen: &mut [f32]) {
        let [first, second, first_speed, second_speed] = self.0;
        let numbers = [first.cos(), first.sin(), second.cos(), second.sin(), first_speed, second_speed];
        seen.iter_mut().zip(numbers).for_each(|(seen, number)| *seen = number as f32);
    }
}
