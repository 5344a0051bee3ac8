//! Disks that join a pool, take another's place or leave it.
//!
//! Not here: disks that go out of use and come back (`care`), a pool's layout (`pool`).
//!
//! Invariant: a disk of the pool is named by its path, its path's last part or its guid, a new one
//! by its absolute path.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::Request;
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
    /// Overwrite what the new disk holds.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolAttach {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        check_path(&self.new)
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
    /// Absolute path of the new disk; without it another one that has the same path now.
    #[serde(default)]
    pub new: Option<String>,
    /// Overwrite what the new disk holds.
    #[serde(default)]
    pub force: bool,
    /// Let a good disk leave before the new one has everything, where both cannot be in the vdev.
    #[serde(default)]
    pub at_once: bool,
}

impl Request for PoolReplace {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        self.new.as_deref().map_or(Ok(()), check_path)
    }
}

pub(super) fn check_path(path: &str) -> Result<(), Error> {
    if Path::new(path).is_absolute() {
        return Ok(());
    }
    Err(Error::RelativePath { path: path.to_owned() })
}
