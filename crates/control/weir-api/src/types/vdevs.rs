//! Disks and vdevs that join a pool, take another's place or leave it, and larger disks.
//!
//! Not here: disks that go offline and online (`care`), the layout of a new pool (`pool`).
//!
//! Invariants:
//! - a disk of the pool is named by its path, the last part of its path or its guid; a vdev as its
//!   state names it, `mirror-0` or the path of its only disk;
//! - new disks are named by absolute paths, each once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::care::check_path;
use super::pool::{check_vdevs, told_vdevs};
use super::request::one_name;
use super::{Request, VdevSpec};
use crate::Error;

/// A disk to be added to a disk or mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolAttach {
    /// Name of the pool.
    pub name: String,
    /// A disk of the vdev.
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

/// A disk to take another's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolReplace {
    /// Name of the pool.
    pub name: String,
    /// The disk to be replaced.
    pub disk: String,
    /// Absolute path of the new disk. Without it, the new disk has the path of the old one.
    #[serde(default)]
    pub new: Option<String>,
    /// Overwrite data on the new disk.
    #[serde(default)]
    pub force: bool,
    /// Remove the old disk before the resilver ends, if the vdev has no place for both disks.
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

/// Vdevs to be added to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolAdd {
    /// Name of the pool.
    pub name: String,
    /// The new vdevs.
    pub vdevs: Vec<VdevSpec>,
    /// Also use disks that hold another pool or a file system, and add vdevs of another redundancy
    /// than the pool's. What such disks hold is lost.
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

/// A vdev to be removed from a pool, or to stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRemove {
    /// Name of the pool.
    pub name: String,
    /// The vdev: `mirror-0` and the like, or its only disk.
    pub vdev: String,
    /// End the removal that is under way: the vdev stays, with what is still on it.
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

/// A pool that shall use all of its disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolExpand {
    /// Name of the pool.
    pub name: String,
}

one_name!(names::pool, name: PoolExpand);
