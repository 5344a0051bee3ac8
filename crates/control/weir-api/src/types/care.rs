//! Looking after a pool: scrub and resilver, and disks that go out of use and come back.
//!
//! Not here: a pool's layout and life (`pool`).
//!
//! Invariant: a disk is named by its path, its path's last part or its guid.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::Request;
use crate::Error;
use crate::access::Reach;

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

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let word = match self.action {
            ScrubAction::Start => "",
            ScrubAction::Pause => "--pause",
            ScrubAction::Stop => "--stop",
        };
        word.to_owned()
    }
}

/// A disk of a mirror to be taken out of use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolOffline {
    /// Name of the pool.
    pub name: String,
    /// Path, last part of the path, or guid of the disk.
    pub disk: String,
}

impl Request for PoolOffline {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.disk.clone()
    }
}

/// A disk to be taken out of a mirror for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDetach {
    /// Name of the pool.
    pub name: String,
    /// Path, last part of the path, or guid of the disk.
    pub disk: String,
}

impl Request for PoolDetach {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.disk.clone()
    }
}

/// A disk of a pool that is to be used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolOnline {
    /// Name of the pool.
    pub name: String,
    /// Path, last part of the path, or guid of the disk.
    pub disk: String,
    /// Absolute path of the disk now, where that is another one than before. The label there says
    /// which disk it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl Request for PoolOnline {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        self.at.as_deref().map_or(Ok(()), check_path)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.at.as_ref().unwrap_or(&self.disk).clone()
    }

    fn reach(&self, operations: Reach) -> Reach {
        // `at` names any disk of the machine.
        if self.at.is_some() { Reach::Machine } else { operations }
    }
}

/// Errors of a pool to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolClear {
    /// Name of the pool.
    pub name: String,
    /// The disk, named as in [`PoolOffline`]; without it, all disks of the pool.
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

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.disk.clone().unwrap_or_default()
    }
}

pub(super) fn check_path(path: &str) -> Result<(), Error> {
    if Path::new(path).is_absolute() {
        return Ok(());
    }
    Err(Error::RelativePath { path: path.to_owned() })
}
