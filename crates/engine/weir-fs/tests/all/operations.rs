//! Tests of single operations.

use std::task::{Context, Waker};

use weir_base::ObjectId;
use weir_base::property::QUOTA;
use weir_dataset::{ObjectChange, PropertyChange, PropertyTarget, SnapshotId};
use weir_format::OBJECTS_MAX;
use weir_format::files::{FileType, TimeStamp};
use weir_fs::{Filesystem, Finding, FsError, NewInode, NewKind, ROOT, RenameMode, SetAttributes};

use crate::common::{Pool, now};

const DISK_BYTES: usize = 128 << 20;

const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

fn create(pool: &Pool, directory: ObjectId, name: &str, new: &NewInode<'_>) -> ObjectId {
    pool.run(pool.files.create_inode(directory, name.as_bytes(), new)).unwrap().number
}

fn lookup(pool: &Pool, directory: ObjectId, name: &str) -> Result<ObjectId, FsError> {
    pool.run(pool.files.lookup(directory, name.as_bytes())).map(|found| found.number)
}

#[test]
fn synced_file_survives_a_crash_with_its_name_content_and_attributes() {
    let pool = Pool::new(DISK_BYTES);
    let directory = create(&pool, ROOT, "d", &DIRECTORY);
    let file = create(&pool, directory, "f", &FILE);
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    pool.run(pool.files.write(file, 3, &content, false)).unwrap();
    pool.run(pool.files.set_xattr(file, b"user.a", Some(b"1"))).unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let before = pool.run(pool.files.attributes(file)).unwrap();
    let unsynced = create(&pool, directory, "g", &FILE);
    let pool = pool.crash();
    assert_eq!(lookup(&pool, directory, "f").unwrap(), file);
    assert_eq!(pool.run(pool.files.attributes(file)).unwrap(), before);
    let read = pool.run(pool.files.read(file, 0, 1 << 20)).unwrap();
    assert_eq!(read, [&[0; 3][..], &content].concat());
    assert_eq!(pool.run(pool.files.xattr(file, b"user.a")).unwrap(), b"1");
    assert!(matches!(lookup(&pool, directory, "g"), Err(FsError::NotFound)));
    assert!(matches!(pool.run(pool.files.attributes(unsynced)), Err(FsError::Stale)));
    pool.check();
}

#[test]
fn rename_over_a_file_after_a_write_never_shows_an_empty_file() {
    let pool = Pool::new(DISK_BYTES);
    let old = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.write(old, 0, b"old", false)).unwrap();
    pool.run(pool.files.sync(old)).unwrap();
    let new = create(&pool, ROOT, "f.tmp", &FILE);
    pool.run(pool.files.write(new, 0, b"new", false)).unwrap();
    pool.run(pool.files.rename((ROOT, b"f.tmp"), (ROOT, b"f"), RenameMode::Replace)).unwrap();
    // The sync of another file logs the rename, and with it the content of the renamed file.
    let other = create(&pool, ROOT, "other", &FILE);
    pool.run(pool.files.sync(other)).unwrap();
    let pool = pool.crash();
    let file = lookup(&pool, ROOT, "f").unwrap();
    assert_eq!(pool.run(pool.files.read(file, 0, 10)).unwrap(), b"new");
    assert!(matches!(lookup(&pool, ROOT, "f.tmp"), Err(FsError::NotFound)));
    pool.check();
}

#[test]
fn open_file_without_a_name_keeps_its_content_until_it_is_closed() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.open_inode(file)).unwrap();
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    pool.run(pool.files.write(file, 0, b"still here", false)).unwrap();
    assert_eq!(pool.run(pool.files.read(file, 6, 99)).unwrap(), b"here");
    pool.check();
    pool.run(pool.files.close(file)).unwrap();
    assert!(matches!(pool.run(pool.files.attributes(file)), Err(FsError::Stale)));
    pool.check();
}

#[test]
fn next_server_frees_files_that_were_open_without_a_name() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.open_inode(file)).unwrap();
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert!(matches!(pool.run(pool.files.attributes(file)), Err(FsError::Stale)));
    pool.check();
}

#[test]
fn number_of_a_removed_inode_gets_a_new_generation() {
    let pool = Pool::new(DISK_BYTES);
    let first = pool.run(pool.files.create_inode(ROOT, b"a", &FILE)).unwrap();
    pool.run(pool.files.remove(ROOT, b"a", false)).unwrap();
    let second = pool.run(pool.files.create_inode(ROOT, b"b", &FILE)).unwrap();
    assert_ne!(first.number, second.number, "not reused in the same txg");
    pool.check();
    let mut reused = None;
    for n in 0..200 {
        let name = format!("c{n}");
        let made = pool.run(pool.files.create_inode(ROOT, name.as_bytes(), &FILE)).unwrap();
        reused = reused.or((made.number == first.number).then_some(made));
    }
    if let Some(reused) = reused {
        assert!(reused.generation > first.generation && reused.change > first.change);
    }
    pool.check();
}

#[test]
fn change_number_grows_after_a_crash_that_lost_changes() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.sync(file)).unwrap();
    let write = |pool: &Pool| pool.run(pool.files.write(file, 0, b"x", false)).unwrap().change;
    let lost = (0..10).map(|_| write(&pool)).max().unwrap();
    let pool = pool.crash();
    assert!(write(&pool) > lost);
}

#[test]
fn renames_between_directories_keep_the_tree_whole() {
    let pool = Pool::new(DISK_BYTES);
    let a = create(&pool, ROOT, "a", &DIRECTORY);
    let b = create(&pool, a, "b", &DIRECTORY);
    let c = create(&pool, b, "c", &DIRECTORY);
    let rename = |from: (ObjectId, &'static [u8]), to: (ObjectId, &'static [u8])| {
        pool.run(pool.files.rename(from, to, RenameMode::Replace))
    };
    assert!(matches!(rename((ROOT, b"a"), (c, b"x")), Err(FsError::Invalid(_))));
    assert!(matches!(rename((ROOT, b"a"), (a, b"x")), Err(FsError::Invalid(_))));
    assert!(matches!(rename((b, b"c"), (ROOT, b"a")), Err(FsError::NotEmpty)));
    rename((b, b"c"), (ROOT, b"c")).unwrap();
    rename((a, b"b"), (c, b"b")).unwrap();
    assert_eq!(lookup(&pool, b, "..").unwrap(), c);
    let exchange = RenameMode::Exchange;
    pool.run(pool.files.rename((ROOT, b"a"), (c, b"b"), exchange)).unwrap();
    assert_eq!(lookup(&pool, c, "b").unwrap(), a);
    assert_eq!(lookup(&pool, ROOT, "a").unwrap(), b);
    pool.check();
    pool.run(pool.files.sync(ROOT)).unwrap();
    let pool = pool.crash();
    assert_eq!(lookup(&pool, ROOT, "a").unwrap(), b);
    pool.check();
}

#[test]
fn removed_directory_that_is_still_open_gets_no_entries() {
    let pool = Pool::new(DISK_BYTES);
    let directory = create(&pool, ROOT, "d", &DIRECTORY);
    let file = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.open_inode(directory)).unwrap();
    pool.run(pool.files.remove(ROOT, b"d", true)).unwrap();
    for mode in [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange] {
        let renamed = pool.run(pool.files.rename((ROOT, b"f"), (directory, b"f"), mode));
        assert!(matches!(renamed, Err(FsError::NotFound)), "{mode:?}: {renamed:?}");
    }
    let linked = pool.run(pool.files.link(file, directory, b"f"));
    assert!(matches!(linked, Err(FsError::NotFound)), "{linked:?}");
    let created = pool.run(pool.files.create_inode(directory, b"g", &FILE));
    assert!(matches!(created, Err(FsError::NotFound)), "{created:?}");
    let unnamed = pool.run(pool.files.create_unnamed(directory, &FILE));
    assert!(matches!(unnamed, Err(FsError::NotFound)), "{unnamed:?}");
    pool.run(pool.files.close(directory)).unwrap();
    assert_eq!(lookup(&pool, ROOT, "f").unwrap(), file);
    pool.check();
}

#[test]
fn dataset_has_one_open_filesystem() {
    let pool = Pool::new(DISK_BYTES);
    let again = || pool.run(Filesystem::open(&pool.engine, "home", Box::new(TimeStamp::default)));
    assert!(again().is_err_and(|error| error.to_string().contains("in use")));
    let snapshot = SnapshotId::new("home", "s");
    pool.run(pool.engine.create_snapshots(std::slice::from_ref(&snapshot))).unwrap();
    let back = pool.run(pool.engine.rollback(&snapshot, false));
    assert!(back.is_err_and(|error| error.to_string().contains("in use")));
    pool.reopen().check();
}

#[test]
fn operations_on_the_wrong_type_are_refused() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    let directory = create(&pool, ROOT, "d", &DIRECTORY);
    let link = NewInode { kind: NewKind::Symlink(b"f"), ..FILE };
    let link = create(&pool, ROOT, "l", &link);
    assert_eq!(pool.run(pool.files.read_link(link)).unwrap(), b"f");
    let files = &pool.files;
    let refused = [
        pool.run(files.create_inode(file, b"x", &FILE)).map(drop),
        pool.run(files.lookup(file, b"x")).map(drop),
        pool.run(files.list(file, 0)).map(drop),
        pool.run(files.remove(ROOT, b"f", true)),
    ];
    assert!(refused.iter().all(|done| matches!(done, Err(FsError::NotDirectory))), "{refused:?}");
    let refused = [
        pool.run(files.write(directory, 0, b"x", false)).map(drop),
        pool.run(files.read(directory, 0, 1)).map(drop),
        pool.run(files.remove(ROOT, b"d", false)),
    ];
    assert!(refused.iter().all(|done| matches!(done, Err(FsError::IsDirectory))), "{refused:?}");
    let size = SetAttributes { size: Some(1), ..SetAttributes::default() };
    assert!(matches!(pool.run(files.set_attributes(link, &size, true)), Err(FsError::Invalid(_))));
    assert!(matches!(pool.run(files.link(directory, ROOT, b"x")), Err(FsError::NotPermitted(_))));
    let fifo = NewInode { kind: NewKind::Special(FileType::Fifo, 0), ..FILE };
    create(&pool, directory, "p", &fifo);
    assert!(matches!(pool.run(files.remove(ROOT, b"d", true)), Err(FsError::NotEmpty)));
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        let made = pool.run(files.create_inode(ROOT, name, &FILE));
        assert!(matches!(made, Err(FsError::Invalid(_))), "{name:?}");
    }
    let long = pool.run(files.create_inode(ROOT, &[b'x'; 256], &FILE));
    assert!(matches!(long, Err(FsError::NameTooLong)));
    pool.check();
}

#[test]
fn append_writes_at_the_end_of_the_file() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.write(file, 2, b"one", false)).unwrap();
    let appended = pool.run(pool.files.append(file, b"two", false)).unwrap();
    assert_eq!(appended.size, 8);
    assert_eq!(pool.run(pool.files.append(file, b"", false)).unwrap(), appended);
    assert_eq!(pool.run(pool.files.read(file, 0, 99)).unwrap(), b"\0\0onetwo");
    assert!(matches!(pool.run(pool.files.append(ROOT, b"", false)), Err(FsError::IsDirectory)));
    let long = vec![1; (1 << 20) + 1];
    assert!(matches!(pool.run(pool.files.append(file, &long, false)), Err(FsError::Invalid(_))));
}

/// Fills the filesystem with incompressible data: files of `MIB` MiB first, then 4 KiB at a time,
/// then empty files. Returns the names.
fn fill<const MIB: u64>(pool: &Pool) -> Vec<String> {
    let mut numbers = fastrand::Rng::with_seed(3);
    let mut names = Vec::new();
    let mut fill_by = |bytes: u64, file_bytes: u64| loop {
        let name = format!("f{}", names.len());
        let Ok(made) = pool.run(pool.files.create_inode(ROOT, name.as_bytes(), &FILE)) else {
            break;
        };
        names.push(name);
        let mut data = || -> Vec<u8> { (0..bytes).map(|_| numbers.u8(..)).collect() };
        let write = |at: u64, data: &[u8]| pool.run(pool.files.write(made.number, at, data, false));
        if (0..file_bytes / bytes.max(1)).any(|at| write(at * bytes, &data()).is_err()) {
            break;
        }
        pool.run(pool.engine.sync()).unwrap();
    };
    fill_by(1 << 20, MIB << 20);
    fill_by(4096, u64::MAX);
    let large = names.len();
    for at in 0.. {
        let name = format!("empty{at}");
        if pool.run(pool.files.create_inode(ROOT, name.as_bytes(), &FILE)).is_err() {
            break;
        }
        names.push(name);
    }
    assert!(large > 4, "{names:?}");
    names
}

// Regression: a removal needed as much space as a write, so the last byte of a full filesystem
// could not be freed.
#[test]
fn full_filesystem_can_remove_files() {
    for (disk_mib, names) in [(64, fill::<1> as fn(&Pool) -> Vec<String>), (300, fill::<40>)] {
        let pool = Pool::new(disk_mib << 20);
        let names = names(&pool);
        let left = pool.run(pool.files.statistics()).unwrap().available_bytes;
        assert!(left < 1 << 20, "{left} bytes are left");
        for name in &names {
            let removed = pool.run(pool.files.remove(ROOT, name.as_bytes(), false));
            removed.unwrap_or_else(|error| panic!("{name} of {}: {error}", names.len()));
        }
        for number in pool.run(pool.files.removed_files()).unwrap() {
            while pool.run(pool.files.free_part(number)).unwrap() {}
        }
        pool.check();
        create(&pool, ROOT, "again", &FILE);
        let free = pool.run(pool.files.statistics()).unwrap().available_bytes;
        assert!(free > disk_mib as u64 * (1 << 19), "{free} bytes of {disk_mib} MiB");
    }
}

#[test]
fn files_of_a_filesystem_at_its_quota_can_be_removed() {
    let pool = Pool::new(64 << 20);
    let quota = PropertyChange::set(QUOTA, 16 << 20);
    let home = PropertyTarget::Volume("home".to_owned());
    pool.run(pool.engine.change_properties(&[home], &[quota])).unwrap();
    let names = fill::<1>(&pool);
    let id = SnapshotId::new("home", "s");
    pool.run(pool.engine.create_snapshots(&[id])).unwrap();
    for name in &names {
        pool.run(pool.files.remove(ROOT, name.as_bytes(), false)).unwrap();
    }
    pool.run(pool.engine.destroy_snapshots("home", &["s".to_owned()])).unwrap();
    pool.check();
    create(&pool, ROOT, "again", &FILE);
}

#[test]
fn files_of_a_full_filesystem_can_be_truncated() {
    let pool = Pool::new(64 << 20);
    let names = fill::<1>(&pool);
    for name in &names {
        let file = pool.run(pool.files.lookup(ROOT, name.as_bytes())).unwrap().number;
        let changes = SetAttributes { size: Some(5000), ..SetAttributes::default() };
        pool.run(pool.files.set_attributes(file, &changes, false)).unwrap();
    }
    pool.check();
    assert!(pool.run(pool.files.statistics()).unwrap().available_bytes > 32 << 20);
}

#[test]
fn small_file_is_written_while_another_file_waits_for_memory() {
    let pool = Pool::new(512 << 20);
    let (large, small) = (create(&pool, ROOT, "large", &FILE), create(&pool, ROOT, "small", &FILE));
    let mut numbers = fastrand::Rng::with_seed(1);
    let part: Vec<u8> = (0..1 << 20).map(|_| numbers.u8(..)).collect();
    let mut context = Context::from_waker(Waker::noop());
    let write = |at: u64| Box::pin(pool.files.write(large, at << 20, &part, false));
    let waiting = (0..512).map(write).find_map(|mut write| {
        let polled = write.as_mut().poll(&mut context);
        polled.is_pending().then_some(write)
    });
    for at in 0..100 {
        now(pool.files.write(small, at << 12, &part[..4096], false)).unwrap();
    }
    pool.run(waiting.expect("the memory is bounded")).unwrap();
    pool.check();
}

#[test]
fn number_of_open_files_is_limited() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE);
    let open = || pool.run(pool.files.open_inode(file)).map(drop);
    for _ in 0..1 << 16 {
        open().unwrap();
    }
    for _ in 0..3 {
        assert!(matches!(open(), Err(FsError::TooManyOpens)));
        let unnamed = pool.run(pool.files.create_unnamed(ROOT, &FILE));
        assert!(matches!(unnamed, Err(FsError::TooManyOpens)));
    }
    pool.run(pool.files.close(file)).unwrap();
    open().unwrap();
    assert!(open().is_err());
}

#[test]
fn unused_inodes_leave_the_memory() {
    let pool = Pool::new(DISK_BYTES);
    // The filesystem has room for 518 inodes.
    pool.engine.set_memory(8 << 20);
    let open = create(&pool, ROOT, "open", &FILE);
    pool.run(pool.files.open_inode(open)).unwrap();
    pool.run(pool.files.remove(ROOT, b"open", false)).unwrap();
    for n in 0..3_000 {
        create(&pool, ROOT, &format!("f{n}"), &FILE);
    }
    let count = pool.files.inodes_in_memory();
    assert!(count <= 1_100, "{count} inodes");
    pool.run(pool.files.close(open)).unwrap();
    assert!(matches!(pool.run(pool.files.attributes(open)), Err(FsError::Stale)));
    pool.check();
}

// Regression: the check read the bitmap of all numbers up to the largest inode.
#[test]
fn check_of_an_inode_with_a_huge_number_ends() {
    let pool = Pool::new(DISK_BYTES);
    let volume = pool.engine.volume("home").unwrap();
    let (size, body) = pool.run(volume.object_slot(ROOT)).unwrap().unwrap();
    let object = ObjectId(OBJECTS_MAX - 1);
    let slot = ObjectChange::SetSlot { object, size, body };
    pool.run(volume.change_objects(vec![slot])).unwrap();
    pool.run(pool.engine.sync()).unwrap();
    let found = pool.run(pool.files.check()).unwrap();
    let is_huge = |finding: &&Finding| finding.inode == object.0;
    assert!(found.iter().filter(is_huge).any(|finding| finding.what.contains("bitmap")));
}
