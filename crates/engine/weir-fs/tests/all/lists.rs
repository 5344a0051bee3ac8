//! Reads of the disk for lists of directories with the attributes of all entries.
//!
//! Invariant: the tests count reads, so that they do not depend on the speed of the machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_base::{Guid, ObjectId};
use weir_dataset::Engine;
use weir_device::{Device, MemoryDevice};
use weir_format::files::TimeStamp;
use weir_fs::{Attributes, Filesystem, FilesystemLayer, FsError, NewInode, NewKind, ROOT};
use weir_pool::ImportOptions;

use crate::common::{Pool, now, options, run};

const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const FILES: usize = 1000;

/// Reads inodes after an import, with empty caches. Returns their attributes and the number of
/// reads of the disk.
fn cold(
    disk: &Arc<MemoryDevice>,
    read: impl AsyncFnOnce(&Filesystem, &[ObjectId]) -> Vec<Result<Attributes, FsError>>,
    numbers: &[ObjectId],
) -> (Vec<Attributes>, u64) {
    let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(disk) as _];
    let how = ImportOptions::new(Guid(1 << 33));
    let engine = now(Engine::open_with_layer(disks, how, &options(), &FilesystemLayer)).unwrap();
    let files = run(&engine, Filesystem::open(&engine, "home", Box::new(TimeStamp::default)));
    let files = files.unwrap();
    let reads = || disk.stats().reads.load(Ordering::Relaxed);
    let before = reads();
    let found = run(&engine, read(&files, numbers));
    (found.into_iter().map(Result::unwrap).collect(), reads() - before)
}

#[test]
fn inodes_of_a_list_are_read_together() {
    let pool = Pool::new(64 << 20);
    let create = |number: usize| {
        let name = format!("file-{number}");
        pool.run(pool.files.create_inode(ROOT, name.as_bytes(), &FILE)).unwrap().number
    };
    let numbers: Vec<ObjectId> = (0..FILES).map(create).collect();
    pool.run(pool.engine.sync()).unwrap();
    let disk = pool.into_disk();
    let one_by_one = async |files: &Filesystem, numbers: &[ObjectId]| {
        let mut all = Vec::new();
        for number in numbers {
            all.push(files.attributes(*number).await);
        }
        all
    };
    let (expected, many) = cold(&disk, one_by_one, &numbers);
    let together =
        async |files: &Filesystem, numbers: &[ObjectId]| files.attributes_of_all(numbers).await;
    let (found, few) = cold(&disk, together, &numbers);
    assert_eq!(found, expected);
    // Four inodes share a block.
    assert!(many as usize >= FILES / 4, "{many} reads one by one");
    assert!(few < many / 10, "{few} reads together, {many} one by one");
}

#[test]
fn numbers_without_an_inode_do_not_hide_the_others() {
    let pool = Pool::new(64 << 20);
    let file = pool.run(pool.files.create_inode(ROOT, b"file", &FILE)).unwrap();
    let numbers = [ObjectId(1 << 30), file.number, ObjectId(2), file.number, ROOT];
    let found = pool.run(pool.files.attributes_of_all(&numbers));
    let numbers: Vec<_> =
        found.into_iter().map(|found| found.ok().map(|found| found.number)).collect();
    assert_eq!(numbers, [None, Some(file.number), None, Some(file.number), Some(ROOT)]);
}
