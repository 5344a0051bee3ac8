//! Usage and quotas of the users, groups and projects of a filesystem.
//!
//! Invariant: a quota is a number of bytes or files above 0; the absence of a field means that
//! there is no quota.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;
use weir_base::size::Human;

use crate::Error;
use crate::access::Scope;
use crate::types::request::one_name;
use crate::types::{Answer, Outcome, Request};

/// Kind of an owner of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileOwner {
    /// User.
    User,
    /// Group.
    Group,
    /// Project: the files below directories that an administrator chose.
    Project,
}

impl FileOwner {
    /// Name of the kind, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }
}

/// Request for the usage of a filesystem by users, groups and projects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowFilesystemUsage {
    /// Full name, such as `tank/home`.
    pub name: String,
}

one_name!(names::volume, name: ShowFilesystemUsage);

/// Request to set a quota of a user, group or project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemQuota {
    /// Full name, such as `tank/home`.
    pub name: String,
    /// Kind of the owner.
    pub owner: FileOwner,
    /// Number of the user, group or project.
    pub id: u32,
    /// Maximum size of the owner's files in bytes, before compression; 0 removes the quota. Absent:
    /// no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Maximum number of the owner's files and directories; 0 removes the quota. Absent: no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_files: Option<u64>,
}

impl Request for FilesystemQuota {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let bytes = self.quota_bytes.map(|bytes| format!(" {}", Human(bytes)));
        let files = self.quota_files.map(|files| format!(" {files} files"));
        let (bytes, files) = (bytes.unwrap_or_default(), files.unwrap_or_default());
        format!("--{} {}{bytes}{files}", self.owner.name(), self.id)
    }
}

/// Usage of a filesystem by one user, group or project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerUsage {
    /// Kind of the owner.
    pub owner: FileOwner,
    /// Number of the user, group or project.
    pub id: u32,
    /// Size of the owner's files: whole blocks of 4 KiB, before compression.
    pub used_bytes: u64,
    /// Number of the owner's files and directories.
    pub files: u64,
    /// Maximum of `used_bytes`.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Maximum of `files`.
    #[serde(default)]
    pub quota_files: Option<u64>,
}

/// Usage of a filesystem by users, groups and projects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesystemUsage {
    /// Each owner with files or a quota, by kind and number.
    pub owners: Vec<OwnerUsage>,
    /// Number of further owners, which the response leaves out.
    pub left_out: u64,
}

impl Answer for FilesystemUsage {
    fn keep(&mut self, _scope: &Scope) {}
}

/// Response of a call that sets a quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Usage and quotas of the owner after the call.
    pub usage: OwnerUsage,
}

impl Answer for QuotaChange {
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}
