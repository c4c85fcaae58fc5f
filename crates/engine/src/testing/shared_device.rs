//! A device that several ranks of one process share: all that they exchange stays in its memory, which no host is shown.

use crate::backend::{Backend, DeviceMemory, Executable, Meeting, Message, Peers, Timing, TreeSum};
use crate::ops::{Elementwise, Matmul, Operation};
use crate::plan::{Absorption, BufferId, FusionLimits, Machine, Operand, Plan, Reading, Scratch, Step};
use crate::{DType, Error, Layout, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a rank waits for another.
const PATIENCE: Duration = Duration::from_secs(120);

/// A machine for ranks in threads of one process. On a real device, a message is one of its library from this device to itself.
#[derive(Clone)]
pub struct SharedDevice {
    inner: Arc<dyn Backend + Send + Sync>,
    /// By where ranks meet: the ends that are not taken yet.
    places: Arc<Mutex<HashMap<Vec<u8>, Untaken>>>,
    traffic: Arc<Traffic>,
}

/// What all ranks together did.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Numbers that they sent.
    pub sent: AtomicU64,
    /// Additions of two numbers.
    pub added: AtomicU64,
}

/// Channels from and to every rank: where what is sent lies, and that it was taken.
struct Ends {
    offers: Vec<Sender<u64>>,
    offered: Vec<Receiver<u64>>,
    thanks: Vec<Sender<()>>,
    thanked: Vec<Receiver<()>>,
}

type Untaken = Vec<Option<Ends>>;

impl SharedDevice {
    /// A machine's memory, which ranks share.
    pub fn new(inner: Arc<dyn Backend + Send + Sync>) -> SharedDevice {
        SharedDevice { inner, places: Arc::default(), traffic: Arc::default() }
    }

    /// What was exchanged so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn is_host(&self) -> Result<bool> {
        Ok(self.inner.memory()?.is_none())
    }
}

/// What a planner asks is answered as by the machine.
impl Machine for SharedDevice {
    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn workers(&self) -> usize {
        self.inner.workers()
    }

    fn fusion(&self) -> FusionLimits {
        self.inner.fusion()
    }

    fn absorbs(&self, product: &Matmul, epilogue: &Elementwise) -> Absorption {
        self.inner.absorbs(product, epilogue)
    }

    fn gives_aside(&self, product: &Matmul, epilogue: &Elementwise, aside: &Elementwise) -> bool {
        self.inner.gives_aside(product, epilogue, aside)
    }

    fn shares_columns(&self, product: &Matmul, rows: usize) -> bool {
        self.inner.shares_columns(product, rows)
    }

    fn holds_logits(&self) -> bool {
        self.inner.holds_logits()
    }

    fn multiplies_tf32(&self) -> bool {
        self.inner.multiplies_tf32()
    }

    fn takes_in(&self, op: &dyn Operation) -> bool {
        self.inner.takes_in(op)
    }

    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading {
        self.inner.reads(op, input, dtype, layout)
    }

    fn scratch(&self, step: &Step) -> Result<Scratch> {
        self.inner.scratch(step)
    }

    fn seconds(&self, step: &Step) -> f64 {
        self.inner.seconds(step)
    }
}

impl Backend for SharedDevice {
    fn name(&self) -> &'static str {
        "shared device"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(self.inner.memory()?.or(Some(DeviceMemory { available: 8 << 30, besides: 0 })))
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        let linked = self.inner.link(plan)?;
        Ok(if self.is_host()? { Box::new(Hidden(linked)) } else { linked })
    }

    fn meeting_point(&self) -> Result<Vec<u8>> {
        let places = self.places.lock().expect("no rank panicked");
        Ok(places.len().to_le_bytes().to_vec())
    }

    fn connect(&self, rank: usize, ranks: usize, meeting_point: &[u8]) -> Result<Box<dyn Peers>> {
        let alone = match self.is_host()? {
            true => None,
            false => Some(self.inner.connect(0, 1, &self.inner.meeting_point()?)?),
        };
        let mut places = self.places.lock().expect("no rank panicked");
        let place = places.entry(meeting_point.to_vec()).or_insert_with(|| Ends::of_all(ranks));
        let ends = place[rank].take().expect("a rank meets the others once");
        Ok(Box::new(SharedPeers { ends, alone, room: vec![], ready: vec![], traffic: Arc::clone(&self.traffic) }))
    }
}

/// A linked plan of the host, of whose memory only the addresses are told.
struct Hidden(Box<dyn Executable>);

impl Executable for Hidden {
    fn run(&mut self, routine: usize) -> Result<()> {
        self.0.run(routine)
    }

    fn run_timed(&mut self, routine: usize, timing: &mut Timing) -> Result<()> {
        self.0.run_timed(routine, timing)
    }

    fn relink(&mut self, plan: &Plan) -> Result<()> {
        self.0.relink(plan)
    }

    fn addresses(&self) -> Option<Range<usize>> {
        None
    }

    fn address(&self, buffer: BufferId) -> Option<u64> {
        self.0.look(buffer).map(|bytes| bytes.as_ptr() as u64)
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<()> {
        self.0.write(buffer, bytes)
    }

    fn read(&self, operand: &Operand, bytes: &mut [u8]) -> Result<()> {
        self.0.read(operand, bytes)
    }

    fn look(&self, _buffer: BufferId) -> Option<&[u8]> {
        None
    }

    fn look_mut(&mut self, _buffer: BufferId) -> Option<&mut [u8]> {
        None
    }
}

impl Ends {
    fn of_all(ranks: usize) -> Untaken {
        let none = || Ends { offers: vec![], offered: vec![], thanks: vec![], thanked: vec![] };
        let mut ends: Vec<Ends> = (0..ranks).map(|_| none()).collect();
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let ((offer, offered), (thank, thanked)) = (channel(), channel());
            ends[from].offers.push(offer);
            ends[to].offered.push(offered);
            ends[from].thanks.push(thank);
            ends[to].thanked.push(thanked);
        }
        ends.into_iter().map(Some).collect()
    }
}

/// A rank's end: it takes what is sent to it from where that lies, while the sender waits.
struct SharedPeers {
    ends: Ends,
    /// What works on the device, if that is one.
    alone: Option<Box<dyn Peers>>,
    room: Vec<f32>,
    ready: Vec<Vec<Meeting>>,
    traffic: Arc<Traffic>,
}

impl SharedPeers {
    /// # Safety
    /// As for [`Peers::prepare`].
    unsafe fn carry_out(&mut self, Meeting { messages, sums }: &Meeting) -> Result<()> {
        self.wait(PATIENCE)?;
        let (sent, received): (Vec<&Message>, Vec<&Message>) = messages.iter().partition(|message| message.is_sent);
        for message in &sent {
            self.traffic.sent.fetch_add(message.numbers as u64, Ordering::Relaxed);
            self.ends.offers[message.peer].send(message.address).map_err(|_| lost(message.peer))?;
        }
        let mut copies = vec![];
        for Message { peer, address, numbers, .. } in &received {
            let from = self.ends.offered[*peer].recv_timeout(PATIENCE).map_err(|_| lost(*peer))?;
            let message = |is_sent, address| Message { peer: 0, is_sent, address, numbers: *numbers };
            copies.extend([message(true, from), message(false, *address)]);
        }
        // SAFETY: the caller's promise, here and at the ranks that wait.
        unsafe { self.by_itself(Meeting { messages: copies, sums: vec![] }) }?;
        for message in &received {
            self.ends.thanks[message.peer].send(()).map_err(|_| lost(message.peer))?;
        }
        for message in &sent {
            self.ends.thanked[message.peer].recv_timeout(PATIENCE).map_err(|_| lost(message.peer))?;
        }
        let additions: usize = sums.iter().map(|sum| sum.additions.len() * sum.numbers).sum();
        self.traffic.added.fetch_add(additions as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.by_itself(Meeting { messages: vec![], sums: sums.clone() }) }
    }

    /// Carries out what comes to this rank from itself, and waits for it.
    ///
    /// # Safety
    /// As for [`Peers::prepare`].
    unsafe fn by_itself(&mut self, meeting: Meeting) -> Result<()> {
        if let Some(alone) = &mut self.alone {
            // SAFETY: the caller's promise.
            unsafe { alone.prepare(0, vec![meeting]) }?;
            alone.meet(0)?;
            return alone.wait(PATIENCE);
        }
        for pair in meeting.messages.chunks(2) {
            // SAFETY: the caller's promise; whoever sends waits meanwhile.
            unsafe { written(pair[1].address, &numbers(pair[0].address, pair[0].numbers)) };
        }
        for TreeSum { blocks, additions, target, numbers: count } in &meeting.sums {
            // SAFETY: the caller's promise.
            let mut blocks: Vec<Vec<f32>> = blocks.iter().map(|block| unsafe { numbers(*block, *count) }).collect();
            for &(left, right) in &additions[..] {
                let (first, second) = blocks.split_at_mut(right);
                first[left].iter_mut().zip(&second[0]).for_each(|(sum, number)| *sum += number);
            }
            // SAFETY: the caller's promise.
            unsafe { written(*target, &blocks[0]) };
        }
        Ok(())
    }
}

/// # Safety
/// So many numbers must lie there, and nobody may write them meanwhile.
unsafe fn numbers(address: u64, count: usize) -> Vec<f32> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const f32, count) }.to_vec()
}

/// # Safety
/// As many numbers must lie there, and nobody may touch them meanwhile.
unsafe fn written(address: u64, numbers: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(address as *mut f32, numbers.len()) }.copy_from_slice(numbers);
}

fn lost(peer: usize) -> Error {
    Error::Machine { what: "a shared device".to_string(), reason: format!("rank {peer} does not come") }
}

impl Peers for SharedPeers {
    fn room(&mut self, numbers: usize) -> Result<u64> {
        if let Some(alone) = &mut self.alone {
            return alone.room(numbers);
        }
        self.room = vec![f32::NAN; numbers];
        Ok(self.room.as_mut_ptr() as u64)
    }

    unsafe fn prepare(&mut self, number: usize, meetings: Vec<Meeting>) -> Result<()> {
        self.ready.resize_with(self.ready.len().max(number + 1), Vec::new);
        self.ready[number] = meetings;
        Ok(())
    }

    fn meet(&mut self, number: usize) -> Result<()> {
        let meetings = self.ready[number].clone();
        // SAFETY: by the promise given to `prepare`.
        meetings.iter().try_for_each(|meeting| unsafe { self.carry_out(meeting) })
    }

    fn wait(&mut self, patience: Duration) -> Result<()> {
        self.alone.as_mut().map_or(Ok(()), |alone| alone.wait(patience))
    }
}
