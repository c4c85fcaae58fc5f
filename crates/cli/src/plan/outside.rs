//! Memory of a training run outside of its arena.

/// Predicted bytes outside of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Batches on their way, the mapped corpus, the tokenizer.
    pub data: u64,
    /// The program, its libraries, its heap and its stacks.
    pub runtime: u64,
}

impl Outside {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.data + self.runtime
    }
}

/// What a run takes beside its arena.
pub fn outside_bytes() -> Outside {
    Outside { data: 2_000_000, runtime: 10_000_000 }
}
