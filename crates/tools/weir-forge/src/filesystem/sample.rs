//! Sample filesystem: a tree with every kind of inode, the start of each forgery.
//!
//! Invariant: nothing is random, so each inode has the same number in every sample.

use std::sync::Arc;

use weir_base::{ObjectId, RecordSize};
use weir_dataset::Engine;
use weir_format::files::TimeStamp;
use weir_fs::{Filesystem, FsError, Layout, NameCase, NewInode, NewKind, Now, ROOT};

use crate::disks::noise;

/// Number of entries of the directory `many`: its tree has a root and several leaves.
pub(crate) const MANY: u64 = 120;
pub(crate) const LAYOUT: Layout = Layout {
    hash_key: 7,
    record_size: RecordSize::from_shift(2).expect("16 KiB"),
    case: NameCase::Sensitive,
};

/// Inodes of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// `small`: content in the inode.
    pub small: ObjectId,
    /// `large`: content in records; second name `a/same`.
    pub large: ObjectId,
    /// `a`, a directory.
    pub a: ObjectId,
    /// `a/b`, a directory.
    pub b: ObjectId,
    /// `many`: directory with a tree of blocks.
    pub many: ObjectId,
    /// `link`: symbolic link with its target in the inode.
    pub link: ObjectId,
    /// `long`: symbolic link with its target in a block.
    pub long: ObjectId,
    /// `rich`: file with an ACL, a small attribute and an object of attributes.
    pub rich: ObjectId,
    /// Removed file that a client had open.
    pub orphan: ObjectId,
}

pub(crate) fn clock() -> Now {
    Box::new(|| TimeStamp { seconds: 1_000_000, nanos: 5 })
}

/// Name of an entry of `many`.
pub(crate) fn many_name(number: u64) -> Vec<u8> {
    format!("{number:03}-{}", "x".repeat(140)).into_bytes()
}

pub(crate) async fn fill(files: &Filesystem) -> Result<Tree, FsError> {
    let new = |kind| NewInode { kind, permissions: 0o755, umask: 0, uid: 0, gid: 0 };
    let create = async |directory, name: &[u8], kind| {
        Ok::<_, FsError>(files.create_inode(directory, name, &new(kind)).await?.number)
    };
    let a = create(ROOT, b"a", NewKind::Directory).await?;
    let b = create(a, b"b", NewKind::Directory).await?;
    let many = create(ROOT, b"many", NewKind::Directory).await?;
    for number in 0..MANY {
        create(many, &many_name(number), NewKind::File).await?;
    }
    let small = create(ROOT, b"small", NewKind::File).await?;
    files.write(small, 0, b"small", false).await?;
    let large = create(ROOT, b"large", NewKind::File).await?;
    files.write(large, 0, &noise(3, 20), false).await?;
    files.link(large, a, b"same").await?;
    let link = create(ROOT, b"link", NewKind::Symlink(b"a/same")).await?;
    let long = create(ROOT, b"long", NewKind::Symlink(&[b'l'; 1000])).await?;
    let rich = create(ROOT, b"rich", NewKind::File).await?;
    files.set_xattr(rich, b"user.small", Some(b"value")).await?;
    files.set_xattr(rich, b"user.large", Some(&noise(4, 2))).await?;
    let orphan = create(b, b"removed", NewKind::File).await?;
    files.write(orphan, 0, &noise(5, 5), false).await?;
    files.open_inode(orphan).await?;
    files.remove(b, b"removed", false).await?;
    Ok(Tree { small, large, a, b, many, link, long, rich, orphan })
}

/// Opens a filesystem as a server does.
pub(crate) async fn open(engine: &Arc<Engine>, name: &str) -> Result<Filesystem, FsError> {
    Filesystem::open(engine, name, clock()).await
}

/// Opens a filesystem as `weir check` does.
pub(crate) fn open_unchanged(engine: &Arc<Engine>, name: &str) -> Result<Filesystem, FsError> {
    Filesystem::open_unchanged(engine, engine.volume(name)?, clock())
}
