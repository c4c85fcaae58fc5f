//! Less and less memory for more and more time: the order in which results are evicted, and what each further one
//! brings. It does not depend on any limit, so a larger limit never gets a slower plan.

use super::Flow;
use super::flow::Walk;
use crate::plan::BufferId;

/// Ways to carry a routine out, from the fastest to the smallest.
pub(super) struct Ladder {
    /// Results in the order in which they are evicted.
    order: Vec<BufferId>,
    rungs: Vec<Rung>,
}

/// One way to carry a routine out.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Rung {
    /// How many results of the order are evicted.
    evicted: usize,
    /// The most bytes alive at once: no placement needs less.
    pub alive: usize,
    /// The time of all steps.
    seconds: f64,
}

/// What evicting one more result would take.
struct Choice {
    evict: Vec<BufferId>,
    bytes_per_second: f64,
}

impl Ladder {
    /// One rung: these results evicted.
    pub fn fixed(flow: &Flow, order: Vec<BufferId>) -> Ladder {
        let mut ladder = Ladder { order, rungs: vec![] };
        let walk = flow.walk(&ladder.evicted_marks(flow, ladder.order.len()));
        let rung = Rung { evicted: ladder.order.len(), alive: walk.peak, seconds: walk.seconds };
        ladder.rungs.push(rung);
        ladder
    }

    /// Evicts these, and then, again and again, what frees most bytes for a second of computing where most are alive.
    pub fn climb(flow: &Flow, first: Vec<BufferId>) -> Ladder {
        let mut ladder = Ladder { order: first, rungs: vec![] };
        let mut evicted = ladder.evicted_marks(flow, ladder.order.len());
        loop {
            let walk = flow.walk(&evicted);
            if ladder.rungs.last().is_none_or(|rung| walk.peak < rung.alive) {
                // What is slower than this and larger is of no use.
                ladder.rungs.retain(|rung| rung.seconds < walk.seconds);
                let rung = Rung { evicted: ladder.order.len(), alive: walk.peak, seconds: walk.seconds };
                ladder.rungs.push(rung);
            }
            let choices = walk.waiting.iter().filter_map(|&id| choice(flow, &walk, id, &evicted));
            let better = |a: Choice, b: Choice| if b.bytes_per_second > a.bytes_per_second { b } else { a };
            let Some(best) = choices.reduce(better) else { return ladder };
            best.evict.iter().for_each(|&id| evicted[id] = true);
            ladder.order.extend(best.evict);
        }
    }

    /// The ways, from the fastest to the smallest.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// By buffer: whether this way evicts it.
    pub fn evicted(&self, flow: &Flow, rung: &Rung) -> Vec<bool> {
        self.evicted_marks(flow, rung.evicted)
    }

    fn evicted_marks(&self, flow: &Flow, count: usize) -> Vec<bool> {
        let mut marks = vec![false; flow.buffers()];
        self.order[..count].iter().for_each(|&id| marks[id] = true);
        marks
    }
}

/// Evicting a result needs the operands of its step later: those that are gone by then are either kept for it or
/// made again too, whichever brings more.
fn choice(flow: &Flow, walk: &Walk, id: BufferId, evicted: &[bool]) -> Option<Choice> {
    let bytes = flow.bytes(id) as f64;
    let gone = |ids: &[BufferId]| -> Vec<BufferId> {
        ids.iter().copied().filter(|&id| !evicted[id] && !walk.is_alive(id)).collect()
    };
    let missing = gone(flow.operands_to_remake(id, evicted));
    let per_second = |bytes: f64, seconds: f64| bytes / seconds.max(1e-9);
    let own = flow.seconds_to_remake(id, evicted);
    let kept_bytes = bytes - missing.iter().map(|&id| flow.bytes(id) as f64).sum::<f64>();
    let kept = Choice { evict: vec![id], bytes_per_second: per_second(kept_bytes, own) };
    let mut chain = vec![id];
    let mut seconds = own;
    let mut open = missing;
    while let Some(next) = open.pop() {
        if chain.contains(&next) {
            continue;
        }
        if flow.is_fixed(next) {
            return (kept.bytes_per_second > 0.0).then_some(kept);
        }
        flow.writer(next)?;
        seconds += flow.seconds_to_remake(next, evicted);
        open.extend(gone(flow.operands_to_remake(next, evicted)));
        chain.push(next);
    }
    let remade = Choice { evict: chain, bytes_per_second: per_second(bytes, seconds) };
    let best = if kept.bytes_per_second >= remade.bytes_per_second { kept } else { remade };
    (best.bytes_per_second > 0.0).then_some(best)
}
