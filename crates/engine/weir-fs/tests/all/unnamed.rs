//! Tests of inodes without a name, and of the freeing of large files in the background.

use weir_base::{ObjectId, RecordSize};
use weir_format::files::FileType;
use weir_fs::{FreeingLimits, FsError, NewInode, NewKind, ROOT};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const RECORD: u64 = 32 << 10;
const LIMITS: FreeingLimits = FreeingLimits { at_once: 4, part: 10 };

/// A file with this number of records, each with data.
fn large_file(pool: &Pool, name: &str, records: u64) -> ObjectId {
    let made = pool.run(pool.files.create_inode(ROOT, name.as_bytes(), &FILE)).unwrap();
    for record in 0..records {
        // Few bytes in each record, so that the file has many records and little data.
        pool.run(pool.files.write(made.number, record * RECORD, b"data", false)).unwrap();
    }
    made.number
}

/// Number of records with data of an inode.
fn records(pool: &Pool, number: ObjectId) -> usize {
    let volume = pool.engine.volume("home").unwrap();
    let size = RecordSize::from_shift(3).unwrap();
    pool.run(volume.object_data(number, size, 0..1 << 20)).unwrap().records.len()
}

type BoxedTask<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

fn free_all(pool: &Pool) {
    pool.run(pool.files.free_removed()).unwrap();
}

#[test]
fn unnamed_file_gets_a_name_and_survives() {
    let pool = Pool::new(DISK_BYTES);
    let made = pool.run(pool.files.create_unnamed(ROOT, &FILE)).unwrap();
    assert_eq!((made.nlink, made.file_type), (0, FileType::Regular));
    pool.run(pool.files.write(made.number, 0, b"content", false)).unwrap();
    pool.check();
    let linked = pool.run(pool.files.link(made.number, ROOT, b"f")).unwrap();
    assert_eq!(linked.nlink, 1);
    pool.run(pool.files.close(made.number)).unwrap();
    pool.run(pool.files.sync(made.number)).unwrap();
    let pool = pool.crash();
    assert_eq!(pool.run(pool.files.lookup(ROOT, b"f")).unwrap().number, made.number);
    assert_eq!(pool.run(pool.files.read(made.number, 0, 99)).unwrap(), b"content");
    pool.check();
}

#[test]
fn unnamed_file_ends_with_its_close_or_with_a_crash() {
    let pool = Pool::new(DISK_BYTES);
    let [closed, lost] = [(); 2].map(|()| {
        let made = pool.run(pool.files.create_unnamed(ROOT, &FILE)).unwrap().number;
        pool.run(pool.files.write(made, 0, b"content", false)).unwrap();
        made
    });
    pool.run(pool.files.close(closed)).unwrap();
    assert!(matches!(pool.run(pool.files.attributes(closed)), Err(FsError::Stale)));
    assert!(pool.run(pool.files.attributes(lost)).is_ok());
    pool.run(pool.files.sync(lost)).unwrap();
    let pool = pool.crash();
    assert!(matches!(pool.run(pool.files.attributes(lost)), Err(FsError::Stale)));
    assert_eq!(pool.run(pool.files.statistics()).unwrap().files, 16);
    pool.check();
    let directory = NewInode { kind: NewKind::Directory, ..FILE };
    let refused = pool.run(pool.files.create_unnamed(ROOT, &directory));
    assert!(matches!(refused, Err(FsError::Invalid(_))));
}

#[test]
fn removed_large_file_is_freed_a_part_per_txg() {
    let pool = Pool::new(DISK_BYTES);
    pool.check();
    pool.files.set_freeing_limits(LIMITS);
    let before = pool.engine.volume("home").unwrap().info().space.used;
    let file = large_file(&pool, "f", 45);
    pool.check();
    let with_file = pool.engine.volume("home").unwrap().info().space.used;
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    assert!(matches!(pool.run(pool.files.attributes(file)), Err(FsError::Stale)));
    assert!(matches!(pool.run(pool.files.open_inode(file)), Err(FsError::Stale)));
    assert!(matches!(pool.run(pool.files.link(file, ROOT, b"g")), Err(FsError::Stale)));
    let mut left = vec![records(&pool, file)];
    while pool.run(pool.files.free_part(file)).unwrap() {
        pool.check();
        left.push(records(&pool, file));
    }
    assert_eq!(left, [45, 35, 25, 15, 5]);
    pool.check();
    pool.check();
    let after = pool.engine.volume("home").unwrap().info().space.used;
    assert!(after < with_file && after <= before + 4096, "{before} {with_file} {after}");
    assert_eq!(pool.run(pool.files.statistics()).unwrap().files, 16);
}

#[test]
fn freeing_continues_after_a_crash() {
    let pool = Pool::new(DISK_BYTES);
    pool.files.set_freeing_limits(LIMITS);
    let file = large_file(&pool, "f", 45);
    pool.run(pool.files.open_inode(file)).unwrap();
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    assert!(!pool.run(pool.files.free_part(file)).unwrap(), "a client has the file open");
    pool.run(pool.files.close(file)).unwrap();
    assert!(matches!(pool.run(pool.files.attributes(file)), Err(FsError::Stale)));
    for _ in 0..2 {
        assert!(pool.run(pool.files.free_part(file)).unwrap());
        pool.run(pool.engine.sync()).unwrap();
    }
    // The third part is neither logged nor committed.
    assert!(pool.run(pool.files.free_part(file)).unwrap());
    let pool = pool.crash_with(LIMITS);
    assert_eq!(records(&pool, file), 25);
    pool.check();
    free_all(&pool);
    assert_eq!(records(&pool, file), 0);
    assert_eq!(pool.run(pool.files.statistics()).unwrap().files, 16);
    pool.check();
}

#[test]
fn background_task_frees_replaced_files_while_it_waits_for_work() {
    let pool = Pool::new(DISK_BYTES);
    pool.files.set_freeing_limits(LIMITS);
    let replaced = large_file(&pool, "f", 20);
    large_file(&pool, "g", 1);
    let mut background: BoxedTask<'_> = Box::pin(pool.files.run_background());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut poll =
        |task: &mut BoxedTask<'_>| assert!(task.as_mut().poll(&mut context).is_pending());
    poll(&mut background);
    let rename = pool.files.rename((ROOT, b"g"), (ROOT, b"f"), weir_fs::RenameMode::Replace);
    pool.run(rename).unwrap();
    assert_eq!(records(&pool, replaced), 20);
    // Commits and the task take turns: the task waits for commits.
    for _ in 0..10 {
        let mut sync = Box::pin(pool.engine.sync());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while sync.as_mut().poll(&mut context).is_pending() {
            poll(&mut background);
        }
        poll(&mut background);
    }
    drop(background);
    assert_eq!(records(&pool, replaced), 0);
    pool.check();
}
