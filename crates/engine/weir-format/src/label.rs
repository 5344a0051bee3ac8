//! The label's config: identity of a disk and its pool, and the configuration of all vdevs.
//!
//! The uberblock ring, which shares the label's 1 MiB, is in `uberblock`.
//!
//! Invariants: a disk has four copies of the config, two in each label, and any valid copy is
//! enough; the version field is readable in every format, so that a newer format is reported
//! instead of misread. From format 9 on the checksum covers the version.

use std::collections::BTreeSet;

use weir_base::limits::NAME_BYTES_MAX;
use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::features::Features;
use crate::layout::{
    CONFIG_BYTES, DISKS_MAX, LABEL_BYTES, MIRROR_LEGS_MAX, OLDEST_VERSION, RAIDZ_LEGS_MAX,
    SEGMENT_BYTES_MAX, STRIP_BYTES_MIN, segments_offset,
};

const WHAT: &str = "label";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRLABL");
/// Length of the header: magic, version, body length, body checksum.
const HEADER_BYTES: usize = 8 + 4 + 4 + 16;
/// First format whose labels have feature flags.
const FEATURES_SINCE: u32 = 9;
/// Maximum number of vdevs, including removed ones, whose numbers are not reused. A config copy has
/// space for this many vdevs with their disks.
pub const VDEVS_MAX: usize = 1024;

/// Redundancy of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevKind {
    /// One disk without redundancy.
    Disk,
    /// Every leg has all data.
    Mirror,
    /// Rows with one parity strip.
    Raidz1,
    /// Rows with two parity strips.
    Raidz2,
    /// Rows with three parity strips.
    Raidz3,
}

impl VdevKind {
    /// All kinds, indexed by their number on disk.
    pub const ALL: [Self; 5] = [Self::Disk, Self::Mirror, Self::Raidz1, Self::Raidz2, Self::Raidz3];

    /// Name of the kind in layouts and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
        }
    }

    /// Parity strips of a row.
    pub const fn parity(self) -> usize {
        match self {
            Self::Disk | Self::Mirror => 0,
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
        }
    }

    /// Minimum and maximum number of legs of a vdev of this kind.
    pub const fn legs(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Disk => 1..=1,
            Self::Mirror => 2..=MIRROR_LEGS_MAX,
            Self::Raidz1 | Self::Raidz2 | Self::Raidz3 => self.parity() + 1..=RAIDZ_LEGS_MAX,
        }
    }

    /// Data strips of a row on `legs` legs.
    pub const fn data_strips(self, legs: usize) -> usize {
        match self {
            Self::Disk | Self::Mirror => 1,
            Self::Raidz1 | Self::Raidz2 | Self::Raidz3 => legs - self.parity(),
        }
    }
}

/// Role of a vdev in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevRole {
    /// The vdev stores segments.
    Data,
    /// The vdev is being evacuated: its segments move to other vdevs, then it is removed.
    Evacuating,
    /// The vdev stores the intent log and no segments.
    Log,
    /// The vdev is a spare disk that replaces a failed one.
    Spare,
    /// The vdev was removed. Its number is not reused, and it stores nothing.
    Removed,
}

impl VdevRole {
    /// All roles, indexed by their number on disk.
    pub const ALL: [Self; 5] =
        [Self::Data, Self::Evacuating, Self::Log, Self::Spare, Self::Removed];

    /// True if the vdev may have segments.
    pub const fn holds_segments(self) -> bool {
        matches!(self, Self::Data | Self::Evacuating)
    }
}

/// Maximum number of segments of a vdev: 2 PiB with segments of the largest size. The bound exists
/// because the list of free segments is in memory.
const SEGMENTS_MAX: u64 = 1 << 26;
/// Largest txg of a config; a pointer has 44 bits for a txg.
const LABEL_TXG_MAX: u64 = 1 << 44;

/// One disk of a vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegConfig {
    /// Guid of the disk.
    pub guid: Guid,
    /// Path at which the disk was last found; may be out of date.
    pub path: String,
}

/// One vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevConfig {
    /// Redundancy of the vdev.
    pub kind: VdevKind,
    /// Role of the vdev in the pool.
    pub role: VdevRole,
    /// Bytes of each leg that the pool uses, including labels; the smallest leg determines the
    /// number. 0 if the vdev was removed.
    pub disk_bytes: u64,
    /// Disks of the vdev.
    pub legs: Vec<LegConfig>,
}

impl VdevConfig {
    /// Config of a removed vdev.
    pub const REMOVED: Self =
        Self { kind: VdevKind::Disk, role: VdevRole::Removed, disk_bytes: 0, legs: Vec::new() };

    /// Data strips of a row.
    pub fn data_strips(&self) -> usize {
        self.kind.data_strips(self.legs.len())
    }
}

/// A decoded config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Format version of the label. No uberblock on the disk has a higher version.
    pub version: u32,
    /// Guid of the pool.
    pub pool: Guid,
    /// Pool name.
    pub name: String,
    /// Guid of the disk that has this label; `vdevs` lists this disk as a leg.
    pub disk: Guid,
    /// Txg in which this config was written. Of several configs the newest is valid.
    pub txg: Txg,
    /// Segment size. A segment of a vdev has as many whole rows as fit into it.
    pub segment_bytes: u32,
    /// Strip size: the length of the part of a row on one leg. A row of a disk or mirror is one
    /// strip.
    pub strip_bytes: u32,
    /// Length of the intent log region on every leg.
    pub log_bytes: u64,
    /// All vdevs of the pool.
    pub vdevs: Vec<VdevConfig>,
    /// Feature flags; none in format 8.
    pub features: Features,
}

/// Checksum in the header of a config. In format 8 it does not cover the version.
pub fn checksum_of(version: u32, body: &[u8]) -> u128 {
    if version < FEATURES_SINCE {
        return xxh3_128(body);
    }
    let mut covered = Writer::default();
    covered.u32(version);
    covered.u32(body.len() as u32);
    covered.bytes(body);
    xxh3_128(&covered.0)
}

impl Label {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRLABL\""),
        field(4, "version", "format version"),
        field(4, "body_bytes", "bytes after the checksum"),
        field(16, "checksum", "XXH3-128 of version, body_bytes and body; format 8: of the body"),
        field(8, "pool", "pool guid"),
        field(8, "disk", "guid of this disk"),
        field(8, "txg", "txg of this config"),
        field(4, "segment_bytes", "segment size; a segment is as many whole rows as fit"),
        field(4, "strip_bytes", "strip size; a row of a disk or mirror is one strip"),
        field(8, "log_bytes", "length of the intent log region"),
        field(2, "vdevs", "number of vdevs"),
        field(
            0,
            "vdev",
            "u8 kind (0 disk, 1 mirror, 2 raidz1, 3 raidz2, 4 raidz3), u8 role (0 data, 1 leaving, \
             2 log, 3 spare, 4 removed), u64 disk_bytes, u16 legs, legs x {u64 guid, string path}",
        ),
        field(0, "name", "pool name; a string is a u16 length and UTF-8"),
        field(8, "incompatible", "flags of features that a reader must know; not in format 8"),
        field(8, "read_only_compatible", "flags of features that a writer must know"),
        field(0, "needs", "for each set flag a string: the version of Weir that is needed"),
    ];

    /// Data bytes in one row of a vdev.
    pub fn row_bytes(&self, vdev: &VdevConfig) -> u64 {
        u64::from(self.strip_bytes) * vdev.data_strips() as u64
    }

    /// Data bytes in one segment of a vdev; whole rows.
    pub fn vdev_segment_bytes(&self, vdev: &VdevConfig) -> u64 {
        let segment = u64::from(self.segment_bytes);
        segment - segment % self.row_bytes(vdev)
    }

    /// Number of physical segments of a vdev.
    pub fn segments(&self, vdev: &VdevConfig) -> u64 {
        if !vdev.role.holds_segments() {
            return 0;
        }
        let area = vdev.disk_bytes - segments_offset(self.log_bytes) - LABEL_BYTES;
        // Divide by the number of bytes that a segment occupies on each leg.
        area / (self.vdev_segment_bytes(vdev) / vdev.data_strips() as u64)
    }

    /// Data bytes in the segment area of a vdev.
    pub fn vdev_bytes(&self, vdev: &VdevConfig) -> u64 {
        self.segments(vdev) * self.vdev_segment_bytes(vdev)
    }

    /// Encodes one config copy, in the format [`Self::version`].
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        body.u64(self.pool.0);
        body.u64(self.disk.0);
        body.u64(self.txg.0);
        body.u32(self.segment_bytes);
        body.u32(self.strip_bytes);
        body.u64(self.log_bytes);
        body.u16(self.vdevs.len() as u16);
        for vdev in &self.vdevs {
            body.u8(vdev.kind as u8);
            body.u8(vdev.role as u8);
            body.u64(vdev.disk_bytes);
            body.u16(vdev.legs.len() as u16);
            for leg in &vdev.legs {
                body.u64(leg.guid.0);
                body.str(&leg.path);
            }
        }
        body.str(&self.name);
        if self.version >= FEATURES_SINCE {
            self.features.write(&mut body);
        }
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u32(self.version);
        w.u32(body.0.len() as u32);
        w.u128(checksum_of(self.version, &body.0));
        w.bytes(&body.0);
        w.pad_to(CONFIG_BYTES);
        w.0
    }

    /// Decodes one config copy.
    ///
    /// # Errors
    /// The copy holds no label, a damaged label, a label of another format version, or an invalid
    /// configuration.
    pub fn decode(copy: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, copy);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = r.u32()?;
        if version < OLDEST_VERSION {
            FormatError::check_version(WHAT, version, Guid(0))?;
        }
        let (len, checksum) = (r.u32()?, r.u128()?);
        if len as usize > CONFIG_BYTES - HEADER_BYTES {
            return Err(r.bad("body_bytes", len));
        }
        let body = r.take(len as usize)?;
        if checksum != checksum_of(version, body) {
            return Err(FormatError::Checksum { what: WHAT });
        }
        // Check the version before the rest of the body: the header, and the pool's guid at the
        // start of the body, have the same layout in every format.
        let pool = Guid(Reader::new(WHAT, body).u64()?);
        FormatError::check_version(WHAT, version, pool)?;
        Self::decode_body(version, body)
    }

    fn decode_body(version: u32, body: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, body);
        let (pool, disk, txg) = (Guid(r.u64()?), Guid(r.u64()?), Txg(r.u64()?));
        let (segment_bytes, strip_bytes, log_bytes) = (r.u32()?, r.u32()?, r.u64()?);
        if txg.0 > LABEL_TXG_MAX {
            return Err(r.bad("txg", txg.0));
        }
        if !strip_bytes.is_power_of_two() || strip_bytes < STRIP_BYTES_MIN {
            return Err(r.bad("strip_bytes", strip_bytes));
        }
        if !segment_bytes.is_power_of_two() || u64::from(segment_bytes) > SEGMENT_BYTES_MAX {
            return Err(r.bad("segment_bytes", segment_bytes));
        }
        if !log_bytes.is_multiple_of(u64::from(STRIP_BYTES_MIN)) || log_bytes > 1 << 40 {
            return Err(r.bad("log_bytes", log_bytes));
        }
        let count = r.u16()?;
        if usize::from(count) > VDEVS_MAX {
            return Err(r.bad("vdevs", count));
        }
        let vdevs = (0..count)
            .map(|_| Self::decode_vdev(&mut r, log_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let disks: usize = vdevs.iter().map(|vdev| vdev.legs.len()).sum();
        if disks > DISKS_MAX {
            return Err(r.bad("legs", disks as u64));
        }
        let name = r.str("name")?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(r.bad("name", name.len() as u64));
        }
        let mut features = Features::default();
        if version >= FEATURES_SINCE {
            features = Features::read(&mut r, pool)?;
            r.end("body_bytes")?;
        }
        let label = Self {
            version,
            pool,
            name,
            disk,
            txg,
            segment_bytes,
            strip_bytes,
            log_bytes,
            vdevs,
            features,
        };
        if !label.vdevs.iter().any(|vdev| vdev.role.holds_segments()) {
            return Err(r.bad("vdevs", count));
        }
        let row_fits = |vdev| label.row_bytes(vdev) <= u64::from(segment_bytes);
        if !label.vdevs.iter().all(row_fits) {
            return Err(r.bad("segment_bytes", segment_bytes));
        }
        if label.place().is_none() {
            return Err(r.bad("disk", disk.0));
        }
        let mut guids = BTreeSet::new();
        let mut legs = label.vdevs.iter().flat_map(|vdev| &vdev.legs);
        if let Some(twice) = legs.find(|leg| !guids.insert(leg.guid.0)) {
            return Err(r.bad("guid", twice.guid.0));
        }
        let too_many = |vdev: &&VdevConfig| label.segments(vdev) > SEGMENTS_MAX;
        if let Some(vdev) = label.vdevs.iter().find(too_many) {
            return Err(r.bad("disk_bytes", vdev.disk_bytes));
        }
        Ok(label)
    }

    /// Decodes a vdev. A removed vdev has neither a size nor disks.
    fn decode_vdev(r: &mut Reader<'_>, log_bytes: u64) -> Result<VdevConfig, FormatError> {
        let number = r.u8()?;
        let kind = *VdevKind::ALL.get(usize::from(number)).ok_or_else(|| r.bad("kind", number))?;
        let number = r.u8()?;
        let role = *VdevRole::ALL.get(usize::from(number)).ok_or_else(|| r.bad("role", number))?;
        let (disk_bytes, count) = (r.u64()?, r.u16()?);
        if role == VdevRole::Removed {
            let nothing_left = kind == VdevKind::Disk && disk_bytes == 0 && count == 0;
            return if nothing_left { Ok(VdevConfig::REMOVED) } else { Err(r.bad("role", number)) };
        }
        // The second label is at the end of the used bytes, so these bytes must have space for it.
        let whole = disk_bytes.is_multiple_of(u64::from(STRIP_BYTES_MIN));
        if disk_bytes < segments_offset(log_bytes) + LABEL_BYTES || disk_bytes > 1 << 60 || !whole {
            return Err(r.bad("disk_bytes", disk_bytes));
        }
        if role == VdevRole::Spare && kind != VdevKind::Disk {
            return Err(r.bad("role", number));
        }
        // A mirror may have one leg, because the others can be detached.
        let at_least = if kind == VdevKind::Mirror { 1 } else { *kind.legs().start() };
        if !(at_least..=*kind.legs().end()).contains(&usize::from(count)) {
            return Err(r.bad("legs", count));
        }
        let legs = (0..count)
            .map(|_| Ok(LegConfig { guid: Guid(r.u64()?), path: r.str("path")? }))
            .collect::<Result<_, FormatError>>()?;
        Ok(VdevConfig { kind, role, disk_bytes, legs })
    }

    /// Index of the vdev to which this disk belongs, and index of the disk's leg in that vdev.
    pub fn place(&self) -> Option<(usize, usize)> {
        self.vdevs.iter().enumerate().find_map(|(v, vdev)| {
            vdev.legs.iter().position(|leg| leg.guid == self.disk).map(|l| (v, l))
        })
    }
}
