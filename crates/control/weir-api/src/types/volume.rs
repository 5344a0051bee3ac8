//! Volumes: thin block datasets of a pool.
//!
//! Not here: their data (data goes through exports).
//!
//! Invariant: a request to make or resize a volume passes [`check_volume_size`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names::PropertyOf;
use weir_base::size::Human;
use weir_base::{RecordSize, names};

use super::page::paged;
use super::request::one_name;
use super::volume_size::{check_volume_size, one_block, record_size};
use super::{Answer, Compression, Outcome, Page, PropertySet, PropertyValues, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::wire::ApiError;

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Size clients see; a multiple of `record_bytes`.
    pub size_bytes: u64,
    /// What is checksummed, compressed and stored as one: a power of two from 4096 (without any) to
    /// 1048576. It is the volume's for ever.
    #[serde(default = "one_block")]
    pub record_bytes: u64,
    /// Properties of the volume; it inherits the others.
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

/// Properties of a volume to be changed.
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

/// A volume to get another size.
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
        // With larger records the volume itself allows fewer.
        check_volume_size(self.size_bytes, RecordSize::BLOCK)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        Human(self.size_bytes).to_string()
    }
}

/// A volume to get another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRename {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The new full name; of the same pool.
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

/// A volume to be made that holds the same as another one, or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCopy {
    /// Full name of a volume or snapshot, such as `tank/vm1` or `tank/vm1@monday`.
    pub name: String,
    /// Full name of the new volume; of the same pool.
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

/// A volume to be destroyed.
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

/// Which volumes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListVolumes {
    /// Only the volumes of this pool.
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

/// The volume to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowVolume {
    /// Full name, such as `tank/vm1`.
    pub name: String,
}

one_name!(names::volume, name: ShowVolume);

/// A clone to take over its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumePromote {
    /// Full name, such as `tank/vm1`.
    pub name: String,
}

one_name!(names::volume, name: VolumePromote);

/// Where the space of a volume and its snapshots goes: data and tree nodes as stored, one copy, as
/// of the last commit. What a clone shares with its origin counts for the origin's volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSpace {
    /// Room that it can still take.
    pub available_bytes: u64,
    /// What destroying it with all its snapshots would free.
    pub used_bytes: u64,
    /// Of that, what only snapshots lead to.
    pub by_snapshots_bytes: u64,
    /// Of that, what the volume itself leads to.
    pub by_volume_bytes: u64,
    /// What the volume leads to, what it shares with its origin included.
    pub referenced_bytes: u64,
    /// Of that, what was written since its newest snapshot.
    pub written_bytes: u64,
    /// Of what is used, what its refreservation keeps back beside its data.
    #[serde(default)]
    pub by_refreservation_bytes: u64,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Size clients see.
    pub size_bytes: u64,
    /// Size of the unit that clients address; a write of a part of one costs a read of the rest.
    pub block_bytes: u32,
    /// Size of the unit that is checksummed, compressed and stored as one. A write of a part of one
    /// reads the rest of it and stores it anew.
    #[serde(default = "one_block")]
    pub record_bytes: u64,
    /// How blocks written from now on are compressed.
    pub compression: Compression,
    /// Written blocks that hold data, before compression.
    pub used_bytes: u64,
    /// Room those take in the pool after compression, one copy.
    pub stored_bytes: u64,
    /// `used_bytes` by `stored_bytes`; 1 for an empty volume.
    pub compression_ratio: f64,
    /// Whether blocks written from now on are looked for among those that are there.
    #[serde(default)]
    pub dedupe: bool,
    /// Of `stored_bytes`, blocks that were there when they were written, copied or cloned here.
    #[serde(default)]
    pub shared_bytes: u64,
    /// `stored_bytes` by what of it is not in `shared_bytes`, a block at least; 1 without any.
    #[serde(default = "super::pool::unshared")]
    pub dedupe_ratio: f64,
    /// When it was made.
    pub created_unix_ms: u64,
    /// Names of its exports.
    pub exports: Vec<String>,
    /// Full name of the snapshot it was cloned from.
    #[serde(default)]
    pub origin: Option<String>,
    /// How many snapshots it has.
    #[serde(default)]
    pub snapshots: u64,
    /// The snapshot that a stream into it will bring; nobody else changes it until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<String>,
    /// Where its space and that of its snapshots goes.
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
    /// Where the list continues: `after` of the call for the next entries. Absent at its end.
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

/// The answer of a call that changes a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeChange {
    /// What the call did.
    pub outcome: Outcome,
    /// The volume as it is now.
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
    fn a_size_that_is_refused_comes_with_the_next_that_is_not() {
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
    fn who_asks_for_no_record_size_gets_blocks() {
        let asked = r#"{"name": "tank/a", "size_bytes": 8192}"#;
        let request: VolumeCreate = serde_json::from_str(asked).expect("a request");
        assert_eq!(request.record_bytes, 4096);
        request.check().expect("two records");
    }

    #[test]
    fn properties_are_known_ones() {
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
