//! Tests of the usage and the limits of users, groups and projects.

use weir_base::ObjectId;
use weir_format::files::{Inode, Limits, OwnerId, OwnerKind, Usage};
use weir_fs::{Attributes, FsError, NewInode, NewKind, ROOT, RenameMode, SetAttributes};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };
const USER: OwnerId = OwnerId { kind: OwnerKind::User, id: 1 };
const OTHER: OwnerId = OwnerId { kind: OwnerKind::User, id: 9 };
const GROUP: OwnerId = OwnerId { kind: OwnerKind::Group, id: 2 };
const PROJECT: OwnerId = OwnerId { kind: OwnerKind::Project, id: 7 };

fn create(pool: &Pool, directory: ObjectId, name: &str, new: &NewInode<'_>) -> Attributes {
    pool.run(pool.files.create_inode(directory, name.as_bytes(), new)).unwrap()
}

/// Blocks and inodes.
fn used(pool: &Pool, owner: OwnerId) -> (u64, u64) {
    let Usage { blocks, inodes, .. } = pool.run(pool.files.usage(owner)).unwrap();
    (blocks, inodes)
}

fn limit(pool: &Pool, owner: OwnerId, blocks: u64, inodes: u64) {
    pool.run(pool.files.set_limits(owner, Limits { blocks, inodes })).unwrap();
}

fn write(pool: &Pool, file: ObjectId, block: u64, blocks: usize) -> Result<(), FsError> {
    let data = vec![1; blocks * 4096];
    pool.run(pool.files.write(file, block * 4096, &data, false)).map(drop)
}

fn is_over<T: std::fmt::Debug>(done: &Result<T, FsError>, kind: OwnerKind) -> bool {
    matches!(done, Err(FsError::Quota(found)) if *found == kind)
}

#[test]
fn limit_of_blocks_holds_exactly() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    limit(&pool, USER, 10, 0);
    write(&pool, file, 0, 10).unwrap();
    assert_eq!((used(&pool, USER), used(&pool, GROUP)), ((10, 1), (10, 1)));
    assert!(is_over(&write(&pool, file, 10, 1), OwnerKind::User));
    assert_eq!(pool.run(pool.files.attributes(file)).unwrap().size, 10 * 4096, "no change");
    write(&pool, file, 3, 7).expect("an overwrite takes no more blocks");
    pool.run(pool.files.write(file, 0, &[0; 4096], false)).unwrap();
    pool.check();
    let value = pool.run(pool.files.set_xattr(file, b"user.a", Some(&[1; 9000])));
    assert!(is_over(&value, OwnerKind::User), "large attributes count");
    let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
    pool.run(pool.files.set_attributes(file, &empty, false)).unwrap();
    assert_eq!(used(&pool, USER), (0, 1));
    pool.run(pool.files.set_xattr(file, b"user.a", Some(&[1; 9000]))).unwrap();
    assert_eq!(used(&pool, USER), (3, 1));
    write(&pool, file, 0, 7).unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert_eq!(used(&pool, USER), (10, 1));
    assert!(is_over(&write(&pool, file, 10, 1), OwnerKind::User), "limits survive");
    // Below the usage: only removals are possible.
    limit(&pool, USER, 2, 0);
    assert!(is_over(&write(&pool, file, 20, 1), OwnerKind::User));
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    assert_eq!((used(&pool, USER), used(&pool, GROUP)), ((0, 0), (0, 0)));
    pool.check();
}

#[test]
fn limit_of_inodes_holds_at_each_kind_of_creation() {
    let pool = Pool::new(DISK_BYTES);
    limit(&pool, GROUP, 0, 2);
    create(&pool, ROOT, "f", &FILE);
    create(&pool, ROOT, "d", &DIRECTORY);
    let link = NewInode { kind: NewKind::Symlink(b"f"), ..FILE };
    for new in [FILE, DIRECTORY, link] {
        let made = pool.run(pool.files.create_inode(ROOT, b"x", &new));
        assert!(is_over(&made, OwnerKind::Group));
    }
    let unnamed = pool.run(pool.files.create_unnamed(ROOT, &FILE));
    assert!(is_over(&unnamed, OwnerKind::Group));
    assert!(matches!(pool.run(pool.files.lookup(ROOT, b"x")), Err(FsError::NotFound)));
    pool.run(pool.files.remove(ROOT, b"d", true)).unwrap();
    let unnamed = pool.run(pool.files.create_unnamed(ROOT, &FILE)).unwrap();
    assert_eq!(used(&pool, GROUP), (0, 2));
    pool.check();
    pool.run(pool.files.close(unnamed.number)).unwrap();
    assert_eq!(used(&pool, GROUP), (0, 1));
    pool.check();
}

#[test]
fn new_owner_takes_the_usage_if_the_limit_allows_it() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    write(&pool, file, 0, 5).unwrap();
    pool.run(pool.files.set_xattr(file, b"user.a", Some(&[1; 5000]))).unwrap();
    limit(&pool, OTHER, 6, 0);
    let give = SetAttributes { uid: Some(9), ..SetAttributes::default() };
    let given = pool.run(pool.files.set_attributes(file, &give, false));
    assert!(is_over(&given, OwnerKind::User));
    assert_eq!((used(&pool, USER), used(&pool, OTHER)), ((7, 1), (0, 0)));
    limit(&pool, OTHER, 7, 0);
    pool.run(pool.files.set_attributes(file, &give, false)).unwrap();
    assert_eq!((used(&pool, USER), used(&pool, OTHER)), ((0, 0), (7, 1)));
    pool.check();
    let (listed, next) = pool.run(pool.files.usages(0)).unwrap();
    assert_eq!(next, None);
    assert!(listed.iter().any(|(owner, usage)| *owner == OTHER && usage.blocks == 7));
}

#[test]
fn projects_are_inherited_and_limited() {
    let pool = Pool::new(DISK_BYTES);
    let directory = create(&pool, ROOT, "d", &DIRECTORY).number;
    let flags = Some(Inode::INHERITS_PROJECT);
    let set = SetAttributes { project: Some(7), flags, ..SetAttributes::default() };
    pool.run(pool.files.set_attributes(directory, &set, false)).unwrap();
    let below = create(&pool, directory, "sub", &DIRECTORY).number;
    let file = create(&pool, below, "f", &FILE).number;
    assert_eq!(used(&pool, PROJECT), (0, 3));
    limit(&pool, PROJECT, 4, 0);
    write(&pool, file, 0, 4).unwrap();
    assert!(is_over(&write(&pool, file, 4, 1), OwnerKind::Project));
    let outside = create(&pool, ROOT, "g", &FILE).number;
    write(&pool, outside, 0, 9).unwrap();
    let linked = pool.run(pool.files.link(outside, below, b"g"));
    assert!(matches!(linked, Err(FsError::OtherProject)));
    let rename = |from: (ObjectId, &'static [u8]), to: (ObjectId, &'static [u8]), mode| {
        pool.run(pool.files.rename(from, to, mode))
    };
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    for (from, to, mode) in [
        ((ROOT, &b"g"[..]), (below, &b"g"[..]), replace),
        ((ROOT, b"g"), (below, b"f"), exchange),
        ((below, b"f"), (ROOT, b"g"), exchange),
    ] {
        assert!(matches!(rename(from, to, mode), Err(FsError::OtherProject)));
    }
    // A file may leave the directory, and keeps its project.
    rename((below, b"f"), (directory, b"f"), replace).unwrap();
    rename((directory, b"f"), (ROOT, b"f"), replace).unwrap();
    assert_eq!(used(&pool, PROJECT), (4, 3));
    pool.check();
}
