//! Replays: a routine made ready on a device, and what the host finds after it ran.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::{Graph, Steps};
use crate::host::HostMemory;
use crate::prepared::Prepared;
use crate::stream::Event;
use crate::{Command, Launch};
use cudarc::driver::{result, sys};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a fault cell holds when nothing was raised.
const NO_FAULT: u64 = u64::MAX;
/// Bytes of the cell.
const CELL: usize = 8;

/// Waiting for a replay that takes as long as this, the host sleeps: no core is kept busy, and waking up takes little beside
/// it. For shorter ones it looks all the time.
const LONG: Duration = Duration::from_millis(1);

/// A routine made ready on a device.
pub struct Replay {
    device: Arc<Device>,
    steps: Vec<Vec<Prepared>>,
    first_write: usize,
    graph: Graph,
    seen: Seen,
    /// When a replay is through, for a host that sleeps meanwhile.
    through: Event,
    /// How long the last replay took.
    took: Duration,
    /// Around every step, once replays are timed.
    events: Vec<Event>,
}

// SAFETY: the handles may be used from any thread on which the context is current, which `bind` sees to.
unsafe impl Send for Replay {}

impl Replay {
    /// Makes a routine ready. Faults are raised in the cell at `fault`. After every replay, the host finds these results, each
    /// an address and its bytes ([`Replay::result`]).
    ///
    /// # Safety
    /// The addresses of the commands and results, and the cell, must be those of memory of the device that lives as long as
    /// this, kernels must keep to what their operands' sizes say, and no step of a group may touch what another of it writes. Nor
    /// may a step that overlaps read early what the one before writes.
    pub unsafe fn new(device: &Arc<Device>, steps: &Steps, fault: u64, results: &[(u64, usize)]) -> Result<Replay> {
        device.bind()?;
        let launches: Vec<&Launch> = steps.commands.iter().flatten().filter_map(Command::launch).collect();
        device.compile_all(&launches)?;
        let prepare = |commands: &Vec<Command>| commands.iter().map(|command| Prepared::new(device, command)).collect();
        let mut prepared = steps.commands.iter().map(prepare).collect::<Result<Vec<Vec<Prepared>>>>()?;
        let (seen, first_write) = (Seen::new(device, fault, results)?, steps.first_write);
        let graph = Graph::capture(device, &mut prepared, steps, &seen)?;
        let through = Event::to_sleep_for()?;
        let (device, took) = (device.clone(), Duration::ZERO);
        Ok(Replay { device, steps: prepared, first_write, graph, seen, through, took, events: vec![] })
    }

    /// Replays it; gives the fault that was raised, as a step and a detail.
    pub fn run(&mut self) -> Result<Option<(u32, u32)>> {
        let (began, stream) = (Instant::now(), self.device.stream());
        self.device.bind()?;
        // SAFETY: the graph was made of commands whose memory lives, by the promise given to `new`.
        unsafe { result::graph::launch(self.graph.ready(), stream) }.map_err(Error::call("cuGraphLaunch"))?;
        if self.took < LONG {
            self.device.synchronize()?;
        } else {
            self.through.record(stream)?;
            self.through.wait()?;
        }
        self.took = began.elapsed();
        Ok(self.seen.raised())
    }

    /// Copies a result that the host was to find, if this is one, as it was after the last [`Replay::run`].
    pub fn result(&self, address: u64, to: &mut [u8]) -> bool {
        self.seen.result(address, to)
    }

    /// Replays it step by step, and adds what each took to its time.
    pub fn run_timed(&mut self, times: &mut [Duration]) -> Result<Option<(u32, u32)>> {
        self.device.bind()?;
        let stream = self.device.stream();
        if self.events.is_empty() {
            self.events = (0..=self.steps.len()).map(|_| Event::new()).collect::<Result<_>>()?;
        }
        let events = &self.events;
        self.seen.reset(stream)?;
        events[0].record(stream)?;
        for (index, step) in self.steps.iter_mut().enumerate() {
            if index == self.first_write {
                self.seen.fetch_fault(stream)?;
                self.device.synchronize()?;
                if let Some(fault) = self.seen.raised() {
                    return Ok(Some(fault));
                }
            }
            for command in step {
                // SAFETY: the promise given to `new`.
                unsafe { command.send(stream, false) }?;
            }
            events[index + 1].record(stream)?;
        }
        self.seen.fetch(stream)?;
        self.device.synchronize()?;
        for (index, time) in times.iter_mut().enumerate() {
            *time += events[index].until(&events[index + 1])?;
        }
        Ok(self.seen.raised())
    }
}

/// What a replay leaves where the host finds it. All addresses are live, by the promise given to [`Replay::new`].
pub(crate) struct Seen {
    /// The cell, and behind it the results.
    memory: HostMemory,
    /// The cell on the device.
    fault: u64,
    results: Vec<SeenResult>,
}

struct SeenResult {
    address: u64,
    bytes: usize,
    /// Where in the host's memory.
    offset: usize,
}

impl Seen {
    fn new(device: &Arc<Device>, fault: u64, results: &[(u64, usize)]) -> Result<Seen> {
        let mut end = CELL;
        let place = |&(address, bytes): &(u64, usize)| {
            let offset = end;
            end += bytes.next_multiple_of(CELL);
            SeenResult { address, bytes, offset }
        };
        let results = results.iter().map(place).collect();
        Ok(Seen { memory: HostMemory::new(device, end)?, fault, results })
    }

    /// Where faults are raised.
    pub fn fault(&self) -> u64 {
        self.fault
    }

    /// Lets the cell say that nothing was raised.
    pub fn reset(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the cell is eight bytes, and live.
        unsafe { result::memset_d8_async(self.fault, 0xFF, CELL, stream) }.map_err(Error::call("cuMemsetD8Async"))
    }

    fn fetch_fault(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: as above; it is read after waiting for the stream.
        unsafe { self.memory.fetch(0, self.fault, CELL, stream) }
    }

    /// Has the cell and the results copied to the host.
    pub fn fetch(&self, stream: sys::CUstream) -> Result<()> {
        for &SeenResult { address, bytes, offset } in &self.results {
            // SAFETY: the results are live; they are read after waiting for the stream.
            unsafe { self.memory.fetch(offset, address, bytes, stream) }?;
        }
        self.fetch_fault(stream)
    }

    /// What the cell held when it was copied: the step and the detail.
    fn raised(&self) -> Option<(u32, u32)> {
        let code = self.memory.cell();
        (code != NO_FAULT).then_some(((code >> 32) as u32, code as u32))
    }

    fn result(&self, address: u64, to: &mut [u8]) -> bool {
        let found = self.results.iter().find(|result| (result.address, result.bytes) == (address, to.len()));
        found.map(|result| self.memory.read(result.offset, to)).is_some()
    }
}
