//! Operations of a client on the contents and attributes of files.
//!
//! `client` has the operations on names.
//!
//! Invariant: the content of a file changes as the attributes that an operation returns name it:
//! the number may belong to a new file meanwhile.

use weir_base::ObjectId;
use weir_format::files::{Acl, AclEntry, AclTag};
use weir_fs::{Attributes, Filesystem, FsError, SetAttributes};

use super::client::Client;
use super::content::Content;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Size of a large write, which is also the maximum of the filesystem, in bytes.
const LARGE_BYTES: u64 = 1 << 20;
/// Size of a record, in bytes.
const RECORD_BYTES: u64 = 16 << 10;
/// Size from which a copy makes references, in bytes.
const REFERENCED_BYTES: u64 = 80_000;
/// Maximum offset of a large write, in units of `LARGE_BYTES`.
const LARGE_OFFSETS: u64 = 6;

impl Client {
    fn changed(&self, found: &Attributes, change: impl FnOnce(&mut Content)) {
        self.book(|book| book.changed(found, change));
    }

    /// Records a change of the file that has this number.
    fn changed_number(&self, number: ObjectId, change: impl FnOnce(&mut Content)) {
        self.book(|book| match book.newest_file(number.0) {
            Some(inode) => book.changed_content(inode, change),
            None => book.fail(format!("a client changed the unknown inode {number:?}")),
        });
    }

    pub(super) async fn write(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        self.write_to(files, ObjectId(inode.0)).await
    }

    pub(super) async fn write_to(
        &mut self,
        files: &Filesystem,
        number: ObjectId,
    ) -> Result<(), FsError> {
        let offset = [0, 700, 3_000, 4_096, 20_000][self.rng.index(5)];
        let len = [5, 600, 4_096, 30_000][self.rng.index(4)];
        self.write_range(files, number, (offset, len)).await
    }

    /// Writes several large parts of a file, and often syncs it, so that the sync needs several
    /// batches of the log.
    pub(super) async fn write_large(&mut self, files: &Filesystem) -> Result<(), FsError> {
        // One file at a time: the checks read all files.
        let Some(inode) = self.book(|book| book.oldest_file()) else { return Ok(()) };
        for _ in 0..=self.rng.below(LARGE_OFFSETS) {
            let offset = self.rng.below(LARGE_OFFSETS) * LARGE_BYTES + self.rng.below(2) * 1_000;
            self.write_range(files, ObjectId(inode.0), (offset, LARGE_BYTES)).await?;
        }
        if self.rng.below(3) == 0 { Ok(()) } else { self.sync_file(files, inode).await }
    }

    async fn write_range(
        &mut self,
        files: &Filesystem,
        number: ObjectId,
        (offset, len): (u64, u64),
    ) -> Result<(), FsError> {
        let byte = if self.rng.below(8) == 0 { 0 } else { self.rng.below(250) as u8 };
        let data = vec![byte; len as usize];
        let found = files.write(number, offset, &data, false).await?;
        self.changed(&found, |content| content.data.fill(offset..offset + len, byte));
        Ok(())
    }

    /// Copies a range of a file, often as references.
    pub(super) async fn copy(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (Some(source), Some(target)) = (self.file(), self.file()) else { return Ok(()) };
        let (source, target) = (ObjectId(source.0), ObjectId(target.0));
        if self.rng.coin() {
            // Shorter files are not copied by reference.
            self.write_range(files, source, (0, REFERENCED_BYTES)).await?;
        }
        let from = [0, 0, RECORD_BYTES, 700][self.rng.index(4)];
        let to = [0, RECORD_BYTES, 3 * RECORD_BYTES, 100][self.rng.index(4)];
        let len = [5_000, 70_000, 1 << 20][self.rng.index(3)];
        let copied = files.copy_range((source, from), (target, to), len, false).await?;
        if copied == 0 {
            return Ok(());
        }
        // No other client has changed the source since the end of the copy.
        let data = self.book(|book| {
            let inode = book.newest_file(source.0)?;
            book.content(&inode).map(|content| content.data.clone())
        });
        if let Some(data) = data {
            self.changed_number(target, |content| {
                content.data.paste(to, &data, from..from + copied);
            });
        }
        Ok(())
    }

    pub(super) async fn truncate(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let size = [0, 100, 5_000, 40_000][self.rng.index(4)];
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let found = files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(&found, |content| content.data.resize(size));
        Ok(())
    }

    pub(super) async fn punch(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let offset = [0, 100, 4_096, 16_384, 20_000][self.rng.index(5)];
        let len = [1, 600, 4_096, 16_384, 50_000, 2 << 20][self.rng.index(6)];
        let found = files.punch(ObjectId(inode.0), offset, len, false).await?;
        self.changed(&found, |content| content.data.punch(offset..offset + len));
        Ok(())
    }

    pub(super) async fn set_acl(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let tags = [AclTag::Owner, AclTag::OwningGroup, AclTag::Other, AclTag::Mask];
        let tags =
            tags.into_iter().chain((0..self.rng.below(44)).map(|id| AclTag::User(id as u32)));
        let entry = |tag| AclEntry { tag, permissions: self.rng.below(8) as u8 };
        let acl = Acl::new(tags.map(entry).collect()).expect("a complete list");
        let (bytes, mode) = (acl.encode(), acl.mode());
        files.set_xattr(ObjectId(inode.0), ACCESS_ACL, Some(&bytes)).await?;
        self.changed_number(ObjectId(inode.0), |content| {
            content.permissions = content.permissions & !0o777 | mode;
            content.xattrs.insert(ACCESS_ACL.to_vec(), bytes);
        });
        Ok(())
    }

    pub(super) async fn set_permissions(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let mode = self.rng.below(0o1000) as u32;
        let changes = SetAttributes { permissions: Some(mode), ..SetAttributes::default() };
        let found = files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(&found, |content| {
            content.permissions = mode;
            let acl = content.xattrs.get_mut(ACCESS_ACL);
            let decoded = acl.as_deref().and_then(|acl| Acl::decode(acl).ok().flatten());
            if let (Some(acl), Some(mut decoded)) = (acl, decoded) {
                decoded.set_mode(mode);
                *acl = decoded.encode();
            }
        });
        Ok(())
    }

    /// The check compares the usage of the owners with the inodes.
    pub(super) async fn set_owner(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let uid = self.rng.below(3) as u32;
        let changes = SetAttributes { uid: Some(uid), ..SetAttributes::default() };
        let found = files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(&found, |content| content.uid = uid);
        Ok(())
    }

    pub(super) async fn set_xattr(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let name = format!("user.{}", self.rng.below(4)).into_bytes();
        let length = [0, 10, 500, 500, 700, 700, 700, 5_000, 5_000, 65_536];
        let length = length[self.rng.index(10)];
        let value = (self.rng.below(4) > 0).then(|| vec![self.rng.below(250) as u8; length]);
        files.set_xattr(ObjectId(inode.0), &name, value.as_deref()).await?;
        self.changed_number(ObjectId(inode.0), |content| {
            match value {
                Some(value) => content.xattrs.insert(name, value),
                None => content.xattrs.remove(&name),
            };
        });
        Ok(())
    }
}
