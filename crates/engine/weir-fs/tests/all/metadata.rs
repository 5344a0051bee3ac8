//! Tests of attributes that the filesystem sets by itself: set-id bits, atime, statistics.

use weir_base::property::{ATIME, AtimePolicy, Limit, QUOTA};
use weir_base::{ErrorKind, ObjectId};
use weir_dataset::{PropertyChange, PropertyTarget};
use weir_format::files::FileType;
use weir_fs::{Attributes, FsError, NewInode, NewKind, ROOT, SetAttributes};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };
const NOTHING: SetAttributes = SetAttributes {
    permissions: None,
    uid: None,
    gid: None,
    project: None,
    flags: None,
    size: None,
    atime: None,
    mtime: None,
};

fn create(pool: &Pool, directory: ObjectId, name: &str, new: &NewInode<'_>) -> Attributes {
    pool.run(pool.files.create_inode(directory, name.as_bytes(), new)).unwrap()
}

/// Permission bits of a file of 100 bytes after a change of each kind.
fn after_each_change(bits: u32, clears_set_id: bool) -> Vec<u32> {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let changes: [&dyn Fn(ObjectId) -> Attributes; 6] = [
        &|file| pool.run(files.write(file, 0, b"x", clears_set_id)).unwrap(),
        &|file| pool.run(files.punch(file, 0, 10, clears_set_id)).unwrap(),
        &|file| {
            let changes = SetAttributes { size: Some(3), ..NOTHING };
            pool.run(files.set_attributes(file, &changes, clears_set_id)).unwrap()
        },
        &|file| {
            let changes = SetAttributes { gid: Some(9), ..NOTHING };
            pool.run(files.set_attributes(file, &changes, clears_set_id)).unwrap()
        },
        &|file| {
            let changes = SetAttributes { uid: Some(9), permissions: Some(bits), ..NOTHING };
            pool.run(files.set_attributes(file, &changes, clears_set_id)).unwrap()
        },
        &|file| {
            let changes = SetAttributes { permissions: Some(bits), ..NOTHING };
            pool.run(files.set_attributes(file, &changes, clears_set_id)).unwrap()
        },
    ];
    let mut found = Vec::new();
    let mut made = Vec::new();
    for (at, change) in changes.iter().enumerate() {
        let new = NewInode { permissions: bits, ..FILE };
        let file = create(&pool, ROOT, &format!("f{at}"), &new).number;
        pool.run(files.write(file, 0, &[1; 100], false)).unwrap();
        pool.run(pool.files.sync(file)).unwrap();
        found.push(change(file).permissions);
        made.push(file);
        pool.run(pool.files.sync(file)).unwrap();
    }
    // The replay of the log gives the same bits.
    let pool = pool.crash();
    let replayed = made.into_iter().map(|file| pool.run(pool.files.attributes(file)).unwrap());
    assert_eq!(replayed.map(|found| found.permissions).collect::<Vec<_>>(), found);
    pool.check();
    found
}

#[test]
fn changes_of_data_or_owner_clear_the_set_id_bits() {
    let same = |bits| vec![bits; 6];
    assert_eq!(after_each_change(0o6755, false), same(0o6755));
    let cleared = |bits, after| vec![after, after, after, after, after, bits];
    assert_eq!(after_each_change(0o6755, true), cleared(0o6755, 0o755));
    // Without the execute permission of the group, the bit is not a set-group-id bit.
    assert_eq!(after_each_change(0o6745, true), cleared(0o6745, 0o2745));
    assert_eq!(after_each_change(0o1644, true), same(0o1644));
}

#[test]
fn directory_keeps_its_set_group_id_bit_when_its_group_changes() {
    let pool = Pool::new(DISK_BYTES);
    let new = NewInode { permissions: 0o2775, ..DIRECTORY };
    let directory = create(&pool, ROOT, "d", &new).number;
    let changes = SetAttributes { gid: Some(9), ..NOTHING };
    let changed = pool.run(pool.files.set_attributes(directory, &changes, true)).unwrap();
    assert_eq!((changed.gid, changed.permissions), (9, 0o2775));
}

#[test]
fn new_entries_of_a_set_group_id_directory_get_its_group() {
    let pool = Pool::new(DISK_BYTES);
    let new = NewInode { permissions: 0o2775, gid: 50, ..DIRECTORY };
    let parent = create(&pool, ROOT, "d", &new).number;
    let file = create(&pool, parent, "f", &FILE);
    assert_eq!((file.gid, file.permissions), (50, 0o644));
    let unnamed = pool.run(pool.files.create_unnamed(parent, &FILE)).unwrap();
    assert_eq!((unnamed.gid, unnamed.permissions), (50, 0o644));
    let directory = create(&pool, parent, "sub", &NewInode { permissions: 0o755, ..DIRECTORY });
    assert_eq!((directory.gid, directory.permissions), (50, 0o2755));
    let below = create(&pool, directory.number, "g", &FILE);
    assert_eq!(below.gid, 50);
    // Only root and members of the group can create a program that runs as the group.
    for (name, uid, gid, bits) in
        [("root", 0, 2, 0o2775), ("member", 1, 50, 0o2775), ("other", 1, 2, 0o775)]
    {
        let program = NewInode { permissions: 0o2775, uid, gid, ..FILE };
        assert_eq!(create(&pool, parent, name, &program).permissions, bits, "{name}");
    }
    let locked = NewInode { permissions: 0o2765, ..FILE };
    assert_eq!(create(&pool, parent, "no-program", &locked).permissions, 0o2765);
    let plain = create(&pool, ROOT, "f", &FILE);
    assert_eq!(plain.gid, 2);
}

#[test]
fn long_targets_of_symbolic_links_survive() {
    let pool = Pool::new(DISK_BYTES);
    let lengths = [1, 704, 705, 4095];
    for length in lengths {
        let target = vec![b'a'; length];
        let link = NewInode { kind: NewKind::Symlink(&target), ..FILE };
        let made = create(&pool, ROOT, &format!("l{length}"), &link);
        assert_eq!((made.file_type, made.size), (FileType::SymbolicLink, length as u64));
        assert_eq!(made.blocks, u64::from(length > 704));
    }
    pool.run(pool.files.sync(ROOT)).unwrap();
    let pool = pool.crash();
    for length in lengths {
        let found = pool.run(pool.files.lookup(ROOT, format!("l{length}").as_bytes())).unwrap();
        let target = pool.run(pool.files.read_link(found.number)).unwrap();
        assert_eq!(target, vec![b'a'; length]);
    }
    pool.check();
    pool.run(pool.files.remove(ROOT, b"l4095", false)).unwrap();
    pool.check();
    for target in [&[b'a'; 4096][..], b"", b"a\0b"] {
        let link = NewInode { kind: NewKind::Symlink(target), ..FILE };
        let refused = pool.run(pool.files.create_inode(ROOT, b"bad", &link));
        assert!(matches!(refused, Err(FsError::NameTooLong | FsError::Invalid(_))));
    }
}

fn set_atime_policy(pool: &Pool, policy: AtimePolicy) {
    let change = PropertyChange::set(ATIME, policy);
    let home = PropertyTarget::Volume("home".to_owned());
    pool.run(pool.engine.change_properties(&[home], &[change])).unwrap();
}

#[test]
fn reads_set_the_atime_by_the_policy() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let file = create(&pool, ROOT, "f", &FILE).number;
    let made = pool.run(files.write(file, 0, b"x", false)).unwrap();
    let read = || {
        pool.run(files.read(file, 0, 1)).unwrap();
        pool.run(files.attributes(file)).unwrap()
    };
    set_atime_policy(&pool, AtimePolicy::Off);
    assert_eq!(read(), made);
    set_atime_policy(&pool, AtimePolicy::Relative);
    let first = read();
    assert!(first.atime > made.mtime);
    assert_eq!(first, Attributes { atime: first.atime, ..made }, "no other attribute changes");
    assert_eq!(read(), first, "the atime is after the last change");
    set_atime_policy(&pool, AtimePolicy::On);
    let second = read();
    assert!(second.atime > first.atime);
    // A write stores the atime, too.
    let written = pool.run(files.write(file, 0, b"y", false)).unwrap();
    assert_eq!(written.atime, second.atime);
    pool.run(files.sync(file)).unwrap();
    pool.check();
    let pool = pool.crash();
    assert_eq!(pool.run(pool.files.attributes(file)).unwrap().atime, second.atime);
    // A server that stops stores the rest.
    set_atime_policy(&pool, AtimePolicy::On);
    pool.run(pool.files.read(file, 0, 1)).unwrap();
    let last = pool.run(pool.files.attributes(file)).unwrap();
    pool.run(pool.files.store_atimes()).unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert_eq!(pool.run(pool.files.attributes(file)).unwrap(), last);
    pool.check();
}

#[test]
fn atime_is_stored_after_a_day() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    pool.run(pool.files.write(file, 0, b"x", false)).unwrap();
    let read = || pool.run(pool.files.read(file, 0, 1)).unwrap();
    read();
    pool.advance_clock(25 * 60 * 60);
    read();
    let after = pool.run(pool.files.attributes(file)).unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert_eq!(pool.run(pool.files.attributes(file)).unwrap().atime, after.atime);
}

/// Writes random data until it fails. Returns the number of written bytes.
fn fill(pool: &Pool, file: ObjectId) -> u64 {
    const PART: u64 = 128 << 10;
    let mut numbers = fastrand::Rng::with_seed(1);
    for part in 0.. {
        let data: Vec<u8> = (0..PART).map(|_| numbers.u8(..)).collect();
        match pool.run(pool.files.write(file, part * PART, &data, false)) {
            Ok(_) => {}
            Err(FsError::Dataset(error)) => {
                assert!(matches!(error.kind(), ErrorKind::NoSpace), "{error}");
                return part * PART;
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the disk is finite")
}

#[test]
fn available_space_can_be_written() {
    for quota in [None, Some(12 << 20)] {
        let pool = Pool::new(DISK_BYTES);
        let file = create(&pool, ROOT, "f", &FILE).number;
        if let Some(quota) = quota {
            let set = PropertyChange::set(QUOTA, Limit(quota));
            let home = PropertyTarget::Volume("home".to_owned());
            pool.run(pool.engine.change_properties(&[home], &[set])).unwrap();
        }
        pool.check();
        let available = pool.run(pool.files.statistics()).unwrap().available_bytes;
        let written = fill(&pool, file);
        // Pointers, summaries and inodes take some of the space.
        let range = available - available / 20..=available;
        assert!(range.contains(&written), "{quota:?}: {written} of {available}");
        pool.check();
        let left = pool.run(pool.files.statistics()).unwrap().available_bytes;
        assert!(left < available / 20, "{quota:?}: {left} left");
    }
}

#[test]
fn statistics_show_the_space_and_the_inodes() {
    let pool = Pool::new(DISK_BYTES);
    pool.check();
    let empty = pool.run(pool.files.statistics()).unwrap();
    assert_eq!(empty.files, 16);
    let file = create(&pool, ROOT, "f", &FILE).number;
    create(&pool, ROOT, "d", &DIRECTORY);
    let mut numbers = fastrand::Rng::with_seed(1);
    let data: Vec<u8> = (0..1 << 20).map(|_| numbers.u8(..)).collect();
    for part in 0..8 {
        pool.run(pool.files.write(file, part << 20, &data, false)).unwrap();
    }
    let dirty = pool.run(pool.files.statistics()).unwrap();
    assert!(dirty.available_bytes + (8 << 20) <= empty.available_bytes);
    pool.check();
    let full = pool.run(pool.files.statistics()).unwrap();
    assert_eq!(full.files, 18);
    assert!(full.available_bytes + (8 << 20) <= empty.available_bytes);
    assert!(full.total_bytes <= empty.total_bytes + (1 << 20));
    assert!(full.files_available < empty.files_available && full.files_available > 0);
    pool.run(pool.files.remove(ROOT, b"d", true)).unwrap();
    assert_eq!(pool.run(pool.files.statistics()).unwrap().files, 17);
    let pool = pool.crash();
    assert_eq!(pool.run(pool.files.statistics()).unwrap().files, 18);
}
