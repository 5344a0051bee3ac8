//! Set-user-id and set-group-id bits.
//!
//! Invariant: a change of the data or the owner of a file by a user without the capability
//! CAP_FSETID clears the set-id bits in the same change.

use weir_format::files::{AttributeChanges, FileType, Inode};

/// Set-user-id bit (POSIX).
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit. New entries of a directory with this bit get the directory's group.
pub const S_ISGID: u32 = 0o2000;
/// Execute permission of the group.
const S_IXGRP: u32 = 0o010;

/// Permission bits after a change by a user without CAP_FSETID. Without the execute permission of
/// the group, the set-group-id bit does not mean "run as this group".
fn without_set_id(permissions: u32) -> u32 {
    let group = if permissions & S_IXGRP == 0 { 0 } else { S_ISGID };
    permissions & !(S_ISUID | group)
}

/// Permission bits of an inode after a change of its data.
pub(crate) fn after_write(inode: &Inode, clears_set_id: bool) -> u32 {
    let bits = inode.permissions;
    if clears_set_id { without_set_id(bits) } else { bits }
}

/// Returns the changes, with the permission bits that result from the changes.
pub(crate) fn with_permissions(
    inode: &Inode,
    changes: &AttributeChanges,
    clears_set_id: bool,
) -> AttributeChanges {
    let asked = changes.permissions.map(|bits| bits & Inode::PERMISSIONS);
    let changes = AttributeChanges { permissions: asked, ..*changes };
    let changes_owner = changes.uid.is_some() || changes.gid.is_some();
    let clears = clears_set_id && inode.file_type != FileType::Directory;
    let permissions = match asked {
        // A new owner never gets a set-id file that the old owner made.
        Some(bits) if clears && changes_owner => Some(without_set_id(bits)),
        None if clears && (changes_owner || changes.size.is_some()) => {
            Some(without_set_id(inode.permissions)).filter(|bits| *bits != inode.permissions)
        }
        asked => asked,
    };
    AttributeChanges { permissions, ..changes }
}

/// Group and permission bits of a new inode in a directory. Only root and members of the group can
/// create a program that runs as the group of the directory.
pub(crate) fn of_new(
    directory: &Inode,
    file_type: FileType,
    (uid, gid, permissions): (u32, u32, u32),
) -> (u32, u32) {
    if directory.permissions & S_ISGID == 0 {
        return (gid, permissions);
    }
    let permissions = match file_type {
        FileType::Directory => permissions | S_ISGID,
        _ if uid == 0 || gid == directory.gid || permissions & S_IXGRP == 0 => permissions,
        _ => permissions & !S_ISGID,
    };
    (directory.gid, permissions)
}
