//! Volumes: thin block datasets of a pool.
//!
//! Not here: their data (data goes through exports).
//!
//! Invariant: a size that passes [`check_volume_size`] is a whole number of blocks and can be
//! addressed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::limits::VOLUME_BYTES_MAX;
use weir_base::names::PropertyOf;
use weir_base::{BLOCK_BYTES, names};

use super::{Compression, Outcome, PropertySet, PropertyValues, Request};
use crate::Error;

/// Finds what is wrong with a volume's size.
pub fn check_volume_size(bytes: u64) -> Result<(), Error> {
    let why = if bytes == 0 {
        "a volume cannot be empty"
    } else if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
        "it is not a multiple of the block, 4096 bytes"
    } else if bytes > VOLUME_BYTES_MAX {
        "it is more than the largest volume, 16TiB"
    } else {
        return Ok(());
    };
    Err(Error::VolumeSize { bytes, why })
}

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Size clients see; a multiple of 4096.
    pub size_bytes: u64,
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
        check_volume_size(self.size_bytes)
    }
}

/// Properties of a volume to be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSet {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The properties to change.
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
}

/// A volume to get another size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The new size; a multiple of 4096.
    pub size_bytes: u64,
}

impl Request for VolumeResize {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.name)?;
        check_volume_size(self.size_bytes)
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
}

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
    /// Size of the unit that is checksummed, compressed and mapped.
    pub block_bytes: u32,
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

/// Volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
}

/// The answer of a call that changes a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeChange {
    /// What the call did.
    pub outcome: Outcome,
    /// The volume as it is now.
    pub volume: Volume,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks_that_can_be_addressed() {
        for bytes in [4096, 1 << 30, VOLUME_BYTES_MAX] {
            check_volume_size(bytes).expect("a usual size");
        }
        for bytes in [0, 1, 4095, 4097, VOLUME_BYTES_MAX + 4096, u64::MAX] {
            let error = check_volume_size(bytes).expect_err("refused").to_string();
            assert!(error.contains(&bytes.to_string()), "{error}");
        }
    }

    #[test]
    fn properties_are_known_ones() {
        let values =
            |name: &str, value: &str| PropertyValues([(name.to_owned(), value.to_owned())].into());
        let set = |properties| VolumeSet { name: "tank/a".into(), properties }.check();
        let create = |properties| {
            VolumeCreate { name: "tank/a".into(), size_bytes: 4096, properties }.check()
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
    }
}
