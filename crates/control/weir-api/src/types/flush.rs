//! Flush latencies of disks, measured at the creation of a pool.
//!
//! weir-device measures the latencies and classifies them.
//!
//! Invariant: each latency is the median of several measurements, in microseconds.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, Outcome, PoolChange};
use crate::access::Scope;

/// Whether the flush latencies of a disk are plausible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlushVerdict {
    /// The disk is as fast as a disk of its kind can be, or declares that it has no volatile cache.
    Plausible,
    /// The disk is faster than a disk with a volatile cache can make data durable.
    TooFast,
    /// Weir knows no expected latency of the disk, because it is virtual, remote or stacked.
    NotJudged,
    /// The disk keeps its data in memory, so no data is durable.
    NotDurable,
}

impl FlushVerdict {
    /// Returns the name of the verdict in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plausible => "plausible",
            Self::TooFast => "TOO FAST",
            Self::NotJudged => "not judged",
            Self::NotDurable => "NOT DURABLE",
        }
    }
}

/// Time to make 4 KiB durable on one disk, measured before the pool was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlushCheck {
    /// Path of the disk.
    pub disk: String,
    /// Medium of the disk, as far as the kernel reports it.
    pub medium: String,
    /// Number of measurements of each latency.
    pub samples: u64,
    /// Latency of a write into the disk's cache.
    pub write_us: u64,
    /// Latency of the flush after that write.
    pub flush_us: u64,
    /// Latency of a write that is durable when it returns.
    pub sync_write_us: u64,
    /// Verdict on these latencies.
    pub verdict: FlushVerdict,
}

/// Response of the call that creates a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolCreated {
    /// State of the pool, as in the responses of all calls that change a pool.
    #[serde(flatten)]
    pub change: PoolChange,
    /// Measurements of each disk; empty if the pool existed before the call.
    #[serde(default)]
    pub flush_checks: Vec<FlushCheck>,
}

impl Answer for PoolCreated {
    // A caller with a scope may not create pools, so there is nothing to remove.
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(self.change.outcome)
    }
}

impl PoolCreated {
    /// Returns the outcome of the call.
    pub fn outcome(&self) -> Outcome {
        self.change.outcome
    }
}
