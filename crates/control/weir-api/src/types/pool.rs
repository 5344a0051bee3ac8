//! Pools: their layout, their state and the requests that change them.
//!
//! The command line parses its layout grammar into [`VdevSpec`]s.
//!
//! Invariant: a [`PoolCreate`] that passes its check names each path once and mixes vdevs of
//! different redundancy only with `force`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::{names_nothing_else, no_rules, one_name};
use super::{
    Answer, CleanerStatus, ClientIo, Damage, DiskIo, Outcome, PointerIo, Request, ScanStatus,
    SegmentIo,
};
use crate::Error;
use crate::access::Scope;
use crate::limits::SEARCH_MAX;

/// Type of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VdevKind {
    /// One disk, without redundancy.
    Disk,
    /// Two or more disks with the same data.
    Mirror,
    /// Data with one parity strip per row: any one disk may fail.
    Raidz1,
    /// Data with two parity strips per row: any two disks may fail.
    Raidz2,
    /// Data with three parity strips per row: any three disks may fail.
    Raidz3,
}

impl VdevKind {
    /// Returns the name of the kind in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
        }
    }

    /// Returns how many disks of a raidz vdev of this kind may fail.
    const fn parity(self) -> usize {
        match self {
            Self::Disk | Self::Mirror => 0,
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
        }
    }
}

/// Use of a vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VdevRole {
    /// Holds data, striped over all data vdevs.
    #[default]
    Data,
    /// Holds the intent log: synchronous writes wait for these vdevs alone.
    Log,
    /// Replaces a disk that fails.
    Spare,
}

impl VdevRole {
    /// Returns the name of the role in JSON and in layouts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Log => "log",
            Self::Spare => "spare",
        }
    }
}

/// Maximum number of disks of a raidz vdev.
const RAIDZ_DISKS_MAX: usize = 32;

/// One vdev of a new pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VdevSpec {
    /// Type of the vdev.
    pub kind: VdevKind,
    /// Use of the vdev.
    #[serde(default)]
    pub role: VdevRole,
    /// Absolute paths of block devices or files, such as `/dev/sdb`: one for a disk, two to four
    /// for a mirror, and at least one more than the parity for raidz.
    pub disks: Vec<String>,
}

/// Request to create a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Name of the pool.
    pub name: String,
    /// The vdevs; the pool stripes data over the data vdevs.
    pub vdevs: Vec<VdevSpec>,
    /// Also use disks that hold another pool or a file system, whose data is lost, and allow vdevs
    /// of different redundancy.
    #[serde(default)]
    pub force: bool,
    /// Properties of the pool.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

impl Request for PoolCreate {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        if !self.vdevs.iter().any(|vdev| vdev.role == VdevRole::Data) {
            return Err(Error::NoDisks { pool: self.name.clone() });
        }
        check_vdevs(&self.vdevs)?;
        let data: Vec<&VdevSpec> =
            self.vdevs.iter().filter(|vdev| vdev.role == VdevRole::Data).collect();
        if self.force { Ok(()) } else { check_uniform(&data) }
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        told_vdevs(self.force, &self.vdevs)
    }
}

/// Checks that each vdev has a valid number of disks, that each path is absolute, and that no disk
/// is named twice.
pub(super) fn check_vdevs(vdevs: &[VdevSpec]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for vdev in vdevs {
        check_width(vdev)?;
        for path in &vdev.disks {
            if !Path::new(path).is_absolute() {
                return Err(Error::RelativePath { path: path.clone() });
            }
            if !seen.insert(path) {
                return Err(Error::DiskTwice { path: path.clone(), first: None });
            }
        }
    }
    Ok(())
}

fn check_width(vdev: &VdevSpec) -> Result<(), Error> {
    let disks = vdev.disks.len();
    let why = match vdev.kind {
        VdevKind::Disk if disks != 1 => "vdev is exactly one disk",
        VdevKind::Mirror if disks < 2 => "needs at least two disks",
        VdevKind::Raidz1 if disks < 2 => "needs at least two disks, one more than its parity",
        VdevKind::Raidz2 if disks < 3 => "needs at least three disks, one more than its parity",
        VdevKind::Raidz3 if disks < 4 => "needs at least four disks, one more than its parity",
        kind if kind.parity() > 0 && disks > RAIDZ_DISKS_MAX => {
            "has at most 32 disks, so make several of them"
        }
        _ => return Ok(()),
    };
    Err(Error::VdevWidth { kind: vdev.kind.name(), disks, why })
}

/// Refuses vdevs of different redundancy: a pool is only as redundant as its weakest vdev, so such
/// a layout is most likely a mistake.
fn check_uniform(vdevs: &[&VdevSpec]) -> Result<(), Error> {
    let sort = |vdev: &&VdevSpec| match vdev.kind {
        VdevKind::Disk => "single disks".to_owned(),
        VdevKind::Mirror => format!("{}-way mirrors", vdev.disks.len()),
        raidz => format!("{} of {} disks", raidz.name(), vdev.disks.len()),
    };
    let mut sorts = vdevs.iter().map(sort);
    let Some(first) = sorts.next() else { return Ok(()) };
    match sorts.find(|other| *other != first) {
        Some(other) => Err(Error::Mismatched { first, other }),
        None => Ok(()),
    }
}

/// Request to destroy a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDestroy {
    /// Name of the pool.
    pub name: String,
    /// The pool's name again, so that one mistyped word destroys no pool.
    #[serde(default)]
    #[schema(required = true)]
    pub confirm: String,
}

impl Request for PoolDestroy {
    fn check(&self) -> Result<(), Error> {
        names::pool(&self.name)?;
        if self.confirm == self.name {
            return Ok(());
        }
        Err(Error::NotConfirmed { pool: self.name.clone(), confirm: self.confirm.clone() })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

/// Request to search for pools that can be imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolScan {
    /// Absolute paths of directories, block devices or files to search, at most 64. If empty: the
    /// default directories.
    #[serde(default)]
    pub search: Vec<String>,
}

impl Request for PoolScan {
    fn check(&self) -> Result<(), Error> {
        if self.search.len() > SEARCH_MAX {
            return Err(Error::TooMany { what: "paths to search", most: SEARCH_MAX });
        }
        match self.search.iter().find(|path| !Path::new(path).is_absolute()) {
            Some(path) => Err(Error::RelativePath { path: path.clone() }),
            None => Ok(()),
        }
    }
}

/// Request to import a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolImport {
    /// Name of the pool, or its guid if several pools have the same name.
    pub pool: String,
    /// Absolute paths of directories, block devices or files to search, at most 64. If empty: the
    /// default directories.
    #[serde(default)]
    pub search: Vec<String>,
    /// Import the newest state that is still readable, although newer, acknowledged data is lost.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolImport {
    fn check(&self) -> Result<(), Error> {
        let is_guid = !self.pool.is_empty() && self.pool.bytes().all(|b| b.is_ascii_digit());
        if !is_guid {
            names::pool(&self.pool)?;
        }
        PoolScan { search: self.search.clone() }.check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.pool]
    }

    fn details(&self) -> String {
        force_flag(self.force).to_owned()
    }
}

/// Request to close a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolExport {
    /// Name of the pool.
    pub name: String,
    /// Also close a pool whose volumes are exported; the server removes these exports first.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolExport {
    fn check(&self) -> Result<(), Error> {
        Ok(names::pool(&self.name)?)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        force_flag(self.force).to_owned()
    }
}

/// Request to list all imported pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListPools {}

no_rules!(ListPools);

/// Request to show a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowPool {
    /// Name of the pool.
    pub name: String,
}

one_name!(names::pool, name: ShowPool);

/// Returns the `force` flag in the form that history and events show.
fn force_flag(force: bool) -> &'static str {
    if force { "--force" } else { "" }
}

/// Returns the vdevs in the form that history and events show.
pub(super) fn told_vdevs(force: bool, vdevs: &[VdevSpec]) -> String {
    let mut words = vec![force_flag(force).to_owned()];
    for vdev in vdevs {
        if vdev.role != VdevRole::Data {
            words.push(vdev.role.name().to_owned());
        }
        if vdev.disks.len() > 1 {
            words.push(vdev.kind.name().to_owned());
        }
        words.extend(vdev.disks.iter().cloned());
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

/// Health of a pool, a vdev or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All disks work.
    Online,
    /// All data is intact, but redundancy is reduced.
    Degraded,
    /// Failed and no longer in use. A disk is faulted after a failed write or flush, a vdev if it
    /// lacks too many disks, a pool while it is suspended.
    Faulted,
    /// Taken offline by an administrator.
    Offline,
    /// Cannot be opened.
    Unavailable,
}

impl Health {
    /// Returns the name of the state in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Online => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Faulted => "FAULTED",
            Self::Offline => "OFFLINE",
            Self::Unavailable => "UNAVAIL",
        }
    }
}

/// Errors since the pool was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCounts {
    /// Number of reads that failed.
    pub read: u64,
    /// Number of writes that failed.
    pub write: u64,
    /// Number of reads that returned data other than what was written.
    pub checksum: u64,
}

/// State of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// Path of the disk, or its last known path.
    pub path: String,
    /// Identity of the disk.
    pub guid: String,
    /// Health of the disk.
    pub state: Health,
    /// Errors of this disk, including errors that another leg repaired.
    pub errors: ErrorCounts,
    /// Problem with the disk; absent if there is none.
    pub note: Option<String>,
    /// True if the disk is far slower than the pool's other disks, or unresponsive.
    #[serde(default)]
    pub slow: bool,
    /// I/O counters and latencies; absent while the disk is not open.
    #[serde(default)]
    pub io: Option<DiskIo>,
}

/// Progress of the removal of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evacuation {
    /// Bytes of data still on the vdev.
    pub live_bytes: u64,
    /// Number of segments that cannot be moved, because a block in them has no intact copy.
    pub stuck_segments: u64,
}

/// State of one vdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VdevStatus {
    /// Name inside the pool, such as `mirror-0`.
    pub name: String,
    /// Type of the vdev.
    pub kind: VdevKind,
    /// Use of the vdev.
    #[serde(default)]
    pub role: VdevRole,
    /// Progress of the removal; absent if the vdev is not being removed.
    #[serde(default)]
    pub leaving: Option<Evacuation>,
    /// Health of the vdev.
    pub state: Health,
    /// Errors that the redundancy of the vdev could not correct.
    pub errors: ErrorCounts,
    /// The disks: one for a disk vdev, otherwise the legs.
    pub disks: Vec<DiskStatus>,
}

/// State of one pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Name of the pool.
    pub name: String,
    /// Identity of the pool.
    pub guid: String,
    /// Health of the pool.
    pub state: Health,
    /// Problem with the pool; absent if there is none.
    pub status: Option<String>,
    /// Recommended action.
    pub action: Option<String>,
    /// Command whose help explains the problem and its remedy.
    pub see: Option<String>,
    /// Space for data.
    pub size_bytes: u64,
    /// Space in use.
    pub allocated_bytes: u64,
    /// Free space for data.
    pub free_bytes: u64,
    /// Used space, by kind of owner.
    #[serde(default)]
    pub allocated: Allocated,
    /// Uncompressed size of the data in the volumes, without their snapshots, divided by its stored
    /// size. Counts each byte once, whatever the redundancy; 1 without data.
    #[serde(default = "uncompressed")]
    pub compression_ratio: f64,
    /// Space that the data would use without shared blocks, divided by the space in use; 1 without
    /// shared blocks.
    #[serde(default = "unshared")]
    pub dedupe_ratio: f64,
    /// Space that the pool would gain by using the full size of all disks.
    #[serde(default)]
    pub expandable_bytes: u64,
    /// The last committed transaction group.
    pub txg: u64,
    /// Properties of the pool.
    pub properties: BTreeMap<String, String>,
    /// Sum of the errors of all vdevs.
    pub errors: ErrorCounts,
    /// Permanent errors: data without an intact copy on any disk.
    #[serde(default)]
    pub damage: Damage,
    /// I/O of clients.
    #[serde(default)]
    pub client: ClientIo,
    /// Bytes written to segments.
    #[serde(default)]
    pub written: SegmentIo,
    /// Bytes read from segments.
    #[serde(default)]
    pub read: PointerIo,
    /// State of the cleaner; absent while the pool is not open.
    #[serde(default)]
    pub cleaner: Option<CleanerStatus>,
    /// Period that all counters of the pool cover: the time since the pool was opened.
    #[serde(default)]
    pub counted_ms: u64,
    /// The running scrub or resilver, or the last one since the pool was opened.
    pub scan: Option<ScanStatus>,
    /// The vdevs; the pool stripes data over the data vdevs.
    pub vdevs: Vec<VdevStatus>,
}

impl Answer for PoolStatus {
    fn keep(&mut self, scope: &Scope) {
        // The server returns the status of a pool only if the scope covers the pool, and thus all
        // objects in it. So there is nothing to remove.
        assert!(scope.covers(&self.name), "the status of a pool passed the gate");
    }
}

/// Used space of a pool, by kind of owner. The sum of the other fields, less `saved_bytes`, is the
/// used space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Allocated {
    /// Blocks that volumes reference. A block that clones share with their origin counts once. A
    /// block that dedupe or a block clone shares counts for each reference.
    pub volumes_bytes: u64,
    /// Blocks that only snapshots reference.
    pub snapshots_bytes: u64,
    /// Blocks of destroyed datasets, which the next commits free.
    pub freeing_bytes: u64,
    /// Metadata of the pool.
    pub pool_bytes: u64,
    /// Space that dedupe and block clones save.
    #[serde(default)]
    pub saved_bytes: u64,
}

const fn uncompressed() -> f64 {
    1.0
}

pub(super) const fn unshared() -> f64 {
    1.0
}

/// Imported pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// The pools, by name.
    pub pools: Vec<PoolStatus>,
}

impl Answer for PoolList {
    fn keep(&mut self, scope: &Scope) {
        self.pools.retain(|pool| scope.covers(&pool.name));
    }
}

/// Response of a call that changes a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Limitations that the caller should know, such as disks that the pool uses only in part.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// State of the pool after the call.
    pub pool: PoolStatus,
}

impl Answer for PoolChange {
    fn keep(&mut self, scope: &Scope) {
        self.pool.keep(scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// A pool that a search found on disks and that is not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportablePool {
    /// Name of the pool.
    pub name: String,
    /// Identity of the pool.
    pub guid: String,
    /// Health that the pool would have after an import.
    pub state: Health,
    /// Problem with the pool; absent if there is none.
    pub status: Option<String>,
    /// Recommended action.
    pub action: Option<String>,
    /// The vdevs as the search found them.
    pub vdevs: Vec<VdevStatus>,
}

/// All pools that a search found on disks and that are not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportableList {
    /// The pools, by name.
    pub pools: Vec<ImportablePool>,
}

// A caller with a scope may not search for pools.
names_nothing_else!(ImportableList);

#[cfg(test)]
mod tests;
