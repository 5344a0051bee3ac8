//! Pools: their layout, state and the calls that change them.
//!
//! Not here: the words of the layout grammar (the command line turns them into [`VdevSpec`]s).
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

/// What a vdev is made of.
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
    /// The kind's name as JSON and tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
        }
    }

    /// Disks that may fail of a raidz vdev.
    const fn parity(self) -> usize {
        match self {
            Self::Disk | Self::Mirror => 0,
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
        }
    }
}

/// What a vdev is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VdevRole {
    /// Holds data; data is striped over all of them.
    #[default]
    Data,
    /// Holds the intent log: synchronous writes wait for it alone.
    Log,
    /// Waits to take the place of a disk that fails.
    Spare,
}

impl VdevRole {
    /// The role's name as JSON and layouts have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Log => "log",
            Self::Spare => "spare",
        }
    }
}

/// Most disks of a raidz vdev.
const RAIDZ_DISKS_MAX: usize = 32;

/// One vdev of a pool to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VdevSpec {
    /// What the vdev is.
    pub kind: VdevKind,
    /// What it is for.
    #[serde(default)]
    pub role: VdevRole,
    /// Absolute paths of block devices or files: one for a disk, two to four for a mirror, and for
    /// raidz at least one more than its parity.
    pub disks: Vec<String>,
}

/// A pool to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Name of the pool.
    pub name: String,
    /// The vdevs; data is striped over them.
    pub vdevs: Vec<VdevSpec>,
    /// Also use disks that hold another pool or a file system, and mix vdevs of different
    /// redundancy. What such disks hold is lost.
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

/// Checks the width of each vdev, and that every disk is named once, by its absolute path.
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

/// A pool survives what its weakest vdev survives, so a mix is most likely a mistake.
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

/// A pool to be destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDestroy {
    /// Name of the pool.
    pub name: String,
    /// The pool's name once more: nothing is destroyed by a single mistyped word.
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

/// Where to look for pools that could be imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolScan {
    /// Absolute paths of directories, block devices or files, at most 64; none means the usual
    /// places.
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

/// A pool to be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolImport {
    /// Name of the pool, or its guid where several have one name.
    pub pool: String,
    /// Absolute paths of directories, block devices or files, at most 64; none means the usual
    /// places.
    #[serde(default)]
    pub search: Vec<String>,
    /// Import from the newest state that can still be read, though newer, acknowledged data is
    /// lost with it.
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
        told_force(self.force).to_owned()
    }
}

/// A pool to be closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolExport {
    /// Name of the pool.
    pub name: String,
    /// Also when its volumes are exported: those exports go away first.
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
        told_force(self.force).to_owned()
    }
}

/// All imported pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListPools {}

no_rules!(ListPools);

/// The pool to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowPool {
    /// Name of the pool.
    pub name: String,
}

one_name!(names::pool, name: ShowPool);

/// Words of the record for a forced call.
fn told_force(force: bool) -> &'static str {
    if force { "--force" } else { "" }
}

/// Words of the record for vdevs.
pub(super) fn told_vdevs(force: bool, vdevs: &[VdevSpec]) -> String {
    let mut words = vec![told_force(force).to_owned()];
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
    /// Everything works.
    Online,
    /// Data is whole, redundancy is not.
    Degraded,
    /// Too many errors: not used any more.
    Faulted,
    /// A person took it out of use.
    Offline,
    /// Cannot be opened.
    Unavailable,
}

impl Health {
    /// The state as tables print it.
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

/// Errors seen since the pool was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCounts {
    /// Reads that failed.
    pub read: u64,
    /// Writes that failed.
    pub write: u64,
    /// Reads that gave other data than was written.
    pub checksum: u64,
}

/// State of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// Where the disk is, or was last seen.
    pub path: String,
    /// Identity of the disk.
    pub guid: String,
    /// Health of the disk.
    pub state: Health,
    /// Errors of this disk, those healed from another leg included.
    pub errors: ErrorCounts,
    /// What is the matter, if anything.
    pub note: Option<String>,
    /// Whether it is far slower than the pool's other disks, or does not answer.
    #[serde(default)]
    pub slow: bool,
    /// What it did and how long that took; none while it is not there.
    #[serde(default)]
    pub io: Option<DiskIo>,
}

/// How far the removal of a vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leaving {
    /// Bytes of data that are still on it.
    pub live_bytes: u64,
    /// Segments that cannot be moved because something in them is damaged on every disk.
    pub stuck_segments: u64,
}

/// State of one vdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VdevStatus {
    /// Name inside the pool, such as `mirror-0`.
    pub name: String,
    /// What the vdev is.
    pub kind: VdevKind,
    /// What it is for.
    #[serde(default)]
    pub role: VdevRole,
    /// What is left on it, if it is being removed.
    #[serde(default)]
    pub leaving: Option<Leaving>,
    /// Health of the vdev.
    pub state: Health,
    /// Errors the vdev could not hide.
    pub errors: ErrorCounts,
    /// Its disks: one for a disk vdev, else its legs.
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
    /// What is the matter, if anything.
    pub status: Option<String>,
    /// What to do about it.
    pub action: Option<String>,
    /// Where that is explained.
    pub see: Option<String>,
    /// Room for data.
    pub size_bytes: u64,
    /// The part of the room in use.
    pub allocated_bytes: u64,
    /// The rest of the room.
    pub free_bytes: u64,
    /// Where the room in use goes.
    #[serde(default)]
    pub allocated: Allocated,
    /// What its volumes hold before compression by what that takes after it, one copy, snapshots
    /// not counted; 1 without data.
    #[serde(default = "uncompressed")]
    pub compression_ratio: f64,
    /// What the room in use would be if no block were shared, by the room in use; 1 without any.
    #[serde(default = "unshared")]
    pub dedupe_ratio: f64,
    /// Room that the pool would gain if all of every disk were used.
    #[serde(default)]
    pub expandable_bytes: u64,
    /// The last committed transaction group.
    pub txg: u64,
    /// Properties of the pool.
    pub properties: BTreeMap<String, String>,
    /// Errors of its vdevs.
    pub errors: ErrorCounts,
    /// What no disk has a good copy of.
    #[serde(default)]
    pub damage: Damage,
    /// What clients asked for.
    #[serde(default)]
    pub client: ClientIo,
    /// What was written to segments.
    #[serde(default)]
    pub written: SegmentIo,
    /// What was read of them.
    #[serde(default)]
    pub read: PointerIo,
    /// What brings space back; none while the pool is not open.
    #[serde(default)]
    pub cleaner: Option<CleanerStatus>,
    /// For how long all this was counted: since the pool was opened.
    #[serde(default)]
    pub counted_ms: u64,
    /// The scrub or resilver under way, or the last one since the pool was opened.
    pub scan: Option<ScanStatus>,
    /// The vdevs; data is striped over them.
    pub vdevs: Vec<VdevStatus>,
}

impl Answer for PoolStatus {
    fn keep(&mut self, scope: &Scope) {
        // It is shown to scopes that cover the pool, and with that everything in it.
        assert!(scope.covers(&self.name), "the status of a pool passed the gate");
    }
}

/// Where the room in use of a pool goes; the parts, less what is saved, sum up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Allocated {
    /// What volumes lead to; what clones share with their origin counts once, what is shared by
    /// dedupe and copies counts for each.
    pub volumes_bytes: u64,
    /// What only snapshots lead to.
    pub snapshots_bytes: u64,
    /// What was destroyed and is given back with the next commits.
    pub freeing_bytes: u64,
    /// The pool's own tables.
    pub pool_bytes: u64,
    /// What dedupe and copies by reference save.
    #[serde(default)]
    pub saved_bytes: u64,
}

const fn uncompressed() -> f64 {
    1.0
}

pub(super) const fn unshared() -> f64 {
    1.0
}

/// All imported pools.
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

/// The answer of a call that changes a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolChange {
    /// What the call did.
    pub outcome: Outcome,
    /// What the caller may not expect, such as disks used only in part.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The pool as it is now.
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

/// A pool that was found on disks and is not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportablePool {
    /// Name of the pool.
    pub name: String,
    /// Identity of the pool.
    pub guid: String,
    /// Health it would have.
    pub state: Health,
    /// What is the matter, if anything.
    pub status: Option<String>,
    /// What to do.
    pub action: Option<String>,
    /// The vdevs as found.
    pub vdevs: Vec<VdevStatus>,
}

/// All pools that were found on disks and are not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportableList {
    /// The pools, by name.
    pub pools: Vec<ImportablePool>,
}

// The call is refused to every scope.
names_nothing_else!(ImportableList);

#[cfg(test)]
mod tests;
