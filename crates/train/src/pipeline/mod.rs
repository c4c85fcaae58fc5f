//! Pipelines: the blocks of a model shared out over ranks.
//!
//! A stage is some neighbouring blocks of a model, with their weights, sums and what an optimizer remembers of them; the first has
//! what comes before all blocks, the last what follows them and the losses. Micro-batches go through the stages one after
//! another, and their gradients back, one of each in turn (1F1B): so every stage has the gradients of micro-batches in the order
//! that a single rank has them in, and comes to the same bits. A stage keeps what it was given of the micro-batches that are under way,
//! and computes the rest of its forward pass again with the gradient.
//!
//! Several pipelines share out the lanes: of a stage, all ranks add up their sums as ranks without stages do.

mod cut;
mod transfer;

pub(crate) use cut::Cut;
pub(crate) use transfer::{Pipeline, Transfer};

use crate::lanes::Place;
use crate::{Error, Result};

/// Which of how many stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// This one.
    pub index: usize,
    /// All of them.
    pub count: usize,
}

impl Default for Stage {
    /// The only one: the whole model.
    fn default() -> Stage {
        Stage { index: 0, count: 1 }
    }
}

impl Stage {
    /// The stage of a rank where so many neighbouring ranks are a pipeline each, and which of the pipelines that is. Fewer ranks
    /// than stages are none.
    pub fn of(place: Place, stages: usize) -> (Stage, Place) {
        let Place { rank, ranks } = place;
        let stages = stages.max(1);
        (Stage { index: rank % stages, count: stages }, Place { rank: rank / stages, ranks: ranks / stages })
    }

    /// Whether the inputs come to this one.
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Whether the losses come from this one.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// How many of so many micro-batches have gone forward before the first one comes back.
    pub(crate) fn ahead(&self, passes: usize) -> usize {
        (self.count - 1 - self.index).min(passes)
    }

    /// The share of a step over so many micro-batches in which a stage has nothing to do, where all take the same time.
    pub fn bubble(&self, passes: usize) -> f64 {
        let idle = (self.count - 1) as f64;
        idle / (passes as f64 + idle)
    }
}

/// Refuses ranks that cannot have so many stages.
pub fn check_ranks(ranks: usize, stages: usize) -> Result<()> {
    match stages > 0 && ranks.is_multiple_of(stages) {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "{ranks} rank{} cannot be pipelines of `settings.stages` {stages}; start a multiple of {}, or choose another number of \
             stages",
            if ranks == 1 { "" } else { "s" },
            stages.max(1)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_pipeline() {
        let of = |rank: usize| Stage::of(Place { rank, ranks: 6 }, 3);
        assert_eq!(of(4), (Stage { index: 1, count: 3 }, Place { rank: 1, ranks: 2 }));
        let ahead: Vec<usize> = (0..3).map(|rank| of(rank).0.ahead(8)).collect();
        assert_eq!(ahead, [2, 1, 0]);
        assert_eq!(of(0).0.ahead(1), 1);
        assert_eq!(of(0).0.bubble(6), 0.25);
        assert!(of(0).0.is_first() && of(5).0.is_last());
        let refused = check_ranks(1, 2).unwrap_err().to_string();
        assert!(refused.contains("1 rank cannot be pipelines of `settings.stages` 2"), "{refused}");
        check_ranks(6, 3).unwrap();
    }
}
