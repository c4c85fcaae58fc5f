//! What a group was measured to be good for.

use crate::error::Result;
use crate::transport::Transport;
use std::time::{Duration, Instant};

/// What a message between any two ranks takes, while all of them send: the slowest rank's figures, the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Of a message without bytes.
    pub latency: Duration,
    /// Of a rank to all others together.
    pub bytes_per_second: f64,
}

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 9;
/// What a rank sends in the first attempt at a speed, and at most.
const FIRST_BYTES: usize = 256 << 10;
const MOST_BYTES: usize = 16 << 20;
/// An exchange that takes so long tells the speed.
const LONG_ENOUGH: f64 = 0.01;

impl Link {
    /// Measures the link, in well under a second where it is not very slow. None between fewer than two ranks.
    pub fn measure(transport: &mut dyn Transport) -> Result<Option<Link>> {
        if transport.ranks() < 2 {
            return Ok(None);
        }
        let latency = slowest(transport, |transport| median(transport, &|transport| transport.barrier()))?;
        let mut bytes = FIRST_BYTES;
        loop {
            let seconds = slowest(transport, |transport| exchange_seconds(transport, bytes))?;
            // All have the same figure, so all go on or end alike.
            if seconds >= LONG_ENOUGH || bytes >= MOST_BYTES {
                let in_flight = (seconds - latency).max(seconds / 2.0);
                return Ok(Some(Link {
                    latency: Duration::from_secs_f64(latency),
                    bytes_per_second: bytes as f64 / in_flight,
                }));
            }
            bytes *= 4;
        }
    }

    /// What an exchange takes in which every rank sends so many bytes to the others together.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.latency.as_secs_f64() + bytes / self.bytes_per_second
    }
}

/// Of an exchange in which every rank sends so many bytes to the others together.
fn exchange_seconds(transport: &mut dyn Transport, bytes: usize) -> Result<f64> {
    let ranks = transport.ranks();
    let part = bytes / (ranks - 1);
    let at: Vec<usize> = (0..=ranks).map(|rank| rank * part).collect();
    let sent = vec![1; at[ranks]];
    let mut received = vec![0; at[ranks]];
    let mut seconds = f64::INFINITY;
    // The first time the memory is touched, and connections are made.
    for _ in 0..2 {
        transport.barrier()?;
        let start = Instant::now();
        transport.all_to_all(&sent, &at, &mut received, &at)?;
        seconds = start.elapsed().as_secs_f64();
    }
    Ok(seconds)
}

fn median(transport: &mut dyn Transport, work: &dyn Fn(&mut dyn Transport) -> Result<()>) -> Result<f64> {
    let mut seconds = [0.0; ROUNDS];
    for round in &mut seconds {
        let start = Instant::now();
        work(transport)?;
        *round = start.elapsed().as_secs_f64();
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}

/// What is measured by the rank for which it is the most.
fn slowest(transport: &mut dyn Transport, work: impl Fn(&mut dyn Transport) -> Result<f64>) -> Result<f64> {
    const BYTES: usize = size_of::<f64>();
    let own = work(transport)?;
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let at: Vec<usize> = (0..=ranks).map(|rank| rank * BYTES).collect();
    let mut all = vec![0; at[ranks]];
    all[at[rank]..at[rank + 1]].copy_from_slice(&own.to_le_bytes());
    transport.all_gather(&mut all, &at)?;
    let figures = all.chunks(BYTES).map(|figure| f64::from_le_bytes(figure.try_into().expect("eight bytes")));
    Ok(figures.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process;
    use std::thread;

    #[test]
    fn all_ranks_have_the_same_figures() {
        for ranks in [2, 3] {
            let links: Vec<Option<Link>> = thread::scope(|scope| {
                let ends = in_process(ranks).into_iter();
                let threads: Vec<_> =
                    ends.map(|mut end| scope.spawn(move || Link::measure(&mut end).unwrap())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let first = links[0].unwrap();
            assert!(links.iter().all(|link| *link == Some(first)));
            assert!(first.bytes_per_second > 0.0 && first.bytes_per_second.is_finite());
            assert_eq!(first.seconds(0.0), first.latency.as_secs_f64());
        }
        assert_eq!(Link::measure(&mut in_process(1)[0]), Ok(None));
    }
}
