//! What was measured of a disk's flushes when a pool was made.
//!
//! Not here: measuring and judging (weir-device).
//!
//! Invariant: times are medians of several measurements, in microseconds.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, Outcome, PoolChange};
use crate::access::Scope;

/// What the times of a disk say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlushVerdict {
    /// As quick as such a disk can be, or it declares that it has nothing to flush.
    Plausible,
    /// Quicker than a disk with a volatile cache can make anything durable.
    TooFast,
    /// What the times should be is not known: a virtual, remote or stacked disk.
    NotJudged,
    /// There is nothing durable: it keeps its data in memory.
    NotDurable,
}

impl FlushVerdict {
    /// The verdict as tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plausible => "plausible",
            Self::TooFast => "TOO FAST",
            Self::NotJudged => "not judged",
            Self::NotDurable => "NOT DURABLE",
        }
    }
}

/// How long one disk took to make 4 KiB durable, before the pool was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlushCheck {
    /// Path of the disk.
    pub disk: String,
    /// What it keeps its data on, as far as the kernel tells.
    pub medium: String,
    /// How often each time was measured.
    pub samples: u64,
    /// A write into the disk's cache.
    pub write_us: u64,
    /// The flush after that write.
    pub flush_us: u64,
    /// A write that is durable when it returns.
    pub sync_write_us: u64,
    /// What these times say.
    pub verdict: FlushVerdict,
}

/// The answer of the call that makes a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolCreated {
    /// As every call that changes a pool answers.
    #[serde(flatten)]
    pub change: PoolChange,
    /// What was measured of each disk; empty if the pool was there already.
    #[serde(default)]
    pub flush_checks: Vec<FlushCheck>,
}

impl Answer for PoolCreated {
    // The call is refused to every scope.
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(self.change.outcome)
    }
}

impl PoolCreated {
    /// What the call did.
    pub fn outcome(&self) -> Outcome {
        self.change.outcome
    }
}
