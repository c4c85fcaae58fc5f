//! What an agent acts in.

use super::random::Pcg64;

/// A world with a few actions. What ends an episode is told apart as Gymnasium does: it terminates by what happens in it, and
/// is truncated by its length, which says nothing of what would have come.
pub trait Environment {
    /// Numbers of an observation.
    const OBSERVATION: usize;
    /// Actions to choose from.
    const ACTIONS: usize;
    /// Steps after which an episode is truncated.
    const LIMIT: u32;

    /// Begins an episode.
    fn reset(&mut self, random: &mut Pcg64);

    /// Takes an action; the reward, and whether the episode terminates with it.
    fn step(&mut self, action: usize) -> (f32, bool);

    /// What is seen now.
    fn observe(&self, seen: &mut [f32]);
}
