//! Filesystems: datasets of a pool with directories and files.
//!
//! Users read and write the files of a filesystem through a mount. Snapshots, clones and properties
//! of filesystems have the calls of volumes.
//!
//! Invariant: a name follows the same rules in both kinds, and names at most one dataset.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names::{self, PropertyOf};
use weir_base::size::Human;

use super::mount::Mount;
use crate::Error;
use crate::access::Scope;
use crate::types::page::{self, paged};
use crate::types::request::one_name;
use crate::types::{
    Answer, Compression, Outcome, Page, PropertyValues, Request, VolumeDestroy, VolumeRename,
    VolumeSpace, record_size,
};
use crate::wire::ApiError;

/// Default of the largest record of a file.
const fn default_record() -> u64 {
    128 << 10
}

/// Comparison of the names in a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NameCase {
    /// Names with different bytes are different.
    #[default]
    Sensitive,
    /// Names are UTF-8, and names that differ only in case or Unicode normalization are equal.
    /// Files keep the spelling of their names.
    Insensitive,
}

impl NameCase {
    /// Name of the comparison, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sensitive => "sensitive",
            Self::Insensitive => "insensitive",
        }
    }

    /// True for the default.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_sensitive(&self) -> bool {
        *self == Self::Sensitive
    }
}

/// Request to create a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemCreate {
    /// Full name, such as `tank/home`.
    pub name: String,
    /// Largest unit of checksums, compression and storage of a file: a power of two from 4096 to
    /// 1048576 bytes, 131072 by default. It cannot be changed later.
    #[serde(default = "default_record")]
    pub record_bytes: u64,
    /// Comparison of names, `sensitive` by default. It cannot be changed later.
    #[serde(default, skip_serializing_if = "NameCase::is_sensitive")]
    pub case: NameCase,
    /// Local properties of the filesystem; it inherits all others.
    #[serde(default)]
    pub properties: PropertyValues,
}

impl Request for FilesystemCreate {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        if self.properties.0.contains_key("size") {
            let why = "is a property of volumes; a filesystem grows with its files".to_owned();
            return Err(Error::Field { field: "size", why });
        }
        self.properties.settings(PropertyOf::Volume)?;
        record_size(self.record_bytes).map(drop)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let Self { record_bytes, case, properties, .. } = self;
        format!("--record-size {} --case {} {properties}", Human(*record_bytes), case.name())
    }
}

/// Request to list filesystems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFilesystems {
    /// List only filesystems of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

impl Request for ListFilesystems {
    fn check(&self) -> Result<(), Error> {
        Ok(self.pool.as_deref().map_or(Ok(()), names::pool)?)
    }

    fn names(&self) -> Vec<&str> {
        self.pool.as_deref().into_iter().collect()
    }
}

/// Request to show a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowFilesystem {
    /// Full name, such as `tank/home`.
    pub name: String,
}

one_name!(names::volume, name: ShowFilesystem);

/// Request to rename a filesystem that is not mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemRename {
    /// Full name, such as `tank/home`.
    pub name: String,
    /// The new full name, in the same pool, such as `tank/users`.
    pub to: String,
}

impl From<FilesystemRename> for VolumeRename {
    fn from(FilesystemRename { name, to }: FilesystemRename) -> Self {
        Self { name, to }
    }
}

impl Request for FilesystemRename {
    fn check(&self) -> Result<(), Error> {
        VolumeRename::from(self.clone()).check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.to]
    }

    fn details(&self) -> String {
        self.to.clone()
    }
}

/// Request to destroy a filesystem that is not mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemDestroy {
    /// Full name, such as `tank/home`.
    pub name: String,
    /// Also destroy its snapshots.
    #[serde(default)]
    pub recursive: bool,
}

impl From<FilesystemDestroy> for VolumeDestroy {
    fn from(FilesystemDestroy { name, recursive }: FilesystemDestroy) -> Self {
        Self { name, recursive }
    }
}

impl Request for FilesystemDestroy {
    fn check(&self) -> Result<(), Error> {
        VolumeDestroy::from(self.clone()).check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        VolumeDestroy::from(self.clone()).details()
    }
}

/// A filesystem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Filesystem {
    /// Full name, such as `tank/home`.
    pub name: String,
    /// Largest unit of checksums, compression and storage of a file.
    pub record_bytes: u64,
    /// Comparison of names.
    #[serde(default)]
    pub case: NameCase,
    /// Compression of new blocks.
    pub compression: Compression,
    /// Size of the written blocks with data, before compression.
    pub used_bytes: u64,
    /// Size of the written blocks after compression. Counts each byte once, whatever the
    /// redundancy.
    pub stored_bytes: u64,
    /// `used_bytes` divided by `stored_bytes`; 1 for an empty filesystem.
    pub compression_ratio: f64,
    /// True if dedupe is on for new blocks.
    pub dedupe: bool,
    /// Creation time.
    pub created_unix_ms: u64,
    /// Full name of the snapshot from which the filesystem was cloned.
    #[serde(default)]
    pub origin: Option<String>,
    /// Number of snapshots of the filesystem.
    pub snapshots: u64,
    /// Name of the snapshot that the current receive will create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<String>,
    /// Space of the filesystem and its snapshots.
    pub space: VolumeSpace,
    /// Directory at which the server mounts the filesystem when it starts, such as `/srv/home`.
    #[serde(default)]
    pub mountpoint: Option<String>,
    /// Present mounts of the filesystem and of its snapshots.
    pub mounts: Vec<Mount>,
}

impl Answer for Filesystem {
    fn keep(&mut self, scope: &Scope) {
        self.origin = self.origin.take().filter(|origin| scope.covers(origin));
    }
}

/// Filesystems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilesystemList {
    /// The filesystems, by name.
    pub filesystems: Vec<Filesystem>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for FilesystemList {
    const ENTRIES: Option<&'static str> = Some("filesystems");

    fn keep(&mut self, scope: &Scope) {
        self.filesystems.retain(|filesystem| scope.covers(&filesystem.name));
        self.filesystems.iter_mut().for_each(|filesystem| filesystem.keep(scope));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(FilesystemList, filesystems: Filesystem, |entry| &entry.name);

/// Response of a call that changes a filesystem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilesystemChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The filesystem after the call.
    pub filesystem: Filesystem,
}

impl Answer for FilesystemChange {
    fn keep(&mut self, scope: &Scope) {
        self.filesystem.keep(scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_is_sensitive_unless_the_request_states_it() {
        let read = |text: &str| serde_json::from_str::<FilesystemCreate>(text);
        let plain = read(r#"{"name":"tank/home"}"#).expect("a request");
        assert_eq!(plain.case, NameCase::Sensitive);
        let text = serde_json::to_string(&plain).expect("a request");
        assert!(!text.contains("case"), "an older server refuses unknown fields: {text}");
        let folded = read(r#"{"name":"tank/home","case":"insensitive"}"#).expect("a request");
        assert_eq!(folded.case, NameCase::Insensitive);
        assert!(folded.details().contains("--case insensitive"), "{}", folded.details());
        read(r#"{"name":"tank/home","case":"purple"}"#).expect_err("no comparison");
    }

    #[test]
    fn size_and_wrong_record_sizes_are_refused() {
        let create = |record_bytes, size: Option<&str>| {
            let values = size.map(|size| ("size".to_owned(), size.to_owned()));
            let properties = PropertyValues(values.into_iter().collect());
            let (name, case) = ("tank/home".into(), NameCase::Sensitive);
            FilesystemCreate { name, record_bytes, case, properties }.check()
        };
        create(128 << 10, None).expect("the default");
        for bytes in [0, 512, 12288, 2 << 20] {
            let error = create(bytes, None).expect_err("no record size").to_string();
            assert!(error.contains("4KiB to 1MiB"), "{error}");
        }
        let error = create(4096, Some("1GiB")).expect_err("no size").to_string();
        assert!(error.contains("property of volumes"), "{error}");
    }
}
