//! The cheapest way to part a network: which of its vertices to take out, so that nothing leads from the source to the sink.

use std::collections::VecDeque;

/// Vertices, and arcs between them with room for so much.
pub(super) struct Network {
    /// Each arc is followed by the one back, whose room is what went through it.
    arcs: Vec<Arc>,
    /// By vertex: the arcs that leave it.
    leaving: Vec<Vec<usize>>,
}

struct Arc {
    to: usize,
    room: u64,
}

/// More than all arcs together hold.
pub(super) const UNLIMITED: u64 = u64::MAX / 4;

impl Network {
    pub fn of(vertices: usize) -> Network {
        Network { arcs: vec![], leaving: vec![vec![]; vertices] }
    }

    pub fn add(&mut self, from: usize, to: usize, room: u64) {
        for (from, to, room) in [(from, to, room), (to, from, 0)] {
            self.leaving[from].push(self.arcs.len());
            self.arcs.push(Arc { to, room });
        }
    }

    /// By vertex: whether it lies behind the cheapest cut, on the side of the sink. Of several cuts that cost the same it is the one
    /// nearest to the sink.
    pub fn behind_the_cut(mut self, source: usize, sink: usize) -> Vec<bool> {
        while let Some(path) = self.path(source, sink) {
            let room = path.iter().map(|&arc| self.arcs[arc].room).min().expect("a path has arcs");
            for arc in path {
                self.arcs[arc].room -= room;
                self.arcs[arc ^ 1].room += room;
            }
        }
        // What still leads to the sink: backwards, an arc that enters is the one back of one that leaves.
        let mut behind = vec![false; self.leaving.len()];
        let mut open = vec![sink];
        behind[sink] = true;
        while let Some(vertex) = open.pop() {
            for &arc in &self.leaving[vertex] {
                let from = self.arcs[arc].to;
                if self.arcs[arc ^ 1].room > 0 && !std::mem::replace(&mut behind[from], true) {
                    open.push(from);
                }
            }
        }
        behind
    }

    /// The arcs of a shortest path with room, from the sink back to the source.
    fn path(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut by: Vec<Option<usize>> = vec![None; self.leaving.len()];
        let mut open = VecDeque::from([source]);
        while let Some(vertex) = open.pop_front() {
            for &arc in &self.leaving[vertex] {
                let Arc { to, room } = self.arcs[arc];
                if room > 0 && to != source && by[to].is_none() {
                    by[to] = Some(arc);
                    open.push_back(to);
                }
            }
            if let Some(last) = by[sink] {
                let before = |&arc: &usize| by[self.arcs[arc ^ 1].to];
                return Some(std::iter::successors(Some(last), before).collect());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_cut_is_found_and_of_equal_ones_the_last() {
        // 0 is the source, 5 the sink; two ways, one of which needs what went through the other to turn back.
        let mut network = Network::of(6);
        for (from, to, room) in [(0, 1, 3), (0, 2, 3), (1, 3, 2), (1, 4, 2), (2, 3, 2), (3, 5, 3), (4, 5, 1)] {
            network.add(from, to, room);
        }
        assert_eq!(network.behind_the_cut(0, 5), [false, false, false, false, false, true]);
        let mut chain = Network::of(4);
        for (from, to, room) in [(0, 1, UNLIMITED), (1, 2, 7), (2, 3, 7)] {
            chain.add(from, to, room);
        }
        assert_eq!(chain.behind_the_cut(0, 3), [false, false, false, true]);
    }

    #[test]
    fn a_cut_costs_as_much_as_the_cheapest_of_all() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let arcs: Vec<(usize, usize, u64)> = (0..14)
                .map(|_| (random(7) as usize, random(7) as usize, random(9)))
                .filter(|(a, b, _)| a != b)
                .collect();
            let mut network = Network::of(7);
            arcs.iter().for_each(|&(from, to, room)| network.add(from, to, room));
            let cost = |behind: &dyn Fn(usize) -> bool| -> u64 {
                let cut = arcs.iter().filter(|&&(from, to, _)| !behind(from) && behind(to));
                cut.map(|&(_, _, room)| room).sum()
            };
            let found = network.behind_the_cut(0, 6);
            assert!(!found[0] && found[6]);
            let cheapest = (0..32u32).map(|sides| cost(&|v| v == 6 || v > 0 && sides >> (v - 1) & 1 == 1)).min();
            assert_eq!(Some(cost(&|vertex| found[vertex])), cheapest);
        }
    }
}
