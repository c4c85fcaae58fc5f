//! A device among those of other ranks: what they exchange is sent to its stream, after all that was sent there before.

use crate::error::{Error, Result};
use crate::nccl::{self, Communicator};
use crate::prepared::Kernel;
use crate::stream::Event;
use crate::{Device, Meeting, Memory, Message};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between looks at whether the device is through.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A device's end of the group of all ranks.
pub struct Peers {
    device: Arc<Device>,
    communicator: Communicator,
    room: Memory,
    /// By number.
    ready: Vec<Vec<Ready>>,
    /// When all is done that was sent to the stream.
    through: Event,
}

/// A meeting whose kernels are loaded.
struct Ready {
    messages: Vec<Message>,
    sums: Vec<Kernel>,
}

// SAFETY: the handles may be used from any thread on which the context is current, which `bind` sees to.
unsafe impl Send for Peers {}

impl Peers {
    /// Where ranks find each other, to be told to all of them by one.
    pub fn meeting_point() -> Result<Vec<u8>> {
        nccl::meeting_point()
    }

    /// Meets all others, who do the same, and gets a number of each: so memory that connections take is taken.
    pub fn connect(device: &Arc<Device>, rank: usize, ranks: usize, meeting_point: &[u8]) -> Result<Peers> {
        device.bind()?;
        let communicator = Communicator::connect(rank, ranks, meeting_point)?;
        let room = Memory::zeroed(device, 2 * ranks * size_of::<f32>())?;
        let place = |number: usize| room.address() + (number * size_of::<f32>()) as u64;
        let greeting = |(peer, is_sent): (usize, bool)| {
            let address = place(if is_sent { rank } else { ranks + peer });
            Message { peer, is_sent, address, numbers: 1 }
        };
        let others = (0..ranks).filter(|peer| *peer != rank);
        let messages = others.flat_map(|peer| [(peer, true), (peer, false)]).map(greeting).collect();
        let mut peers = Peers { device: device.clone(), communicator, room, ready: vec![], through: Event::new()? };
        // SAFETY: all addresses are of the room, which stays until nothing is ready any more.
        unsafe { peers.prepare(0, vec![Meeting { messages, sums: vec![] }]) }?;
        peers.meet(0)?;
        // Nobody may call again what is in the room, which will be another.
        peers.ready.clear();
        Ok(peers)
    }

    /// Room for so many numbers that come from others, instead of what there was. Nothing may be under way.
    pub fn room(&mut self, numbers: usize) -> Result<u64> {
        self.room = Memory::zeroed(&self.device, numbers * size_of::<f32>())?;
        Ok(self.room.address())
    }

    /// Makes meetings ready to be called by a number.
    ///
    /// # Safety
    /// Addresses must be of live memory of the device for as long as this number is called, with as many numbers as are said.
    pub unsafe fn prepare(&mut self, number: usize, meetings: Vec<Meeting>) -> Result<()> {
        self.device.bind()?;
        let ready = |Meeting { messages, sums }: Meeting| {
            let launches: Vec<_> = sums.iter().map(|sum| sum.launch()).collect();
            self.device.compile_all(&launches.iter().collect::<Vec<_>>())?;
            let sums = launches.iter().map(|launch| Kernel::new(self.device.function(launch), launch));
            Ok(Ready { messages, sums: sums.collect::<Result<_>>()? })
        };
        let ready = meetings.into_iter().map(ready).collect::<Result<_>>()?;
        self.ready.resize_with(self.ready.len().max(number + 1), Vec::new);
        self.ready[number] = ready;
        Ok(())
    }

    /// Sends what was made ready. Allocates nothing.
    pub fn meet(&mut self, number: usize) -> Result<()> {
        self.device.bind()?;
        let stream = self.device.stream();
        for Ready { messages, sums } in &mut self.ready[number] {
            // SAFETY: addresses are live, by the promise given to `prepare`.
            unsafe { self.communicator.exchange(messages, stream) }?;
            for sum in sums {
                // SAFETY: as above.
                unsafe { sum.send(stream, false) }?;
            }
        }
        Ok(())
    }

    /// Waits, asleep, until all that was sent is done. If that takes longer than this, it is given up.
    pub fn wait(&mut self, patience: Duration) -> Result<()> {
        self.device.bind()?;
        self.through.record(self.device.stream())?;
        let waited = self.until_through(patience);
        if waited.is_err() {
            // Kernels that wait for others would keep all that follows waiting too.
            self.communicator.abort();
        }
        waited
    }

    fn until_through(&mut self, patience: Duration) -> Result<()> {
        let since = Instant::now();
        while !self.through.has_passed()? {
            self.communicator.check()?;
            let waited = since.elapsed();
            if waited > patience {
                return Err(Error::Peers {
                    call: "NCCL",
                    reason: format!("nothing for {} seconds", patience.as_secs_f64()),
                });
            }
            thread::sleep((waited / 8).min(LONGEST_PAUSE));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_nccl_is_said_with_what_to_do() {
        let Err(error) = Peers::meeting_point() else { return };
        let error = error.to_string();
        assert!(error.contains("libnccl.so.2 is not to be found") && error.contains("apt install libnccl2"), "{error}");
    }
}
