//! Fuzzes the inode of a filesystem.
//!
//! `slot` fuzzes the fields of a slot that belong to the engine.
//!
//! Invariants: no panic; encoding an accepted inode reproduces its bytes.

use weir_base::{ObjectId, Txg};
use weir_format::files::{Area, FileType, Inode, InodeState, TimeStamp, Xattr};

use crate::valid::{padded, trimmed};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let body = padded(data);
    if let Ok(Some(inode)) = Inode::decode(&body) {
        assert_eq!(*inode.encode(), body);
    }
}

/// A file, a symbolic link and a directory, with items in their areas.
pub fn seeds() -> Vec<Vec<u8>> {
    let some = |bytes: &[u8]| Some(bytes.into());
    let xattr = |name: &[u8]| Xattr { name: name.into(), value: (*b"value").into() };
    let xattrs = vec![xattr(b"user.a"), xattr(b"user.b")];
    let areas = [
        Area { data: some(b"content"), xattrs, ..Area::default() },
        Area { target: some(b"../target"), ..Area::default() },
        Area {
            entries: some(b""),
            access_acl: some(b"acl"),
            default_acl: some(b"more"),
            ..Area::default()
        },
    ];
    let types = [FileType::Regular, FileType::SymbolicLink, FileType::Directory];
    let time = TimeStamp { seconds: -1, nanos: 999_999_999 };
    let inode = |(file_type, area)| Inode {
        state: InodeState::Named,
        created_txg: Txg(7),
        size: 7,
        blocks: 1,
        file_type,
        permissions: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        project: 0,
        flags: 0,
        change: 1 << 20,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: ObjectId(1),
        attributes: ObjectId(0),
        device_or_entries: 0,
        area,
    };
    types.into_iter().zip(areas).map(|of| trimmed(&*inode(of).encode())).collect()
}
