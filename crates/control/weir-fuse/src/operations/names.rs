//! Names: lookups, new inodes, links, renames and removals.
//!
//! Invariant: only weir-fs applies the umask, because a default ACL of the directory takes the
//! place of the umask.

use fuser::{Errno, RenameFlags};
use weir_base::ObjectId;
use weir_fs::{Attributes, NewInode, NewKind, RenameMode};

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
        done(self.files.lookup(directory, name).await)
    }

    pub(crate) async fn create(
        &self,
        directory: ObjectId,
        name: &[u8],
        kind: NewKind<'_>,
        creator: Creator,
    ) -> Done<Attributes> {
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
        done(self.files.link(number, directory, name).await)
    }

    pub(crate) async fn read_link(&self, number: ObjectId) -> Done<Vec<u8>> {
        done(self.files.read_link(number).await)
    }

    pub(crate) async fn remove(
        &self,
        directory: ObjectId,
        name: &[u8],
        is_directory: bool,
    ) -> Done<()> {
        done(self.files.remove(directory, name, is_directory).await)
    }

    pub(crate) async fn rename(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        flags: RenameFlags,
    ) -> Done<()> {
        done(self.files.rename(from, to, rename_mode(flags)?).await)
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
