//! Vdevs that join a pool or leave it, and larger disks.
//!
//! Not here: disks of a vdev (`legs`), a new pool's layout (`pool`).
//!
//! Invariant: a vdev of the pool is named as its state names it, `mirror-0` or the path of its only
//! disk; new disks are named by absolute paths, each once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::pool::check_vdevs;
use super::{Request, VdevSpec};
use crate::Error;

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
}
