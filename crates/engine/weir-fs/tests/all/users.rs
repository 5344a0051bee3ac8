//! Tests of operations on behalf of users of network clients.

use weir_base::{ObjectId, Txg};
use weir_format::files::{Acl, AclEntry, AclTag, FileType, TimeStamp};
use weir_fs::{
    Attributes, Credentials, FsError, InodeRef, NewInode, NewKind, ROOT, RenameMode, SetAttributes,
};

use crate::common::Pool;

const DISK_BYTES: usize = 128 << 20;

const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> =
    NewInode { kind: NewKind::Directory, permissions: 0o755, ..FILE };

const OWNER: Credentials<'static> =
    Credentials { uid: 1, gid: 2, groups: &[], is_privileged: false };
const OTHER: Credentials<'static> = Credentials { uid: 7, gid: 8, ..OWNER };
const SUPERUSER: Credentials<'static> =
    Credentials { uid: 0, gid: 0, groups: &[], is_privileged: true };

fn create(pool: &Pool, directory: ObjectId, name: &str, new: &NewInode<'_>) -> InodeRef {
    let created = pool.run(pool.files.create_inode(directory, name.as_bytes(), new));
    InodeRef::from(&created.unwrap())
}

fn attributes(pool: &Pool, inode: InodeRef) -> Attributes {
    pool.run(pool.files.attributes_of(inode)).unwrap()
}

fn root(pool: &Pool) -> InodeRef {
    InodeRef::from(&pool.run(pool.files.attributes(ROOT)).unwrap())
}

fn is_denied<T>(result: &Result<T, FsError>) -> bool {
    matches!(result, Err(FsError::AccessDenied(_)))
}

fn is_not_permitted<T>(result: &Result<T, FsError>) -> bool {
    matches!(result, Err(FsError::NotPermitted(_)))
}

fn permissions(bits: u32) -> SetAttributes {
    SetAttributes { permissions: Some(bits), ..SetAttributes::default() }
}

#[test]
fn user_without_rights_on_a_directory_changes_no_entry() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let directory = create(&pool, ROOT, "d", &DIRECTORY);
    let file = create(&pool, directory.number, "f", &FILE);
    let public = create(&pool, ROOT, "p", &NewInode { permissions: 0o777, ..DIRECTORY });
    let before = attributes(&pool, directory);
    assert!(is_denied(&pool.run(files.create_for(&OTHER, directory, (b"n", &FILE)))));
    assert!(is_denied(&pool.run(files.remove_by(&OTHER, (directory, b"f"), false))));
    assert!(is_denied(&pool.run(files.link_by(&OTHER, file, (directory, b"n")))));
    let moves = [((directory, b"f"), (public, b"f")), ((public, b"x"), (directory, b"f"))];
    for (from, to) in moves {
        assert!(is_denied(&pool.run(files.rename_by(&OTHER, (from.0, from.1), (to.0, to.1)))));
    }
    assert_eq!(attributes(&pool, directory), before);
    let created = pool.run(files.create_for(&OWNER, directory, (b"n", &FILE))).unwrap();
    assert_eq!(created.inode.uid, 1);
    pool.run(files.rename_by(&OWNER, (directory, b"f"), (public, b"f"))).unwrap();
    pool.check();
}

#[test]
fn results_have_the_attributes_of_a_directory_before_and_after_the_change() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let (one, two) = (create(&pool, ROOT, "1", &DIRECTORY), create(&pool, ROOT, "2", &DIRECTORY));
    let mut last = attributes(&pool, one);
    let created = pool.run(files.create_for(&OWNER, one, (b"f", &FILE))).unwrap();
    assert_eq!(created.directory.before, last);
    last = created.directory.after;
    assert!(last.change > created.directory.before.change && last.mtime == created.inode.btime);
    let inode = InodeRef::from(&created.inode);
    let linked = pool.run(files.link_by(&OWNER, inode, (one, b"g"))).unwrap();
    assert_eq!((linked.directory.before, linked.inode.nlink), (last, 2));
    let (from, to) = (linked.directory.after, attributes(&pool, two));
    let renamed = pool.run(files.rename_by(&OWNER, (one, b"g"), (two, b"g"))).unwrap();
    assert_eq!((renamed.from.before, renamed.to.before), (from, to));
    assert!(renamed.from.after.change > from.change && renamed.to.after.change > to.change);
    let renamed = pool.run(files.rename_by(&OWNER, (two, b"g"), (two, b"h"))).unwrap();
    assert_eq!(renamed.from, renamed.to);
    assert_eq!(renamed.inodes, Some((inode.number, None)));
    // Two names of one inode: the rename does nothing.
    pool.run(files.link_by(&OWNER, inode, (two, b"i"))).unwrap();
    let renamed = pool.run(files.rename_by(&OWNER, (two, b"h"), (two, b"i"))).unwrap();
    assert_eq!((renamed.inodes, renamed.from.before), (None, renamed.from.after));
    let removed = pool.run(files.remove_by(&OWNER, (two, b"i"), false)).unwrap();
    assert_eq!(removed.directory.before, renamed.from.after);
    assert_eq!(removed.inode, inode.number);
    assert_eq!(removed.directory.after, attributes(&pool, two));
    let other = pool.run(files.create_for(&OWNER, two, (b"o", &FILE))).unwrap().inode.number;
    let renamed = pool.run(files.rename_by(&OWNER, (two, b"h"), (two, b"o"))).unwrap();
    assert_eq!(renamed.inodes, Some((inode.number, Some(other))), "`o` was replaced");
    let written = pool.run(files.write_for(&OWNER, inode, (0, b"data"))).unwrap();
    assert_eq!((written.before.size, written.after.size), (0, 4));
    let nothing = pool.run(files.write_for(&OWNER, inode, (0, b""))).unwrap();
    assert_eq!((nothing.before, nothing.after), (written.after, written.after));
    pool.check();
}

#[test]
fn number_with_another_generation_is_stale_for_every_operation() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let file = create(&pool, ROOT, "f", &FILE);
    let directory = create(&pool, ROOT, "d", &DIRECTORY);
    let old = |inode: InodeRef| InodeRef { generation: Txg(inode.generation.0 + 1), ..inode };
    let (gone, lost) = (old(file), old(directory));
    let user = &SUPERUSER;
    let is_expected = |_| true;
    let changes = permissions(0o600);
    let results = [
        pool.run(files.attributes_of(gone)).map(drop),
        pool.run(files.allowed(user, gone)).map(drop),
        pool.run(files.read_for(user, gone, (0, 1))).map(drop),
        pool.run(files.write_for(user, gone, (0, b"x"))).map(drop),
        pool.run(files.set_attributes_for(user, gone, (&changes, false), &is_expected)).map(drop),
        pool.run(files.set_acl_for(user, gone, (false, None))).map(drop),
        pool.run(files.acls_of(gone)).map(drop),
        pool.run(files.link_by(user, gone, (directory, b"n"))).map(drop),
        pool.run(files.lookup_for(user, lost, b".")).map(drop),
        pool.run(files.list_for(user, lost, 0)).map(drop),
        pool.run(files.parent_of(lost)).map(drop),
        pool.run(files.create_for(user, lost, (b"n", &FILE))).map(drop),
        pool.run(files.remove_by(user, (lost, b"n"), false)).map(drop),
        pool.run(files.rename_by(user, (lost, b"n"), (lost, b"m"))).map(drop),
        pool.run(files.rename_by(user, (root(&pool), b"f"), (lost, b"m"))).map(drop),
    ];
    for (at, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(FsError::Stale)), "{at}: {result:?}");
    }
    // Regression: if an inode of another type had the number, the operations checked the type
    // first, and returned for example `NotDirectory`.
    let results = [
        pool.run(files.lookup_for(user, gone, b".")).map(drop),
        pool.run(files.list_for(user, gone, 0)).map(drop),
        pool.run(files.parent_of(gone)).map(drop),
        pool.run(files.read_link_of(gone)).map(drop),
        pool.run(files.create_for(user, gone, (b"n", &FILE))).map(drop),
        pool.run(files.remove_by(user, (gone, b"n"), false)).map(drop),
        pool.run(files.rename_by(user, (gone, b"n"), (root(&pool), b"m"))).map(drop),
        pool.run(files.rename_by(user, (root(&pool), b"f"), (gone, b"m"))).map(drop),
        pool.run(files.link_by(user, file, (gone, b"n"))).map(drop),
        pool.run(files.link_by(user, lost, (directory, b"n"))).map(drop),
        // Regression: the name was checked first, and the result was `Exists`.
        pool.run(files.link_by(user, gone, (root(&pool), b"d"))).map(drop),
        pool.run(files.read_for(user, lost, (0, 1))).map(drop),
        pool.run(files.write_for(user, lost, (0, b"x"))).map(drop),
    ];
    for (at, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(FsError::Stale)), "{at}: {result:?}");
    }
    pool.check();
}

#[test]
fn owner_writes_a_read_only_file_and_readers_may_load_a_program() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    // As `install -m 444` does: the client opened the file before it lost its write permission.
    let file = create(&pool, ROOT, "f", &NewInode { permissions: 0o444, ..FILE });
    pool.run(files.write_for(&OWNER, file, (0, b"data"))).unwrap();
    assert!(is_denied(&pool.run(files.write_for(&OTHER, file, (0, b"bad")))));
    let (read, found) = pool.run(files.read_for(&OTHER, file, (1, 9))).unwrap();
    assert_eq!((read.to_vec().as_slice(), found.size), (b"ata".as_slice(), 4));
    let program = create(&pool, ROOT, "p", &NewInode { permissions: 0o711, ..FILE });
    pool.run(files.read_for(&OTHER, program, (0, 1))).unwrap();
    let secret = create(&pool, ROOT, "s", &NewInode { permissions: 0o600, ..FILE });
    assert!(is_denied(&pool.run(files.read_for(&OTHER, secret, (0, 1)))));
    pool.run(files.read_for(&SUPERUSER, secret, (0, 1))).unwrap();
    assert!(matches!(
        pool.run(files.read_for(&SUPERUSER, root(&pool), (0, 1))),
        Err(FsError::IsDirectory)
    ));
    pool.check();
}

#[test]
fn write_by_another_user_clears_set_id_bits() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let new = NewInode { permissions: 0o6777, ..FILE };
    let (one, two) = (create(&pool, ROOT, "1", &new), create(&pool, ROOT, "2", &new));
    let written = pool.run(files.write_for(&OTHER, one, (0, b"x"))).unwrap();
    assert_eq!((written.before.permissions, written.after.permissions), (0o6777, 0o777));
    let written = pool.run(files.write_for(&SUPERUSER, two, (0, b"x"))).unwrap();
    assert_eq!(written.after.permissions, 0o6777);
    pool.check();
}

#[test]
fn sticky_directory_protects_the_entries_of_other_users() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let shared = create(&pool, ROOT, "tmp", &NewInode { permissions: 0o1777, uid: 0, ..DIRECTORY });
    create(&pool, shared.number, "f", &FILE);
    pool.run(files.create_for(&OTHER, shared, (b"o", &NewInode { uid: 7, ..FILE }))).unwrap();
    assert!(is_not_permitted(&pool.run(files.remove_by(&OTHER, (shared, b"f"), false))));
    assert!(is_not_permitted(&pool.run(files.rename_by(&OTHER, (shared, b"f"), (shared, b"g")))));
    assert!(is_not_permitted(&pool.run(files.rename_by(&OTHER, (shared, b"o"), (shared, b"f")))));
    pool.run(files.rename_by(&OTHER, (shared, b"o"), (shared, b"g"))).unwrap();
    pool.run(files.remove_by(&OWNER, (shared, b"f"), false)).unwrap();
    pool.check();
}

#[test]
fn directory_moves_to_another_directory_only_with_write_permission_on_it() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let open = NewInode { permissions: 0o777, ..DIRECTORY };
    let (one, two) = (create(&pool, ROOT, "1", &open), create(&pool, ROOT, "2", &open));
    create(&pool, one.number, "d", &DIRECTORY);
    assert!(is_denied(&pool.run(files.rename_by(&OTHER, (one, b"d"), (two, b"d")))));
    pool.run(files.rename_by(&OTHER, (one, b"d"), (one, b"e"))).unwrap();
    pool.run(files.rename_by(&OWNER, (one, b"e"), (two, b"d"))).unwrap();
    pool.check();
}

#[test]
fn guard_of_another_ctime_refuses_a_change_of_attributes() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let file = create(&pool, ROOT, "f", &FILE);
    let before = attributes(&pool, file);
    let changes = (&permissions(0o600), false);
    let is_other = |ctime: TimeStamp| ctime != before.ctime;
    let refused = pool.run(files.set_attributes_for(&OWNER, file, changes, &is_other));
    assert!(matches!(refused, Err(FsError::Changed)));
    assert_eq!(attributes(&pool, file), before);
    let is_same = |ctime: TimeStamp| ctime == before.ctime;
    let set = pool.run(files.set_attributes_for(&OWNER, file, changes, &is_same)).unwrap();
    assert_eq!((set.before, set.after.permissions), (before, 0o600));
    let denied = pool.run(files.set_attributes_for(&OTHER, file, changes, &|_| true));
    assert!(is_not_permitted(&denied));
    pool.check();
}

#[test]
fn only_the_superuser_creates_device_files() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let open = create(&pool, ROOT, "d", &NewInode { permissions: 0o777, ..DIRECTORY });
    let special = |kind| NewInode { kind: NewKind::Special(kind, 0x0103), ..FILE };
    for kind in [FileType::BlockDevice, FileType::CharDevice] {
        let new = special(kind);
        assert!(is_not_permitted(&pool.run(files.create_for(&OTHER, open, (b"n", &new)))));
    }
    pool.run(files.create_for(&OTHER, open, (b"p", &special(FileType::Fifo)))).unwrap();
    let device = special(FileType::CharDevice);
    let created = pool.run(files.create_for(&SUPERUSER, open, (b"n", &device))).unwrap();
    assert_eq!(created.inode.device, 0x0103);
    pool.check();
}

#[test]
fn acl_grants_a_named_user_access_and_writes() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let file = create(&pool, ROOT, "f", &NewInode { permissions: 0o640, ..FILE });
    let entry = |tag, permissions| AclEntry { tag, permissions };
    let entries = vec![
        entry(AclTag::Owner, 6),
        entry(AclTag::User(7), 6),
        entry(AclTag::OwningGroup, 4),
        entry(AclTag::Mask, 6),
        entry(AclTag::Other, 0),
    ];
    let acl = Acl::new(entries).unwrap().encode();
    assert!(is_not_permitted(&pool.run(files.set_acl_for(&OTHER, file, (false, Some(&acl))))));
    let (_, allowed) = pool.run(files.allowed(&OTHER, file)).unwrap();
    assert_eq!(allowed, weir_fs::Allowed::default());
    pool.run(files.set_acl_for(&OWNER, file, (false, Some(&acl)))).unwrap();
    let (_, allowed) = pool.run(files.allowed(&OTHER, file)).unwrap();
    assert!(allowed.reads && allowed.modifies && allowed.extends && !allowed.executes);
    pool.run(files.write_for(&OTHER, file, (0, b"x"))).unwrap();
    let (_, acls) = pool.run(files.acls_of(file)).unwrap();
    assert_eq!(acls.map(|acl| acl.map(|acl| acl.entries().len())), [Some(5), None]);
    pool.check();
}

#[test]
fn acl_of_an_owner_outside_of_the_group_clears_the_set_group_id_bit() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let entries = [(AclTag::Owner, 7), (AclTag::OwningGroup, 5), (AclTag::Other, 5)];
    let entries = entries.map(|(tag, permissions)| AclEntry { tag, permissions });
    let acl = Acl::new(entries.to_vec()).unwrap().encode();
    for (gid, expected) in [(2, 0o2755), (9, 0o755)] {
        let new = NewInode { permissions: 0o2755, gid, ..FILE };
        let file = create(&pool, ROOT, &format!("f{gid}"), &new);
        let set = pool.run(files.set_acl_for(&OWNER, file, (false, Some(&acl)))).unwrap();
        assert_eq!(set.permissions, expected);
    }
    pool.check();
}

#[test]
fn lookup_needs_the_right_to_search_and_list_the_right_to_read() {
    let pool = Pool::new(DISK_BYTES);
    let files = &pool.files;
    let directory = create(&pool, ROOT, "d", &NewInode { permissions: 0o711, ..DIRECTORY });
    let file = create(&pool, directory.number, "f", &FILE);
    let looked = pool.run(files.lookup_for(&OTHER, directory, b"f")).unwrap();
    assert_eq!(InodeRef::from(&looked.found), file);
    assert_eq!(InodeRef::from(&looked.directory), directory);
    let up = pool.run(files.lookup_for(&OTHER, directory, b"..")).unwrap();
    assert_eq!(up.found.number, ROOT);
    assert_eq!(pool.run(files.parent_of(directory)).unwrap(), ROOT);
    assert!(is_denied(&pool.run(files.list_for(&OTHER, directory, 0))));
    let listed = pool.run(files.list_for(&OWNER, directory, 0)).unwrap();
    assert_eq!(listed.entries.len(), 1);
    let set = pool.run(files.set_attributes_for(
        &OWNER,
        directory,
        (&permissions(0o744), false),
        &|_| true,
    ));
    set.unwrap();
    assert!(is_denied(&pool.run(files.lookup_for(&OTHER, directory, b"f"))));
    assert_eq!(pool.run(files.list_for(&OTHER, directory, 0)).unwrap().entries.len(), 1);
    assert!(matches!(pool.run(files.lookup_for(&OWNER, file, b"x")), Err(FsError::NotDirectory)));
    let renamed = pool.files.rename((directory.number, b"f"), (ROOT, b"f"), RenameMode::Replace);
    pool.run(renamed).unwrap();
    assert!(matches!(pool.run(files.lookup_for(&OWNER, directory, b"f")), Err(FsError::NotFound)));
    pool.check();
}

#[test]
fn repeated_exclusive_create_finds_the_file_until_its_attributes_change() {
    let pool = Pool::new(DISK_BYTES);
    let root = root(&pool);
    let user = &SUPERUSER;
    // The verifier 0 is a verifier as any other.
    for (name, verifier) in [(b"a", 0), (b"b", u64::MAX)] {
        let create = || pool.files.create_exclusive(user, root, (name, verifier));
        let (made, directory) = pool.run(create()).unwrap();
        assert_eq!((made.permissions, made.verifier), (0o600, Some(verifier)));
        assert!(directory.is_some());
        // A read and a write do not remove the verifier.
        let inode = InodeRef::from(&made);
        pool.run(pool.files.write_for(user, inode, (0, b"x"))).unwrap();
        pool.run(pool.files.read_for(user, inode, (0, 1))).unwrap();
        let (found, directory) = pool.run(create()).unwrap();
        assert_eq!((InodeRef::from(&found), found.size, directory), (inode, 1, None));
        let other = pool.files.create_exclusive(user, root, (name, verifier ^ 1));
        assert!(matches!(pool.run(other), Err(FsError::Exists)));
    }
    pool.run(pool.files.sync_all()).unwrap();
    let pool = pool.crash();
    let create = |name| pool.run(pool.files.create_exclusive(user, root, (name, 0)));
    let (found, _) = create(b"a").unwrap();
    let changes = (&permissions(0o644), false);
    let set = pool.files.set_attributes_for(user, InodeRef::from(&found), changes, &|_| true);
    assert_eq!(pool.run(set).unwrap().after.verifier, None);
    assert!(matches!(create(b"a"), Err(FsError::Exists)));
    // A file that another call created has no verifier.
    self::create(&pool, ROOT, "c", &FILE);
    assert!(matches!(create(b"c"), Err(FsError::Exists)));
    pool.check();
}
