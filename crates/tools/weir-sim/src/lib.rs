//! A world in a box: simulated disks, virtual time and a seeded executor, to run the engine through
//! every order of events and every power cut.
//!
//! Not here: the engine itself, and anything that ships; this crate is for development only.
//!
//! Invariants:
//! - a run is a function of its seed and its code: no system clock, no threads, no addresses and
//!   no hash order decide anything;
//! - a disk never keeps more than its contract allows it to lose, and never loses more, unless a
//!   [`Fault`] was switched on.

/// Each recovery reads labels of a MiB into fresh buffers. Where the system allocator maps and
/// unmaps every one of them, the kernel does three quarters of the work.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod admin;
mod books;
mod check;
mod client;
mod clock;
mod coverage;
mod cut;
mod disk;
mod enumerate;
mod error;
mod executor;
mod fault;
mod history;
mod lost_nodes;
mod lost_records;
mod media;
mod old_legs;
mod operator;
mod own_losses;
mod ranges;
mod replica;
mod rng;
mod scenario;
mod snapshots;
mod together;
mod trace;
mod world;

pub use clock::SimClock;
pub use coverage::{Coverage, Met, listen, said};
pub use cut::{CutPlan, Grain, SUBSET_UNITS_MAX, Unflushed};
pub use disk::{DiskCounters, SimDisk};
pub use enumerate::{Effort, Report, Violation, enumerate};
pub use error::SimError;
pub use executor::{Executor, JoinHandle, Limits, Sleep, YieldNow};
pub use fault::{Budget, Fault};
pub use lost_nodes::lose_nodes;
pub use lost_records::lose_records;
pub use media::{DiskOptions, Latency, MediaImage};
pub use rng::Rng;
pub use scenario::{Layout, Room, Scenario, Trouble};
pub use trace::{Phase, Trace, TraceEntry};
pub use world::{CutPoint, SimWorld};
