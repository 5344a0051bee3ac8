//! Disk maintenance: scrub and resilver, offline and online, detach, and the clearing of errors.
//!
//! Creation, import and state of a pool are in `pool`.
//!
//! Invariant: a request names a disk by its path, the last part of its path or its guid.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::Request;
use crate::Error;
use crate::access::Resources;

/// Type of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScanKind {
    /// Verifies every copy of all data.
    Scrub,
    /// Writes to disks the data that they missed.
    Resilver,
}

/// State of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScanState {
    /// The scan is running.
    Running,
    /// The scan is paused until an administrator continues it.
    Paused,
    /// The scan examined all data.
    Finished,
    /// The scan ended before it had examined all data.
    Stopped,
}

/// The running scan of a pool, or the last one since the pool was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanStatus {
    /// Type of the scan.
    pub kind: ScanKind,
    /// State of the scan.
    pub state: ScanState,
    /// Start time.
    pub started_unix_ms: u64,
    /// End time.
    pub ended_unix_ms: Option<u64>,
    /// Running time, without pauses.
    pub ran_ms: u64,
    /// Stored bytes to examine; an estimate, because the data changes during the scan.
    pub total_bytes: u64,
    /// Stored bytes examined.
    pub examined_bytes: u64,
    /// Bytes of bad or missing copies that the scan rewrote.
    pub repaired_bytes: u64,
    /// Number of blocks without an intact copy, and of copies that could not be written.
    pub errors: u64,
    /// Estimated time to the end at the average speed so far; absent unless the scan runs.
    pub left_ms: Option<u64>,
}

/// Action on the scrub of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Start a scrub, or continue a paused one.
    #[default]
    Start,
    /// Pause the scrub.
    Pause,
    /// Stop the scrub.
    Stop,
}

/// Request to start, pause or stop a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolScrub {
    /// Name of the pool.
    pub name: String,
    /// The action.
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

/// Request to take a redundant disk offline.
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

/// Request to detach a disk from a mirror permanently.
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

/// Request to bring a disk online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolOnline {
    /// Name of the pool.
    pub name: String,
    /// Path, last part of the path, or guid of the disk.
    pub disk: String,
    /// Absolute path of the disk, if the path has changed. The label on the disk identifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Overwrite writes that only this disk has, because it was written without the other disks.
    #[serde(default)]
    pub force: bool,
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
        let disk = self.at.as_ref().unwrap_or(&self.disk);
        if self.force { format!("--force {disk}") } else { disk.clone() }
    }

    fn reach(&self, operations: Resources) -> Resources {
        // The path in `at` can name any disk of the machine, so the caller needs a scope that
        // covers the whole machine.
        if self.at.is_some() { Resources::Machine } else { operations }
    }
}

/// Request to clear the errors of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolClear {
    /// Name of the pool.
    pub name: String,
    /// The disk, as in the field `disk` of [`PoolOffline`]; absent: all disks of the pool.
    #[serde(default)]
    pub disk: Option<String>,
    /// Also give up datasets with unreadable records: the pool frees their space, so no later
    /// import can restore them.
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
