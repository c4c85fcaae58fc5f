//! The exchange of a step without a step, to be measured.

use super::carrier::Carrier;
use super::shards::Shards;
use crate::lanes::Lanes;
use gradus_comm::{Result, Transport};

/// Sums in memory of their own, and what exchanges them as a step does, one bucket after another.
pub struct BareExchange {
    carrier: Carrier,
    shards: Shards,
    /// By tensor.
    numbers: Vec<Vec<f32>>,
}

impl BareExchange {
    /// Of tensors of these numbers, the first of which are so many weights, a sum each.
    pub fn new(lanes: &Lanes, numbers: &[usize], weights: usize) -> BareExchange {
        let shards = Shards::new(numbers.to_vec(), weights, lanes.place().ranks);
        let mut carrier = Carrier::new(lanes, shards.clone(), &vec![1; numbers.len()]);
        let mut numbers: Vec<Vec<f32>> = numbers.iter().map(|count| vec![1.0; *count]).collect();
        assert_eq!(lanes.blocks().len(), 1, "ranks that are a power of two have a block each");
        let states = |numbers: &mut Vec<f32>| vec![vec![&raw mut numbers[..]]];
        carrier.sums = numbers.iter_mut().map(states).collect();
        BareExchange { carrier, shards, numbers }
    }

    /// The numbers of each bucket.
    pub fn buckets(&self) -> Vec<usize> {
        let count = |bucket| self.shards.bucket(bucket).map(|tensor| self.numbers[tensor].len()).sum();
        (0..=self.shards.of_weights()).map(count).collect()
    }

    /// The first number of a tensor.
    pub fn first_of(&self, tensor: usize) -> f32 {
        self.numbers[tensor][0]
    }

    /// Gives every rank the sums over all.
    pub fn exchange(&mut self, transport: &mut dyn Transport) -> Result<()> {
        let buckets = 0..=self.shards.of_weights();
        buckets.clone().rev().try_for_each(|bucket| self.carrier.scatter(bucket, transport))?;
        buckets.into_iter().try_for_each(|bucket| self.carrier.gather_sums(bucket, transport))
    }
}
