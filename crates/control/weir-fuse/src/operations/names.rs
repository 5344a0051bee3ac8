//! Names: lookups, new inodes, links, renames and removals.
//!
//! Invariant: only weir-fs applies the umask, because a default ACL of the directory takes the
//! place of the umask.

use fuser::{Errno, RenameFlags};
use weir_base::ObjectId;
use weir_fs::{Attributes, FsError, NewInode, NewKind, RenameMode};

use crate::operations::places::{Place, changeable, is_own, is_snapshot_root};
use crate::operations::served::{Done, Served, done};

/// Owner and permissions of a new inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creator {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

impl Served {
    pub(crate) async fn lookup(&self, directory: ObjectId, name: &[u8]) -> Done<Attributes> {
        let at = match self.place(directory)? {
            Place::Files(at) => at,
            Place::Virtual(kind, below) => {
                return self.lookup_snapshot((kind, below), name).await;
            }
        };
        if name == b".." && is_snapshot_root(directory) {
            return self.snapshots_attributes();
        }
        match at.files.lookup(at.number, name).await {
            Err(FsError::NotFound) => self.weir(directory, name).ok_or(Errno::ENOENT),
            found => Ok(at.shown(done(found)?)),
        }
    }

    /// Refuses to remove or rename `.weir`, which is no entry of the root.
    fn refuse_weir<T>(
        &self,
        (directory, name): (ObjectId, &[u8]),
        result: Result<T, FsError>,
    ) -> Done<T> {
        match result {
            Err(FsError::NotFound) if self.weir(directory, name).is_some() => Err(Errno::EROFS),
            result => done(result),
        }
    }

    pub(crate) async fn create(
        &self,
        directory: ObjectId,
        name: &[u8],
        kind: NewKind<'_>,
        creator: Creator,
    ) -> Done<Attributes> {
        let directory = changeable(directory)?;
        let Creator { uid, gid, mode: permissions, umask } = creator;
        let new = NewInode { kind, permissions, umask, uid, gid };
        done(self.files.create_inode(directory, name, &new).await)
    }

    pub(crate) async fn link(
        &self,
        number: ObjectId,
        directory: ObjectId,
        name: &[u8],
    ) -> Done<Attributes> {
        let directory = changeable(directory)?;
        if !is_own(number) {
            return Err(Errno::EXDEV);
        }
        done(self.files.link(number, directory, name).await)
    }

    pub(crate) async fn read_link(&self, number: ObjectId) -> Done<Vec<u8>> {
        let at = self.in_files(number)?;
        done(at.files.read_link(at.number).await)
    }

    pub(crate) async fn remove(
        &self,
        directory: ObjectId,
        name: &[u8],
        is_directory: bool,
    ) -> Done<()> {
        let removed = self.files.remove(changeable(directory)?, name, is_directory).await;
        self.refuse_weir((directory, name), removed)
    }

    pub(crate) async fn rename(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        flags: RenameFlags,
    ) -> Done<()> {
        for directory in [from.0, to.0] {
            changeable(directory)?;
        }
        let renamed = self.files.rename(from, to, rename_mode(flags)?).await;
        self.refuse_weir(from, renamed)
    }
}

/// Returns the mode of a rename with these flags (renameat2(2)).
fn rename_mode(flags: RenameFlags) -> Done<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::Keep)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_rename_flags_are_refused() {
        let mode = |bits| rename_mode(RenameFlags::from_bits_retain(bits)).map_err(Errno::code);
        assert_eq!(mode(0), Ok(RenameMode::Replace));
        assert_eq!(mode(1), Ok(RenameMode::Keep));
        assert_eq!(mode(2), Ok(RenameMode::Exchange));
        for bits in [3, 4, 5, 1 << 31] {
            assert_eq!(mode(bits), Err(Errno::EINVAL.code()), "{bits}");
        }
    }
}
