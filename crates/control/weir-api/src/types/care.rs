//! Looking after a pool: scrub and resilver, and disks that go out of use and come back.
//!
//! Not here: a pool's layout and life (`pool`).
//!
//! Invariant: a disk is named by its path, its path's last part or its guid.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::Request;
use super::legs::check_path;
use crate::Error;

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScanKind {
    /// Verify every copy of everything.
    Scrub,
    /// Write to disks what they missed.
    Resilver,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScanState {
    /// Under way.
    Running,
    /// Waits to be continued.
    Paused,
    /// It saw everything.
    Finished,
    /// It ended before it saw everything.
    Stopped,
}

/// The scan of a pool that is under way, or the last one since the pool was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanStatus {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanState,
    /// When it began.
    pub started_unix_ms: u64,
    /// When it ended.
    pub ended_unix_ms: Option<u64>,
    /// Time it ran, pauses left out.
    pub ran_ms: u64,
    /// Stored bytes it has to look at; an estimate, data changes meanwhile.
    pub total_bytes: u64,
    /// Stored bytes it looked at.
    pub examined_bytes: u64,
    /// Bytes written to disks whose copy was bad or missing.
    pub repaired_bytes: u64,
    /// Blocks without any good copy, and copies that could not be written.
    pub errors: u64,
    /// Time it still needs at its speed so far, while it runs.
    pub left_ms: Option<u64>,
}

/// What to do with the scrub of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Start one, or continue the paused one.
    #[default]
    Start,
    /// Let it wait.
    Pause,
    /// End it.
    Stop,
}

/// A scrub to be started, paused or stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolScrub {
    /// Name of the pool.
    pub name: String,
    /// What to do.
    #[serde(default)]
    pub action: ScrubAction,
}

impl Request for PoolScrub {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }
}

/// A disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDisk {
    /// Name of the pool.
    pub name: String,
    /// Path, last part of the path, or guid of the disk.
    pub disk: String,
}

impl Request for PoolDisk {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }
}

/// A disk of a pool that is to be used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolOnline {
    /// Name of the pool.
    pub name: String,
    /// The disk, named as in [`PoolDisk`]; with `at` also anything else: the label says which disk
    /// it is.
    pub disk: String,
    /// Absolute path of the disk now, where that is another one than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl Request for PoolOnline {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        self.at.as_deref().map_or(Ok(()), check_path)
    }
}

/// Errors of a pool to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolClear {
    /// Name of the pool.
    pub name: String,
    /// The one disk that is meant, named as in [`PoolDisk`]; else all of them.
    #[serde(default)]
    pub disk: Option<String>,
    /// Also give up the datasets with unreadable records: their space becomes free, so that no
    /// later import can restore them.
    #[serde(default)]
    pub lost: bool,
}

impl Request for PoolClear {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }
}
