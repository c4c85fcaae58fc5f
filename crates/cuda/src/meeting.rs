//! What devices of several ranks exchange, as data: messages of numbers where they lie, and sums of what came.

use crate::{Launch, Source, sources};
use std::sync::Arc;

/// What is done at once: messages between the devices of ranks, and then sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Between two ranks, messages come in the order in which both list them.
    pub messages: Vec<Message>,
    /// Of what came and what was here.
    pub sums: Vec<TreeSum>,
}

/// Numbers in f32 that another rank gets or gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Whether it gets them.
    pub is_sent: bool,
    /// Where they lie here.
    pub address: u64,
    /// How many.
    pub numbers: usize,
}

/// Blocks of as many numbers each, added up by a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSum {
    /// Where they lie.
    pub blocks: Vec<u64>,
    /// In which order: pairs of blocks, of which the first gets the sum. The sum of all is the first block's in the end.
    pub additions: Arc<[(usize, usize)]>,
    /// Where that is written, which may be over one of the blocks: these stay as they are otherwise.
    pub target: u64,
    /// Numbers of a block.
    pub numbers: usize,
}

impl TreeSum {
    /// The most blocks whose addresses a kernel takes.
    pub const MOST_BLOCKS: usize = 500;

    /// A copy.
    pub fn copy(from: u64, to: u64, numbers: usize) -> TreeSum {
        TreeSum { blocks: vec![from], additions: Arc::from([]), target: to, numbers }
    }

    /// The kernel that computes it: one for all sums of the same tree.
    pub fn launch(&self) -> Launch {
        let mut terms: Vec<String> = (0..self.blocks.len()).map(|block| format!("b{block}[i]")).collect();
        for &(left, right) in &self.additions[..] {
            terms[left] = format!("({} + {})", terms[left], terms[right]);
        }
        let blocks: Vec<String> = (0..self.blocks.len()).map(|block| format!("const float *b{block}")).collect();
        let source = Source::new("tree_sum", sources::TREE_SUM)
            .constant("BLOCKS", blocks.join(", "))
            .constant("TREE", &terms[0]);
        // The last parameter is a number as large as an address.
        let arguments = self.blocks.iter().copied().chain([self.target, self.numbers as u64]);
        arguments.fold(source, Source::address).launch(self.numbers.div_ceil(256), 256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_written_as_its_tree() {
        let additions = Arc::from([(0, 1), (2, 3), (0, 2)]);
        let sum = TreeSum { blocks: vec![64, 128, 256, 512], additions, target: 512, numbers: 300 };
        let launch = sum.launch();
        assert!(launch.source.contains("#define TREE ((b0[i] + b1[i]) + (b2[i] + b3[i]))"), "{}", launch.source);
        assert_eq!((launch.arguments, launch.grid), (vec![64, 128, 256, 512, 512, 300], [2, 1, 1]));
        let copy = TreeSum::copy(64, 128, 7).launch();
        assert!(copy.source.contains("#define TREE b0[i]\n"), "{}", copy.source);
    }
}
