//! Tests of extended attributes and ACLs.

use weir_base::ObjectId;
use weir_format::files::{Acl, AclEntry, AclTag};
use weir_fs::{Attributes, FsError, NewInode, NewKind, ROOT, SetAttributes, XattrMode};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o666, umask: 0o022, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> =
    NewInode { kind: NewKind::Directory, permissions: 0o777, ..FILE };
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn create(pool: &Pool, directory: ObjectId, name: &str, new: &NewInode<'_>) -> Attributes {
    pool.run(pool.files.create_inode(directory, name.as_bytes(), new)).unwrap()
}

fn set(pool: &Pool, file: ObjectId, name: &[u8], value: &[u8]) -> Result<(), FsError> {
    pool.run(pool.files.set_xattr(file, name, Some(value)))
}

fn get(pool: &Pool, file: ObjectId, name: &[u8]) -> Result<Vec<u8>, FsError> {
    pool.run(pool.files.xattr(file, name))
}

fn used(pool: &Pool) -> u64 {
    pool.run(pool.files.statistics()).unwrap().files
}

/// An ACL with these permissions, in the layout of Linux. `named`: of user 7 and of the mask.
fn acl(owner: u8, group: u8, other: u8, named: Option<(u8, u8)>) -> Vec<u8> {
    let entry = |tag, permissions| AclEntry { tag, permissions };
    let mut entries = vec![
        entry(AclTag::Other, other),
        entry(AclTag::Owner, owner),
        entry(AclTag::OwningGroup, group),
    ];
    if let Some((user, mask)) = named {
        entries.extend([entry(AclTag::Mask, mask), entry(AclTag::User(7), user)]);
    }
    Acl::new(entries).unwrap().encode()
}

#[test]
fn large_attributes_get_an_object_and_leave_it() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    pool.run(pool.files.write(file, 0, &[9; 500], false)).unwrap();
    set(&pool, file, b"user.small", b"s").unwrap();
    assert_eq!(used(&pool), 17);
    let values = [900, 5_000, 65_536].map(|bytes| vec![bytes as u8 | 1; bytes]);
    for (at, value) in values.iter().enumerate() {
        set(&pool, file, format!("user.l{at}").as_bytes(), value).unwrap();
    }
    assert_eq!(used(&pool), 18, "one object for all large attributes");
    pool.check();
    pool.run(pool.files.sync(file)).unwrap();
    set(&pool, file, b"user.l1", b"now small").unwrap();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    let names = pool.run(pool.files.xattr_names(file)).unwrap();
    let expected: [&[u8]; 4] = [b"user.l0", b"user.l1", b"user.l2", b"user.small"];
    assert!(names.iter().map(|name| &**name).eq(expected));
    assert_eq!(get(&pool, file, b"user.l0").unwrap(), values[0]);
    assert_eq!(get(&pool, file, b"user.l1").unwrap(), b"now small");
    assert_eq!(get(&pool, file, b"user.l2").unwrap(), values[2]);
    assert_eq!(pool.run(pool.files.read(file, 0, 600)).unwrap(), [9; 500]);
    pool.check();
    // No client reaches the object by its number.
    let stale = (16..40).filter(|number| *number != file.0).map(ObjectId);
    for number in stale {
        assert!(matches!(pool.run(pool.files.attributes(number)), Err(FsError::Stale)));
    }
    for name in [&b"user.l0"[..], b"user.l2"] {
        pool.run(pool.files.set_xattr(file, name, None)).unwrap();
    }
    assert_eq!(used(&pool), 17);
    pool.check();
    set(&pool, file, b"user.again", &[1; 2_000]).unwrap();
    pool.check();
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    assert_eq!(used(&pool), 16);
    pool.check();
}

#[test]
fn attributes_are_limited() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    let too_large = set(&pool, file, b"user.a", &vec![0; 65_537]);
    assert!(matches!(too_large, Err(FsError::AttributeTooLarge)));
    let mut done = 0;
    while set(&pool, file, format!("user.{done}").as_bytes(), &vec![1; 60_000]).is_ok() {
        done += 1;
    }
    assert_eq!(done, 4, "256 KiB in all");
    assert!(matches!(set(&pool, file, b"user.x", &vec![1; 60_000]), Err(FsError::Full(_))));
    set(&pool, file, b"user.y", &[1; 10_000]).unwrap();
    // The filesystem limits the number of names, so that a client can read the list of all names.
    let other = create(&pool, ROOT, "g", &FILE).number;
    let name = |at: usize| format!("user.{at:0200}").into_bytes();
    let count = (0..400).take_while(|at| set(&pool, other, &name(*at), b"").is_ok()).count();
    assert!((300..320).contains(&count), "{count}");
    pool.check();
}

#[test]
fn names_and_modes_are_checked() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    for name in [&b"user."[..], b"", b"trusted.", b"user.a\0b"] {
        assert!(matches!(set(&pool, file, name, b""), Err(FsError::Invalid(_))), "{name:?}");
    }
    for name in [&b"other.x"[..], b"system.nfs4_acl", b"system.", b"nodot"] {
        assert!(matches!(set(&pool, file, name, b""), Err(FsError::NotSupported(_))), "{name:?}");
        assert!(matches!(get(&pool, file, name), Err(FsError::NotSupported(_))), "{name:?}");
    }
    for name in [&b"trusted.x"[..], b"security.capability", b"user.y"] {
        set(&pool, file, name, b"v").unwrap();
    }
    let fifo = NewInode { kind: NewKind::Symlink(b"f"), ..FILE };
    let link = create(&pool, ROOT, "l", &fifo).number;
    assert!(matches!(set(&pool, link, b"user.x", b""), Err(FsError::NotPermitted(_))));
    assert!(matches!(set(&pool, link, ACCESS, &acl(7, 7, 7, None)), Err(FsError::NotSupported(_))));
    set(&pool, link, b"security.x", &[5; 3000]).unwrap();
    let as_mode = |name: &'static [u8], mode| {
        pool.run(pool.files.set_xattr_as(file, name, Some(b"new"), mode))
    };
    assert!(matches!(as_mode(b"user.y", XattrMode::Create), Err(FsError::AttributeExists)));
    assert!(matches!(as_mode(b"user.z", XattrMode::Replace), Err(FsError::NoAttribute)));
    as_mode(b"user.y", XattrMode::Replace).unwrap();
    as_mode(b"user.z", XattrMode::Create).unwrap();
    pool.check();
}

#[test]
fn access_acl_and_permission_bits_follow_each_other() {
    let pool = Pool::new(DISK_BYTES);
    let file = create(&pool, ROOT, "f", &FILE).number;
    let bits = || pool.run(pool.files.attributes(file)).unwrap().permissions;
    assert_eq!(bits(), 0o644, "after the umask");
    set(&pool, file, ACCESS, &acl(7, 5, 1, None)).unwrap();
    assert_eq!(bits(), 0o751);
    assert!(matches!(get(&pool, file, ACCESS), Err(FsError::NoAttribute)), "only bits");
    set(&pool, file, ACCESS, &acl(7, 4, 0, Some((6, 6)))).unwrap();
    assert_eq!(bits(), 0o760, "the group bits are the mask");
    pool.check();
    let mode = SetAttributes { permissions: Some(0o4641), ..SetAttributes::default() };
    pool.run(pool.files.set_attributes(file, &mode, false)).unwrap();
    assert_eq!(get(&pool, file, ACCESS).unwrap(), acl(6, 4, 1, Some((6, 4))));
    // A write clears the set-user-id bit, and keeps the ACL.
    pool.run(pool.files.write(file, 0, b"x", true)).unwrap();
    assert_eq!(bits(), 0o641);
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    assert_eq!(get(&pool, file, ACCESS).unwrap(), acl(6, 4, 1, Some((6, 4))));
    let names = pool.run(pool.files.xattr_names(file)).unwrap();
    assert!(names.iter().map(|name| &**name).eq([ACCESS]));
    pool.check();
    for _ in 0..2 {
        pool.run(pool.files.set_xattr(file, ACCESS, None)).unwrap();
        assert!(pool.run(pool.files.access_acl(file)).unwrap().is_none());
    }
    assert!(matches!(set(&pool, file, ACCESS, b"hostile"), Err(FsError::Invalid(_))));
    let default = set(&pool, file, DEFAULT, &acl(7, 7, 7, None));
    assert!(matches!(default, Err(FsError::AccessDenied(_))));
    pool.check();
}

#[test]
fn new_entries_inherit_the_default_acl() {
    let pool = Pool::new(DISK_BYTES);
    let parent = create(&pool, ROOT, "d", &DIRECTORY).number;
    let default = acl(7, 5, 4, Some((6, 7)));
    set(&pool, parent, DEFAULT, &default).unwrap();
    // The umask has no effect, and the requested permission bits limit the ACL.
    let file = create(&pool, parent, "f", &NewInode { permissions: 0o662, ..FILE });
    assert_eq!(file.permissions, 0o660);
    assert_eq!(get(&pool, file.number, ACCESS).unwrap(), acl(6, 5, 0, Some((6, 6))));
    let directory = create(&pool, parent, "sub", &DIRECTORY);
    assert_eq!(directory.permissions, 0o774);
    assert_eq!(get(&pool, directory.number, DEFAULT).unwrap(), default);
    let link = NewInode { kind: NewKind::Symlink(b"f"), ..FILE };
    let link = create(&pool, parent, "l", &link).number;
    assert!(pool.run(pool.files.access_acl(link)).unwrap().is_none());
    set(&pool, parent, DEFAULT, &acl(6, 4, 0, None)).unwrap();
    let plain = create(&pool, parent, "g", &FILE);
    assert_eq!(plain.permissions, 0o640);
    assert!(pool.run(pool.files.access_acl(plain.number)).unwrap().is_none());
    pool.run(pool.files.sync(file.number)).unwrap();
    let pool = pool.crash();
    let replayed = get(&pool, file.number, ACCESS).unwrap();
    assert_eq!(replayed, acl(6, 5, 0, Some((6, 6))));
    pool.check();
}

#[test]
fn large_acls_move_the_other_parts_of_an_inode_out() {
    let pool = Pool::new(DISK_BYTES);
    let named = |count: u32| {
        let base = [AclTag::Owner, AclTag::OwningGroup, AclTag::Mask, AclTag::Other];
        let tags = base.into_iter().chain((0..count).map(AclTag::User));
        let entries = tags.map(|tag| AclEntry { tag, permissions: 7 }).collect();
        Acl::new(entries).unwrap().encode()
    };
    let parent = create(&pool, ROOT, "d", &DIRECTORY).number;
    for at in 0..20 {
        create(&pool, parent, &format!("{at:020}"), &FILE);
    }
    set(&pool, parent, b"user.x", &[7; 200]).unwrap();
    set(&pool, parent, ACCESS, &named(44)).unwrap();
    set(&pool, parent, DEFAULT, &named(44)).unwrap();
    assert!(matches!(set(&pool, parent, ACCESS, &named(45)), Err(FsError::Full(_))));
    assert_eq!(get(&pool, parent, b"user.x").unwrap(), [7; 200]);
    pool.check();
    let below = create(&pool, parent, "sub", &DIRECTORY).number;
    let file = create(&pool, below, "f", &FILE).number;
    pool.run(pool.files.write(file, 0, &[3; 600], false)).unwrap();
    assert_eq!(pool.run(pool.files.read(file, 0, 999)).unwrap(), [3; 600]);
    for at in 0..20 {
        pool.run(pool.files.lookup(parent, format!("{at:020}").as_bytes())).unwrap();
    }
    pool.check();
    pool.run(pool.files.sync(file)).unwrap();
    let pool = pool.crash();
    pool.check();
    assert_eq!(get(&pool, below, DEFAULT).unwrap(), named(44));
}

// Regression: a filesystem that was opened again in the txg in which a number became unused gave
// this number to another inode. The log has the new use and may lack the old inode's change, so the
// import failed after a crash.
#[test]
fn number_that_became_unused_rests_over_a_mount() {
    let pool = Pool::new(DISK_BYTES);
    let [f, g] = ["f", "g"].map(|name| create(&pool, ROOT, name, &FILE).number);
    set(&pool, g, b"user.large", &[1; 5_000]).unwrap();
    pool.check();
    pool.run(pool.files.set_xattr(g, b"user.large", None)).unwrap();
    let pool = pool.reopen();
    set(&pool, f, b"user.large", &[2; 5_000]).unwrap();
    pool.run(pool.files.sync(f)).unwrap();
    let pool = pool.crash();
    assert_eq!(get(&pool, f, b"user.large").unwrap(), [2; 5_000]);
    pool.check();
}

#[test]
fn generation_differs_over_a_mount() {
    let pool = Pool::new(DISK_BYTES);
    let old = create(&pool, ROOT, "f", &FILE);
    pool.run(pool.files.remove(ROOT, b"f", false)).unwrap();
    let pool = pool.reopen();
    let new = create(&pool, ROOT, "f", &FILE);
    assert_ne!((old.number, old.generation), (new.number, new.generation));
}
