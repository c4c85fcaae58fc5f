//! A maze seen from above, as a picture of three colours.

use super::environment::Environment;
use super::random::Pcg64;
use std::collections::VecDeque;

/// Walls, way and goal are those of the seed; an episode begins anywhere on the way.
#[derive(Clone, Debug)]
pub struct Maze {
    is_wall: [bool; SIZE * SIZE],
    /// Steps to the goal, for each place of the way.
    distances: [Option<u32>; SIZE * SIZE],
    at: usize,
}

/// Pixels of a side.
pub const SIZE: usize = 9;
/// Walls, goal and agent.
pub const COLOURS: usize = 3;
const GOAL: usize = SIZE * (SIZE - 2) + SIZE - 2;
const STEP_COST: f32 = 0.02;
/// Up, down, left and right.
const MOVES: [isize; 4] = [-(SIZE as isize), SIZE as isize, -1, 1];

impl Maze {
    pub fn new(seed: u64) -> Maze {
        let mut maze = Maze { is_wall: [true; SIZE * SIZE], distances: [None; SIZE * SIZE], at: GOAL };
        maze.carve(&mut Pcg64::new(seed));
        maze.measure();
        maze
    }

    /// Opens places two apart, in the order of a walk that turns back where nothing is left to open.
    fn carve(&mut self, random: &mut Pcg64) {
        let mut walk = vec![GOAL];
        self.is_wall[GOAL] = false;
        while let Some(&at) = walk.last() {
            let mut moves = MOVES;
            random.shuffle(&mut moves);
            let is_closed = |way: &&isize| self.beyond(at, **way).is_some_and(|to| self.is_wall[to]);
            let Some(&way) = moves.iter().find(is_closed) else {
                walk.pop();
                continue;
            };
            let to = self.beyond(at, way).expect("a place that was just looked at");
            self.is_wall[(at as isize + way) as usize] = false;
            self.is_wall[to] = false;
            walk.push(to);
        }
    }

    /// The place two steps away, if it is inside of the outer wall.
    fn beyond(&self, at: usize, way: isize) -> Option<usize> {
        let column = (at % SIZE) as isize + if way.abs() == 1 { 2 * way } else { 0 };
        let row = (at / SIZE) as isize + if way.abs() == 1 { 0 } else { 2 * way / SIZE as isize };
        let inside = 1..SIZE as isize - 1;
        (inside.contains(&column) && inside.contains(&row)).then(|| row as usize * SIZE + column as usize)
    }

    fn measure(&mut self) {
        let mut next = VecDeque::from([(GOAL, 0)]);
        while let Some((at, steps)) = next.pop_front() {
            if !self.is_wall[at] && self.distances[at].is_none() {
                self.distances[at] = Some(steps);
                next.extend(MOVES.iter().map(|way| ((at as isize + way) as usize, steps + 1)));
            }
        }
    }

    /// The mean return of the shortest ways.
    pub fn best_return(&self) -> f32 {
        let starts = || self.distances.iter().flatten().filter(|steps| **steps > 0);
        let steps: u32 = starts().sum();
        1.0 - STEP_COST * steps as f32 / starts().count() as f32
    }
}

impl Environment for Maze {
    const OBSERVATION: usize = COLOURS * SIZE * SIZE;
    const ACTIONS: usize = 4;
    const LIMIT: u32 = 150;

    fn reset(&mut self, random: &mut Pcg64) {
        loop {
            self.at = random.below(SIZE * SIZE);
            if self.distances[self.at].is_some_and(|steps| steps > 0) {
                return;
            }
        }
    }

    fn step(&mut self, action: usize) -> (f32, bool) {
        let to = (self.at as isize + MOVES[action]) as usize;
        if !self.is_wall[to] {
            self.at = to;
        }
        let is_there = self.at == GOAL;
        (if is_there { 1.0 - STEP_COST } else { -STEP_COST }, is_there)
    }

    fn observe(&self, seen: &mut [f32]) {
        seen.fill(0.0);
        for (pixel, is_wall) in seen.iter_mut().zip(self.is_wall) {
            *pixel = if is_wall { 1.0 } else { 0.0 };
        }
        seen[SIZE * SIZE + GOAL] = 1.0;
        seen[2 * SIZE * SIZE + self.at] = 1.0;
    }
}
