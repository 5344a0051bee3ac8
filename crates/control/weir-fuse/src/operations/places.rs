//! Inode numbers of a mount, and the filesystem or snapshot of an inode.
//!
//! ```text
//! bits 48 to 62: 0 for the filesystem, 0x7FFF for `.weir` and `.weir/snapshot`, otherwise the
//! index of a snapshot; bits 0 to 47: number of the inode in the filesystem or snapshot
//! ```
//!
//! Invariant: two inodes of a mount have two numbers, as long as both exist.

use std::ops::Deref;
use std::sync::Arc;

use fuser::Errno;
use parking_lot::Mutex;
use weir_base::hash::HashMap;
use weir_base::{DatasetId, ObjectId};
use weir_fs::{Attributes, Filesystem, ROOT, Snapshots, VirtualDirectory};

const INDEX_SHIFT: u32 = 48;

/// Index of the directories that are in no snapshot.
pub(super) const VIRTUAL_INDEX: u16 = (VirtualDirectory::NUMBERS >> INDEX_SHIFT) as u16;
/// Maximum number of snapshots with an index.
const INDEXES_MAX: u16 = VIRTUAL_INDEX - 1;

/// Number of a snapshot without an index in lists.
pub(super) const UNKNOWN: ObjectId = ObjectId(VirtualDirectory::NUMBERS | 3);

/// Returns the number of an inode on the mount.
pub(super) fn joined(index: u16, number: ObjectId) -> ObjectId {
    ObjectId(u64::from(index) << INDEX_SHIFT | number.0)
}

/// Returns the index and the number in the filesystem or snapshot.
pub(super) fn parts(number: ObjectId) -> (u16, ObjectId) {
    ((number.0 >> INDEX_SHIFT) as u16, ObjectId(number.0 & ((1 << INDEX_SHIFT) - 1)))
}

/// True for an inode of the filesystem, which clients can change.
pub(crate) fn is_own(number: ObjectId) -> bool {
    parts(number).0 == 0
}

/// Returns the number of an inode that a request changes.
///
/// # Errors
/// EROFS for an inode of a snapshot.
pub(crate) fn changeable(number: ObjectId) -> Result<ObjectId, Errno> {
    if is_own(number) { Ok(number) } else { Err(Errno::EROFS) }
}

/// True for `.weir` and `.weir/snapshot`, whose attributes change with the list of snapshots.
pub(crate) fn is_virtual(number: ObjectId) -> bool {
    parts(number).0 == VIRTUAL_INDEX
}

/// True for the root directory of a snapshot, whose name can change at any time.
pub(crate) fn is_snapshot_root(number: ObjectId) -> bool {
    let (index, number) = parts(number);
    index != 0 && number == ROOT
}

/// Indexes of the snapshots that a mount has shown.
#[derive(Default)]
struct Indexes {
    of: HashMap<DatasetId, u16>,
    at: HashMap<u16, DatasetId>,
}

impl Indexes {
    /// Returns the index of a snapshot. It is the same on the next mount, unless another snapshot
    /// uses it there. If all indexes are in use, the older half of the
    /// snapshots that do not exist any more gives up its indexes. `None` if all snapshots exist.
    /// `existing`: the snapshots of the filesystem, by ascending number.
    fn index(
        &mut self,
        dataset: DatasetId,
        existing: impl FnOnce() -> Vec<DatasetId>,
    ) -> Option<u16> {
        if let Some(index) = self.of.get(&dataset) {
            return Some(*index);
        }
        if self.of.len() >= usize::from(INDEXES_MAX) {
            let existing = existing();
            let is_gone = |of: &DatasetId| existing.binary_search(of).is_err();
            let mut gone: Vec<_> = self.of.keys().copied().filter(is_gone).collect();
            gone.sort_unstable();
            gone.truncate(gone.len().div_ceil(2));
            for dataset in gone {
                let index = self.of.remove(&dataset);
                index.and_then(|index| self.at.remove(&index));
            }
        }
        let count = u64::from(INDEXES_MAX);
        let tried = (0..count).map(|step| (dataset.0.wrapping_add(step) % count) as u16 + 1);
        let mut free = tried.filter(|index| !self.at.contains_key(index));
        let index = free.next()?;
        self.of.insert(dataset, index);
        self.at.insert(index, dataset);
        Some(index)
    }
}

/// The snapshots of the filesystem of a mount.
pub(crate) struct SnapshotsBelow {
    pub(super) snapshots: Arc<dyn Snapshots>,
    indexes: Mutex<Indexes>,
}

impl SnapshotsBelow {
    pub(crate) fn new(snapshots: Arc<dyn Snapshots>) -> Self {
        Self { snapshots, indexes: Mutex::default() }
    }

    /// Returns the snapshot with an index.
    pub(super) fn dataset(&self, index: u16) -> Option<DatasetId> {
        self.indexes.lock().at.get(&index).copied()
    }

    /// Returns the index of a snapshot; `None` if too many snapshots exist.
    pub(super) fn index(&self, dataset: DatasetId) -> Option<u16> {
        let existing = || {
            let listed = self.snapshots.list(DatasetId(0)).into_iter();
            listed.map(|found| found.dataset).collect()
        };
        self.indexes.lock().index(dataset, existing)
    }
}

/// The filesystem of an inode.
pub(crate) enum FilesAt<'s> {
    Own(&'s Filesystem),
    Snapshot(Arc<Filesystem>),
}

impl Deref for FilesAt<'_> {
    type Target = Filesystem;

    fn deref(&self) -> &Filesystem {
        match self {
            FilesAt::Own(files) => files,
            FilesAt::Snapshot(files) => files,
        }
    }
}

/// Place of an inode.
pub(crate) enum Place<'s> {
    Files(InFiles<'s>),
    Virtual(VirtualDirectory, &'s SnapshotsBelow),
}

/// An inode of the filesystem or of a snapshot.
pub(crate) struct InFiles<'s> {
    pub(crate) files: FilesAt<'s>,
    /// Number in `files`.
    pub(crate) number: ObjectId,
    pub(super) index: u16,
}

impl InFiles<'_> {
    /// Number of an inode of `files` on the mount.
    pub(crate) fn joined(&self, number: ObjectId) -> ObjectId {
        joined(self.index, number)
    }

    /// Attributes of an inode of `files` on the mount.
    pub(crate) fn shown(&self, found: Attributes) -> Attributes {
        Attributes { number: self.joined(found.number), ..found }
    }
}

#[cfg(test)]
mod tests {
    use weir_format::OBJECTS_MAX;

    use super::*;

    #[test]
    fn numbers_of_snapshots_and_files_differ_and_are_positive() {
        let files = [ROOT, ObjectId(16), ObjectId(OBJECTS_MAX - 1)];
        let directories = [VirtualDirectory::Weir, VirtualDirectory::Snapshots];
        let mut all: Vec<u64> = directories.map(|of| of.number().0).to_vec();
        all.push(UNKNOWN.0);
        for index in [0, 1, 2, INDEXES_MAX] {
            for number in files {
                let on_mount = joined(index, number);
                assert_eq!(parts(on_mount), (index, number));
                assert_eq!(is_own(on_mount), index == 0);
                assert_eq!(is_snapshot_root(on_mount), index > 0 && number == ROOT);
                all.push(on_mount.0);
            }
        }
        // Programs without large file support, and telldir(3), use signed numbers.
        assert!(all.iter().all(|number| i64::try_from(*number).is_ok()));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn index_of_a_snapshot_stays_and_is_the_same_on_the_next_mount() {
        let (mut first, mut next) = (Indexes::default(), Indexes::default());
        let all = Vec::new;
        let far = DatasetId(7 + u64::from(INDEXES_MAX));
        assert_eq!(first.index(DatasetId(7), all), Some(8));
        assert_eq!(first.index(far, all), Some(9), "the index of 7 is taken");
        assert_eq!(first.index(DatasetId(7), all), Some(8));
        assert_eq!(next.index(DatasetId(7), all), Some(8));
    }

    #[test]
    fn full_table_drops_the_oldest_snapshots_that_are_gone() {
        let mut indexes = Indexes::default();
        let count = u64::from(INDEXES_MAX);
        for dataset in 1..=count {
            assert!(indexes.index(DatasetId(dataset), Vec::new).is_some());
        }
        let from = |first| move || (first..=count + 1).map(DatasetId).collect();
        assert_eq!(indexes.index(DatasetId(count + 1), from(1)), None);
        // The snapshots 1 to 5 are gone; the oldest three of them give up their indexes.
        let added = indexes.index(DatasetId(count + 1), from(6)).unwrap();
        assert_eq!(indexes.at.get(&added), Some(&DatasetId(count + 1)));
        assert!((1..=3).all(|gone| !indexes.of.contains_key(&DatasetId(gone))));
        assert!((4..=count).all(|kept| indexes.of.contains_key(&DatasetId(kept))));
    }
}
