//! The directory `.weir/snapshot` in the root of a filesystem, which has its snapshots.
//!
//! Mounts and network servers show the directory. The server (weir-server) opens the snapshots.
//!
//! Invariants:
//! - `.weir` and `.weir/snapshot` are on no disk. Only the list of snapshots changes them;
//! - no operation gives an inode of the root the name `.weir`. An entry with this name that an
//!   older version created stays, and hides the snapshots until it is removed or renamed.

use std::sync::Arc;

use weir_base::{DatasetId, ObjectId, Txg};
use weir_format::OBJECTS_MAX;
use weir_format::files::{FileType, NameCase, TimeStamp};

use crate::attributes::Attributes;
use crate::directory::Probe;
use crate::draft::node::Draft;
use crate::error::FsError;
use crate::filesystem::state::Filesystem;
use crate::layout::ROOT;

const _: () = assert!(OBJECTS_MAX <= 1 << 48, "inode numbers have 48 bits");

/// Name of the directory in the root.
pub const WEIR_NAME: &[u8] = b".weir";
/// Name of the directory of snapshots in `.weir`.
pub const SNAPSHOTS_NAME: &[u8] = b"snapshot";

/// A snapshot in the directory of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Number of the snapshot in the pool, and cookie of the entry. A rename keeps it.
    pub dataset: DatasetId,
    /// Own name of the snapshot.
    pub name: Box<[u8]>,
}

/// Totals of the snapshots of a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTotals {
    /// Number of snapshots.
    pub count: usize,
    /// Time of the creation of the newest snapshot; `None` without snapshots.
    pub newest: Option<TimeStamp>,
}

/// The snapshots of an open filesystem. Any thread may call the functions, which never wait.
pub trait Snapshots: Send + Sync {
    /// True if the root lists `.weir`.
    fn is_visible(&self) -> bool;

    /// Returns the snapshots with a number above `after`, by ascending number.
    fn list(&self, after: DatasetId) -> Vec<SnapshotEntry>;

    /// Returns the snapshot with this name.
    fn find(&self, name: &[u8]) -> Option<SnapshotEntry>;

    /// Returns the number of the snapshots and the age of the newest, without a copy of the list:
    /// clients ask for attributes often.
    fn totals(&self) -> SnapshotTotals;

    /// Returns the read-only filesystem of a snapshot. The caller holds it only for the duration of
    /// a request, because a call that destroys the snapshot waits for it.
    ///
    /// # Errors
    /// `Stale` if the filesystem has no such snapshot, or if it is about to be destroyed;
    /// `TooManyOpens` if requests use the maximum number of snapshots.
    fn open(&self, dataset: DatasetId) -> Result<Arc<Filesystem>, FsError>;
}

/// A directory between the root and the snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualDirectory {
    /// `.weir`.
    Weir,
    /// `.weir/snapshot`.
    Snapshots,
}

impl VirtualDirectory {
    /// Base of the numbers of these directories: above the numbers of files, which have 48 bits,
    /// and positive as a signed number.
    pub const NUMBERS: u64 = 0x7FFF << 48;

    /// Inode number of the directory.
    pub fn number(self) -> ObjectId {
        match self {
            Self::Weir => ObjectId(Self::NUMBERS | 1),
            Self::Snapshots => ObjectId(Self::NUMBERS | 2),
        }
    }

    /// Returns the attributes of the directory.
    pub fn attributes(self, snapshots: &dyn Snapshots) -> Attributes {
        let totals = snapshots.totals();
        let count = match self {
            Self::Weir => 1,
            Self::Snapshots => totals.count,
        };
        let time = totals.newest.unwrap_or(TimeStamp { seconds: 0, nanos: 0 });
        Attributes {
            number: self.number(),
            generation: Txg(0),
            file_type: FileType::Directory,
            permissions: 0o555,
            nlink: u32::try_from(count).unwrap_or(u32::MAX).saturating_add(2),
            uid: 0,
            gid: 0,
            project: 0,
            flags: 0,
            size: 0,
            blocks: 0,
            device: 0,
            verifier: None,
            change: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }
}

impl Filesystem {
    /// True if a name in a directory is the name of `.weir`.
    pub fn is_weir(&self, directory: ObjectId, name: &[u8]) -> bool {
        let is_name = match self.layout.case {
            NameCase::Sensitive => name == WEIR_NAME,
            NameCase::Insensitive => name.eq_ignore_ascii_case(WEIR_NAME),
        };
        directory == ROOT && is_name
    }

    /// Finds an entry that an operation may replace, or the key of a new entry.
    ///
    /// # Errors
    /// `Reserved` for a new entry with the name of `.weir`.
    pub(crate) async fn find_place(
        &self,
        draft: &mut Draft<'_>,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<Probe, FsError> {
        match draft.find(directory, name).await? {
            Probe::Free(_) if self.is_weir(directory, name) => Err(FsError::Reserved),
            found => Ok(found),
        }
    }
}
