//! Deterministic simulator: simulated disks, virtual time and a seeded executor that run the engine
//! through many interleavings and power cuts.
//!
//! For development only: no release contains this crate. The engine is in the other crates.
//!
//! Invariants:
//! - a run depends only on its seed and the code: no system clock, thread, memory address or hash
//!   order affects it;
//! - a disk loses at a power cut only data that its contract allows it to lose, unless a test
//!   enabled a [`Fault`].

/// Each recovery reads 1 MiB labels into fresh buffers. If the system allocator maps and unmaps
/// each buffer, the kernel uses three quarters of the CPU time.
#[global_allocator]
static ALLOCATOR: cap::Cap<mimalloc::MiMalloc> = cap::Cap::new(mimalloc::MiMalloc, usize::MAX);

/// Returns the allocated bytes of the process. The arena never frees memory, so the result includes
/// only the arena's cells in use.
pub fn used_bytes() -> u64 {
    let held = weir_block::Arena::held_bytes();
    (ALLOCATOR.allocated().saturating_sub(held) + weir_block::Arena::live_bytes()) as u64
}

mod admin;
mod expected;
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
mod files;
mod history;
mod lost_nodes;
mod lost_records;
mod media;
mod old_legs;
mod operator;
mod metadata_loss;
mod objects;
mod ranges;
mod replication;
mod rng;
mod scenario;
mod snapshots;
mod concurrent;
mod trace;
mod world;

pub use clock::SimClock;
pub use coverage::{Coverage, CoveragePoint, listen, said};
pub use cut::{CutPlan, Grain, SUBSET_UNITS_MAX, Unflushed};
pub use disk::{DiskCounters, SimDisk};
pub use enumerate::{Effort, Report, Violation, enumerate};
pub use error::SimError;
pub use executor::{Executor, JoinHandle, Limits, Sleep, YieldNow};
pub use fault::{Budget, Fault};
pub use files::{
    FileCuts, FilesScenario, LegFault, NfsCounts, NfsScenario, cut_files, run_files, run_nfs,
};
pub use lost_nodes::volumes::lose_nodes;
pub use lost_records::lose_records;
pub use media::{DiskOptions, Latency, MediaImage};
pub use objects::lost_nodes::lose_object_nodes;
pub use rng::Rng;
pub use scenario::{FaultPlan, Layout, Room, Scenario};
pub use trace::{Phase, Trace, TraceEntry};
pub use world::{CutPoint, SimWorld};
