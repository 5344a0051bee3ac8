//! The name `.weir` of the root, and the attributes of the directories of snapshots.

use std::sync::Arc;

use weir_base::{DatasetId, ObjectId};
use weir_format::files::{FileType, NameCase, TimeStamp};
use weir_fs::{
    Filesystem, FsError, NewInode, NewKind, ROOT, RenameMode, SnapshotEntry, SnapshotTotals,
    Snapshots, VirtualDirectory,
};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;

const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

#[test]
fn no_entry_of_the_root_gets_the_name_of_the_directory_of_snapshots() {
    let pool = Pool::new(DISK_BYTES);
    let create = |directory, name: &[u8], new: &NewInode<'_>| {
        pool.run(pool.files.create_inode(directory, name, new)).map(|found| found.number)
    };
    let file = create(ROOT, b"f", &FILE).unwrap();
    let below = create(ROOT, b"d", &DIRECTORY).unwrap();
    let is_reserved = |result: Result<(), FsError>| matches!(result, Err(FsError::Reserved));
    assert!(is_reserved(create(ROOT, b".weir", &FILE).map(drop)));
    assert!(is_reserved(create(ROOT, b".weir", &DIRECTORY).map(drop)));
    assert!(is_reserved(pool.run(pool.files.link(file, ROOT, b".weir")).map(drop)));
    let rename = |from: (ObjectId, &[u8]), to: (ObjectId, &[u8])| {
        pool.run(pool.files.rename(from, to, RenameMode::Replace))
    };
    assert!(is_reserved(rename((ROOT, b"f"), (ROOT, b".weir"))));
    // The name is free in other directories, and other spellings are other names.
    create(below, b".weir", &FILE).unwrap();
    rename((below, b".weir"), (ROOT, b".Weir")).unwrap();
    assert!(is_reserved(rename((ROOT, b".Weir"), (ROOT, b".weir"))));
    pool.check();
}

#[test]
fn spellings_of_the_name_are_reserved_in_a_case_insensitive_filesystem() {
    let pool = Pool::with_case(DISK_BYTES, NameCase::Insensitive);
    for name in [&b".weir"[..], b".Weir", b".WEIR"] {
        let created = pool.run(pool.files.create_inode(ROOT, name, &FILE));
        assert!(matches!(created, Err(FsError::Reserved)), "{name:?}");
    }
}

/// Three snapshots, the newest of them from the second 7.
struct Three;

impl Snapshots for Three {
    fn is_visible(&self) -> bool {
        true
    }

    // Regression: each GETATTR of the directory copied the names of all snapshots.
    fn list(&self, _after: DatasetId) -> Vec<SnapshotEntry> {
        panic!("attributes need no list")
    }

    fn find(&self, _name: &[u8]) -> Option<SnapshotEntry> {
        None
    }

    fn totals(&self) -> SnapshotTotals {
        SnapshotTotals { count: 3, newest: Some(TimeStamp { seconds: 7, nanos: 0 }) }
    }

    fn open(&self, _dataset: DatasetId) -> Result<Arc<Filesystem>, FsError> {
        Err(FsError::Stale)
    }
}

#[test]
fn directory_of_snapshots_counts_its_snapshots_and_refuses_writers() {
    let found = VirtualDirectory::Snapshots.attributes(&Three);
    let number = VirtualDirectory::Snapshots.number();
    assert_eq!((found.number, found.file_type), (number, FileType::Directory));
    assert_eq!((found.nlink, found.mtime.seconds), (5, 7));
    assert_eq!(found.permissions & 0o222, 0);
    assert_eq!(VirtualDirectory::Weir.attributes(&Three).nlink, 3);
}
