//! What the machine can do at best: the figures that kernels are measured against.
//!
//! A [`Probe`] does nothing but multiply and add in registers, or nothing but move memory, on every thread of a pool.
//! How long that takes is for the caller to say.

mod arithmetic;
mod memory;

use crate::{Isa, Job, Pool};
use arithmetic::Arithmetic;
use memory::{Memory, Motion};
use std::fmt;

/// Something that bounds the speed of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Multiplying and adding f32 at an instruction-set level.
    F32(Isa),
    /// Products of bf16, added up in f32, by the best instruction that the machine has for them.
    Bf16,
    /// Reading memory beyond the caches.
    Read,
    /// Copying memory beyond the caches.
    Copy,
    /// Copying memory beyond the caches with stores that go around them.
    StreamingCopy,
    /// Reading and writing the same memory beyond the caches.
    Update,
    /// Copying memory within each core's second-level cache.
    CacheCopy,
}

impl Limit {
    /// Every limit that this machine has.
    pub fn available() -> Vec<Limit> {
        let mut limits: Vec<Limit> = Isa::available().into_iter().map(Limit::F32).collect();
        if arithmetic::has_bf16() {
            limits.push(Limit::Bf16);
        }
        limits.push(Limit::Read);
        limits.push(Limit::Copy);
        if memory::has_streaming() {
            limits.push(Limit::StreamingCopy);
        }
        limits.extend([Limit::Update, Limit::CacheCopy]);
        limits
    }

    /// The limit of arithmetic in f32.
    pub fn f32() -> Limit {
        Limit::F32(Isa::detect())
    }

    /// The limit of products in bf16: that of f32 on a machine that can only compute in it.
    pub fn bf16() -> Limit {
        if arithmetic::has_bf16() { Limit::Bf16 } else { Limit::f32() }
    }

    /// Whether it is counted in operations rather than bytes.
    pub fn is_arithmetic(self) -> bool {
        matches!(self, Limit::F32(_) | Limit::Bf16)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::F32(isa) => write!(f, "f32/{isa}"),
            Limit::Bf16 => f.write_str("bf16"),
            Limit::Read => f.write_str("read"),
            Limit::Copy => f.write_str("copy"),
            Limit::StreamingCopy => f.write_str("copy/streaming"),
            Limit::Update => f.write_str("update"),
            Limit::CacheCopy => f.write_str("copy/cache"),
        }
    }
}

/// Work that runs into a limit, with the memory it needs.
pub struct Probe {
    job: Box<dyn Job>,
    amount: u64,
}

impl Probe {
    /// The work for this limit, which must be one of [`Limit::available`], cut for this many threads.
    pub fn new(limit: Limit, threads: usize) -> Probe {
        match limit {
            Limit::F32(isa) => Probe::arithmetic(Arithmetic::f32(isa, threads)),
            Limit::Bf16 => Probe::arithmetic(Arithmetic::bf16(threads)),
            Limit::Read => Probe::memory(Memory::beyond_caches(Motion::Read)),
            Limit::Copy => Probe::memory(Memory::beyond_caches(Motion::Copy)),
            Limit::StreamingCopy => Probe::memory(Memory::beyond_caches(Motion::StreamingCopy)),
            Limit::Update => Probe::memory(Memory::beyond_caches(Motion::Update)),
            Limit::CacheCopy => Probe::memory(Memory::within_caches(Motion::Copy, threads)),
        }
    }

    fn arithmetic(job: Arithmetic) -> Probe {
        Probe { amount: job.operations(), job: Box::new(job) }
    }

    fn memory(job: Memory) -> Probe {
        Probe { amount: job.bytes(), job: Box::new(job) }
    }

    /// What one run does: operations, or bytes read and written.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Does the work once.
    pub fn run(&mut self, pool: &Pool) {
        // SAFETY: the job uses only memory of its own, which no other run can touch since this one borrows it
        // exclusively, and it needs no scratch.
        unsafe { pool.run(&*self.job, std::ptr::NonNull::<u8>::dangling().as_ptr(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_work_of_its_own_name() {
        let pool = Pool::new(2).unwrap();
        let mut names = vec![];
        for limit in Limit::available() {
            let mut probe = Probe::new(limit, pool.threads());
            probe.run(&pool);
            assert!(probe.amount() > 0, "{limit}");
            names.push(limit.to_string());
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn the_limits_of_products_are_measured_ones() {
        let available = Limit::available();
        assert!(available.contains(&Limit::f32()) && available.contains(&Limit::bf16()));
        assert!(Limit::f32().is_arithmetic() && !Limit::Update.is_arithmetic());
    }
}
