//! The account of a run's memory: what was predicted for each kind, what is resident of it, and what is left unexplained.

use super::session::Session;
use crate::memory::{Account, Kind, KindBytes, Outside, ProcessMemory, Resident, resident_in};
use crate::planning::{ArenaBytes, Chosen};
use std::ops::Range;

/// What is predicted of a chosen plan and all around it.
pub(crate) fn predicted(chosen: &Chosen, outside: Outside) -> Account {
    let mut account = Account::default();
    for (kind, bytes) in ArenaBytes::of(&chosen.plan).by_kind(outside) {
        account[kind].predicted = bytes;
    }
    account
}

impl Session {
    /// Measures each kind as it is now.
    pub fn account(&self) -> Account {
        let mut account = self.predicted;
        let regions = &self.training.program().plan().regions;
        let Some(arena) = self.training.program().addresses() else { return on_a_device(account) };
        let transients = arena.start + regions.total() - regions.workers - regions.transients;
        let persistent = Residence::of(arena.start..transients);
        let replayed = Residence::of(transients..arena.end);
        for kind in [Kind::Weights, Kind::Gradients, Kind::Optimizer, Kind::Activations, Kind::Scratch] {
            // States are touched whole; of what a replay uses, so much as it touched.
            let share = if matches!(kind, Kind::Activations | Kind::Scratch) { replayed } else { persistent };
            account[kind].measured = share.of_bytes(account[kind].predicted);
        }
        let outside = Resident::read();
        let data = account[Kind::Data].predicted;
        account[Kind::Data].measured = data;
        let named = outside.files + outside.heap + outside.stack;
        account[Kind::Runtime] = KindBytes { measured: named.saturating_sub(data), ..account[Kind::Runtime] };
        account.peak = ProcessMemory::read().peak;
        account
    }
}

/// On a device an arena is there whole from the beginning, and so is what is taken besides.
fn on_a_device(mut account: Account) -> Account {
    let arena = [Kind::Weights, Kind::Gradients, Kind::Optimizer, Kind::Activations, Kind::Scratch];
    for kind in arena.into_iter().chain([Kind::Data, Kind::Runtime]) {
        account[kind].measured = account[kind].predicted;
        account.peak += account[kind].measured;
    }
    account
}

/// The share of some addresses that is resident.
#[derive(Clone, Copy)]
struct Residence {
    share: f64,
}

impl Residence {
    fn of(addresses: Range<usize>) -> Residence {
        let length = addresses.len() as f64;
        let resident = resident_in(addresses).map_or(length, |bytes| bytes as f64);
        Residence { share: if length > 0.0 { (resident / length).min(1.0) } else { 1.0 } }
    }

    fn of_bytes(self, bytes: u64) -> u64 {
        (self.share * bytes as f64) as u64
    }
}
