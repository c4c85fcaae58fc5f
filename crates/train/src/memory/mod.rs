//! What the process holds in memory: how much there is, how much is predicted, and how much the system counts.

mod account;
pub mod guard;
pub mod heap;
mod limit;
mod predict;
mod resident;
mod size;

pub use account::{Account, Kind, KindBytes};
pub use gradus_engine::{ProcessMemory, available_memory};
pub use limit::Limit;
pub use predict::{Held, Outside, STEP_BYTES, Stages, WORD_BYTES_MIN, exchanged_on_device, rank_bytes};
pub use resident::{Resident, resident_in};
pub use size::{Budget, Size};
