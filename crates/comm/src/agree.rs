//! Whether all ranks have the same.

use crate::error::{Error, Result};
use crate::transport::Transport;

/// Refuses ranks that do not all have the same of something, and names the first that differs from rank 0.
pub fn agree(transport: &mut dyn Transport, what: &str, own: Fingerprint) -> Result<()> {
    const BYTES: usize = size_of::<u64>();
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let at: Vec<usize> = (0..=ranks).map(|rank| rank * BYTES).collect();
    let mut all = vec![0; at[ranks]];
    all[at[rank]..at[rank + 1]].copy_from_slice(&own.0.to_le_bytes());
    transport.all_gather(&mut all, &at)?;
    match all.chunks(BYTES).position(|one| one != &all[..BYTES]) {
        None => Ok(()),
        Some(rank) => Err(Error::Differs { peer: transport.peer(rank), what: what.into() }),
    }
}

/// What stands for bytes when they are compared: those that differ by mistake differ in it (FNV-1a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    /// Of no bytes.
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// More bytes, after those before.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    }

    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        fingerprint.add(bytes);
        fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process;
    use std::thread;

    /// What each of three ranks is told.
    fn told(bytes: impl Fn(usize) -> Vec<u8> + Sync) -> Vec<Result<()>> {
        let bytes = &bytes;
        thread::scope(|scope| {
            let told = |mut end: Box<dyn Transport>| {
                let own = Fingerprint::of(&bytes(end.rank()));
                move || agree(end.as_mut(), "program", own)
            };
            let threads: Vec<_> = in_process(3).into_iter().map(|end| scope.spawn(told(Box::new(end)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_first_that_differs_is_named_by_all() {
        assert!(told(|_| vec![1, 2]).into_iter().all(|result| result.is_ok()));
        for result in told(|rank| if rank == 0 { vec![1, 2] } else { vec![2, 1] }) {
            let error = result.unwrap_err().to_string();
            assert_eq!(error, "rank 1 has another program than rank 0; give all ranks the same");
        }
    }
}
