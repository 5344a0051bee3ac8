//! Mounts of filesystems and of their snapshots on the machine of the server.
//!
//! Invariant: a directory in a request is absolute and has neither `.` nor `..`, so that a text
//! comparison finds equal directories.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;
use weir_base::property::MountPoint;

use crate::Error;
use crate::access::Scope;
use crate::types::page::{self, paged};
use crate::types::request::no_rules;
use crate::types::{Answer, Outcome, Page, Request};
use crate::wire::ApiError;

/// Request to mount a filesystem or a snapshot of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemMount {
    /// Full name of a filesystem or snapshot, such as `tank/home` or `tank/home@monday`.
    pub name: String,
    /// An empty directory on the machine of the server, such as `/srv/home`. Without it, a
    /// filesystem is mounted at its `mountpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Refuse changes through this mount. Mounts of snapshots are always read-only.
    #[serde(default)]
    pub read_only: bool,
}

impl Request for FilesystemMount {
    fn check(&self) -> Result<(), Error> {
        let (_, snapshot) = names::dataset(&self.name)?;
        let Some(directory) = &self.directory else {
            let why = "is required for a snapshot".to_owned();
            let error = Error::Field { field: "directory", why };
            return if snapshot.is_some() { Err(error) } else { Ok(()) };
        };
        let bad = |why: &str| Error::Field { field: "directory", why: why.to_owned() };
        MountPoint::check(directory).map_err(bad)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let directory = self.directory.as_deref().unwrap_or_default();
        if self.read_only { format!("{directory} -o ro") } else { directory.to_owned() }
    }
}

/// Request to unmount a filesystem or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemUnmount {
    /// Full name of a mounted filesystem or snapshot, such as `tank/home`.
    pub name: String,
    /// Unmount although programs use files of the mount. They get errors from then on.
    #[serde(default)]
    pub force: bool,
}

impl Request for FilesystemUnmount {
    fn check(&self) -> Result<(), Error> {
        names::dataset(&self.name)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        if self.force { "--force".to_owned() } else { String::new() }
    }
}

/// Request to list mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListMounts {}

no_rules!(ListMounts);

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// Full name of the filesystem or snapshot, such as `tank/home`.
    pub name: String,
    /// The directory, such as `/srv/home`.
    pub directory: String,
    /// True if the mount refuses changes.
    pub read_only: bool,
}

/// Response of a call that mounts or unmounts a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The mount; after an unmount, the mount that existed.
    pub mount: Mount,
}

impl Answer for MountChange {
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountList {
    /// The mounts, by name.
    pub mounts: Vec<Mount>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for MountList {
    const ENTRIES: Option<&'static str> = Some("mounts");

    fn keep(&mut self, scope: &Scope) {
        self.mounts.retain(|mount| scope.covers(&mount.name));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(MountList, mounts: Mount, |entry| &entry.name);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_absolute_and_plain() {
        let mount = |name: &str, directory: Option<&str>| {
            let directory = directory.map(str::to_owned);
            FilesystemMount { name: name.into(), directory, read_only: false }.check()
        };
        mount("tank/home", None).expect("its mountpoint");
        mount("tank/home@a", Some("/srv/a")).expect("a snapshot");
        mount("tank/home@a", None).expect_err("a snapshot has no mountpoint");
        for bad in ["", "/", "srv", "/srv/../etc", "/srv/./a", "/srv//a", "/srv/", "/a\nb", "/a\0"]
        {
            let error = mount("tank/home", Some(bad)).expect_err(bad).to_string();
            assert!(error.contains("directory"), "{bad:?}: {error}");
        }
    }
}
