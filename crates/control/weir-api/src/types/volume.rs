//! Volumes: thin block datasets of a pool.
//!
//! Clients read and write the data of a volume through exports.
//!
//! Invariant: a request to create or resize a volume passes [`check_volume_size`].

pub(super) mod size;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names::PropertyOf;
use weir_base::size::Human;
use weir_base::{RecordSize, names};

use self::size::{check_volume_size, one_block, record_size};
use super::page::paged;
use super::request::one_name;
use super::{Answer, Compression, Outcome, Page, PropertySet, PropertyValues, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::wire::ApiError;

/// Request to create a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Size that clients see; a multiple of `record_bytes`.
    pub size_bytes: u64,
    /// Unit of checksums, compression and storage: a power of two from 4096 (the default) to
    /// 1048576 bytes. It cannot be changed later.
    #[serde(default = "one_block")]
    pub record_bytes: u64,
    /// Local properties of the volume; it inherits all others.
    #[serde(default)]
    pub properties: PropertyValues,
}

impl Request for VolumeCreate {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        if self.properties.0.contains_key("size") {
            return Err(Error::SizeWithOthers);
        }
        self.properties.settings(PropertyOf::Volume)?;
        check_volume_size(self.size_bytes, record_size(self.record_bytes)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        let (size, record) = (Human(self.size_bytes), Human(self.record_bytes));
        format!("--size {size} --record-size {record} {}", self.properties)
    }
}

/// Request to change properties of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSet {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The properties to change.
    #[serde(flatten)]
    pub properties: PropertyValues,
}

impl From<VolumeSet> for PropertySet {
    fn from(VolumeSet { name, properties }: VolumeSet) -> Self {
        Self { name, properties }
    }
}

impl Request for VolumeSet {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        PropertySet::from(self.clone()).check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.properties.to_string()
    }
}

/// Request to resize a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The new size; a multiple of the volume's `record_bytes`.
    pub size_bytes: u64,
}

impl Request for VolumeResize {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        // The engine checks later whether the size fits the volume's record size.
        check_volume_size(self.size_bytes, RecordSize::BLOCK)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        Human(self.size_bytes).to_string()
    }
}

/// Request to rename a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRename {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The new full name, in the same pool, such as `tank/vm2`.
    pub to: String,
}

impl Request for VolumeRename {
    fn check(&self) -> Result<(), Error> {
        let (pool, _) = names::volume(&self.name)?;
        let (to, _) = names::volume(&self.to)?;
        if to == pool {
            return Ok(());
        }
        Err(Error::Elsewhere { name: self.name.clone(), to: self.to.clone(), what: "pool" })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.to]
    }

    fn details(&self) -> String {
        self.to.clone()
    }
}

/// Request to copy a volume or snapshot into a new volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCopy {
    /// Full name of a volume or snapshot, such as `tank/vm1` or `tank/vm1@monday`.
    pub name: String,
    /// Full name of the new volume, in the same pool, such as `tank/vm2`.
    pub to: String,
}

impl Request for VolumeCopy {
    fn check(&self) -> Result<(), Error> {
        let (of, _) = names::dataset(&self.name)?;
        let (pool, _) = names::volume(of)?;
        let (to, _) = names::volume(&self.to)?;
        if to == pool {
            return Ok(());
        }
        Err(Error::Elsewhere { name: self.name.clone(), to: self.to.clone(), what: "pool" })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.to]
    }

    fn details(&self) -> String {
        self.to.clone()
    }
}

/// Request to destroy a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDestroy {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Also destroy its snapshots.
    #[serde(default)]
    pub recursive: bool,
}

impl Request for VolumeDestroy {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        if self.recursive { "-r".to_owned() } else { String::new() }
    }
}

/// Request to list volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListVolumes {
    /// List only volumes of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

impl Request for ListVolumes {
    fn check(&self) -> Result<(), Error> {
        Ok(self.pool.as_deref().map_or(Ok(()), names::pool)?)
    }

    fn names(&self) -> Vec<&str> {
        self.pool.as_deref().into_iter().collect()
    }
}

/// Request to show a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowVolume {
    /// Full name, such as `tank/vm1`.
    pub name: String,
}

one_name!(names::volume, name: ShowVolume);

/// Request to promote a clone, so that its origin becomes its own snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumePromote {
    /// Full name, such as `tank/vm1`.
    pub name: String,
}

one_name!(names::volume, name: VolumePromote);

/// Space of a volume and its snapshots as of the last commit: data and tree nodes as stored. Counts
/// each byte once, whatever the redundancy. Blocks that a clone shares with its origin count for
/// the volume of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSpace {
    /// Space that the volume can still use.
    pub available_bytes: u64,
    /// Space that destroying the volume with all its snapshots would free.
    pub used_bytes: u64,
    /// Part of `used_bytes` that only snapshots reference.
    pub by_snapshots_bytes: u64,
    /// Part of `used_bytes` that the volume itself references.
    pub by_volume_bytes: u64,
    /// Space of the blocks that the volume references, including blocks that it shares with its
    /// origin.
    pub referenced_bytes: u64,
    /// Part of `referenced_bytes` that was written since the newest snapshot.
    pub written_bytes: u64,
    /// Part of `used_bytes` that the refreservation reserves in addition to the volume's data.
    #[serde(default)]
    pub by_refreservation_bytes: u64,
}

/// Kind of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    /// A volume: blocks.
    #[default]
    Volume,
    /// A filesystem: directories and files.
    Filesystem,
}

impl DatasetKind {
    /// Name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Filesystem => "filesystem",
        }
    }
}

/// A volume. Calls that create datasets of both kinds, such as `snapshot_clone`, also return
/// filesystems in this form, with a size of 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Kind of the dataset.
    #[serde(default)]
    pub kind: DatasetKind,
    /// Size that clients see.
    pub size_bytes: u64,
    /// Size of the unit that clients address. A write of a part of a block reads the rest of the
    /// block.
    pub block_bytes: u32,
    /// Size of the unit of checksums, compression and storage. A write of a part of a record reads
    /// the other parts and stores the complete record again.
    #[serde(default = "one_block")]
    pub record_bytes: u64,
    /// Compression of new blocks.
    pub compression: Compression,
    /// Size of the written blocks with data, before compression.
    pub used_bytes: u64,
    /// Size of the written blocks after compression. Counts each byte once, whatever the
    /// redundancy.
    pub stored_bytes: u64,
    /// `used_bytes` divided by `stored_bytes`; 1 for an empty volume.
    pub compression_ratio: f64,
    /// True if dedupe is on for new blocks.
    #[serde(default)]
    pub dedupe: bool,
    /// Part of `stored_bytes` that already existed in the pool when dedupe or a block clone
    /// referenced it.
    #[serde(default)]
    pub shared_bytes: u64,
    /// `stored_bytes` divided by its part outside `shared_bytes`, which counts as at least one
    /// block; 1 without shared blocks.
    #[serde(default = "super::pool::unshared")]
    pub dedupe_ratio: f64,
    /// Creation time.
    pub created_unix_ms: u64,
    /// Names of the exports of the volume.
    pub exports: Vec<String>,
    /// Full name of the snapshot from which the volume was cloned.
    #[serde(default)]
    pub origin: Option<String>,
    /// Number of snapshots of the volume.
    #[serde(default)]
    pub snapshots: u64,
    /// Name of the snapshot that the current receive will create. Until the receive ends, only its
    /// stream changes the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<String>,
    /// Space of the volume and its snapshots.
    #[serde(default)]
    pub space: VolumeSpace,
}

impl Answer for Volume {
    fn keep(&mut self, scope: &Scope) {
        self.origin = self.origin.take().filter(|origin| scope.covers(origin));
    }
}

/// Volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for VolumeList {
    const ENTRIES: Option<&'static str> = Some("volumes");

    fn keep(&mut self, scope: &Scope) {
        self.volumes.retain(|volume| scope.covers(&volume.name));
        self.volumes.iter_mut().for_each(|volume| volume.keep(scope));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(VolumeList, volumes: Volume, |entry| &entry.name);

/// Response of a call that changes a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The volume after the call.
    pub volume: Volume,
}

impl Answer for VolumeChange {
    fn keep(&mut self, scope: &Scope) {
        self.volume.keep(scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_size_error_names_the_next_valid_size() {
        let create = |size_bytes, record_bytes| {
            let properties = PropertyValues::default();
            VolumeCreate { name: "tank/a".into(), size_bytes, record_bytes, properties }.check()
        };
        create(1 << 20, 64 << 10).expect("16 records");
        let error = create(100_000, 64 << 10).expect_err("a part of a record").to_string();
        assert!(error.contains("record size, 64KiB; the next larger is 131072"), "{error}");
        create(131_072, 64 << 10).expect("what it said");
        for record_bytes in [0, 512, 12288, 2 << 20, u64::MAX] {
            let error = create(1 << 30, record_bytes).expect_err("no record size").to_string();
            assert!(error.contains("4KiB to 1MiB"), "{error}");
        }
    }

    #[test]
    fn record_size_defaults_to_one_block() {
        let asked = r#"{"name": "tank/a", "size_bytes": 8192}"#;
        let request: VolumeCreate = serde_json::from_str(asked).expect("a request");
        assert_eq!(request.record_bytes, 4096);
        request.check().expect("two records");
    }

    #[test]
    fn unknown_properties_and_values_are_refused() {
        let values =
            |name: &str, value: &str| PropertyValues([(name.to_owned(), value.to_owned())].into());
        let set = |properties| VolumeSet { name: "tank/a".into(), properties }.check();
        let create = |properties| {
            let (size_bytes, record_bytes) = (4096, 4096);
            VolumeCreate { name: "tank/a".into(), size_bytes, record_bytes, properties }.check()
        };
        set(values("compression", "off")).expect("known");
        create(values("refreservation", "auto")).expect("known");
        for check in [set, create] {
            let error = check(values("compresion", "off")).expect_err("unknown").to_string();
            assert!(error.contains("compresion") && error.contains("compression"), "{error}");
            let error = check(values("compression", "zip")).expect_err("unknown").to_string();
            assert!(error.contains("\"zip\"") && error.contains("lz4, auto, off"), "{error}");
        }
        assert!(matches!(set(PropertyValues::default()), Err(Error::NoProperty)));
        create(PropertyValues::default()).expect("it inherits all");
        assert!(matches!(create(values("size", "8K")), Err(Error::SizeWithOthers)));
        for check in [set, create] {
            let refused = check(values("record_size", "64K")).expect_err("fixed");
            let error = ApiError::from(refused);
            assert!(error.action.contains("weir volume create --record-size"), "{error:?}");
        }
    }
}
