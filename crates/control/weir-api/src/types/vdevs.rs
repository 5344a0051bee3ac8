//! Requests that add, attach, replace and remove disks and vdevs, or expand a pool.
//!
//! The requests offline and online are in `maintenance`, the layout of a new pool is in `pool`.
//!
//! Invariants:
//! - a request names a disk of the pool by its path, the last part of its path or its guid, and a
//!   vdev by its name in the pool's state: `mirror-0`, or the path of its only disk;
//! - a request names new disks by absolute paths, each once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::maintenance::check_path;
use super::pool::{check_vdevs, told_vdevs};
use super::request::one_name;
use super::{Request, VdevSpec};
use crate::Error;

/// Request to attach a disk to a disk or mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolAttach {
    /// Name of the pool.
    pub name: String,
    /// Any disk of the vdev.
    pub disk: String,
    /// Absolute path of the new disk.
    pub new: String,
    /// Overwrite data on the new disk.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolAttach {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        check_path(&self.new)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        format!("{} {}", self.disk, self.new)
    }
}

/// Request to replace a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolReplace {
    /// Name of the pool.
    pub name: String,
    /// The disk to replace.
    pub disk: String,
    /// Absolute path of the new disk. If absent, the new disk has the path of the old one.
    #[serde(default)]
    pub new: Option<String>,
    /// Overwrite data on the new disk.
    #[serde(default)]
    pub force: bool,
    /// Detach the old disk before the resilver ends, if the vdev cannot hold both disks.
    #[serde(default)]
    pub at_once: bool,
}

impl Request for PoolReplace {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        self.new.as_deref().map_or(Ok(()), check_path)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let new = self.new.as_deref().unwrap_or("");
        format!("{} {new}", self.disk).trim_end().to_owned()
    }
}

/// Request to add vdevs to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolAdd {
    /// Name of the pool.
    pub name: String,
    /// The new vdevs.
    pub vdevs: Vec<VdevSpec>,
    /// Also use disks that hold another pool or a file system, whose data is lost, and allow vdevs
    /// of another redundancy than the pool's.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolAdd {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        if self.vdevs.is_empty() {
            return Err(Error::NoDisks { pool: self.name.clone() });
        }
        check_vdevs(&self.vdevs)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        told_vdevs(self.force, &self.vdevs)
    }
}

/// Request to remove a vdev from a pool, or to stop its removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRemove {
    /// Name of the pool.
    pub name: String,
    /// The vdev: a name such as `mirror-0`, or the path of its only disk.
    pub vdev: String,
    /// Stop the running removal: the vdev stays, with the data that has not been moved.
    #[serde(default)]
    pub stop: bool,
}

impl Request for PoolRemove {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        format!("{}{}", if self.stop { "--stop " } else { "" }, self.vdev)
    }
}

/// Request to expand a pool to the full size of its disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolExpand {
    /// Name of the pool.
    pub name: String,
}

one_name!(names::pool, name: PoolExpand);
