//! Rights of users on inodes, for all network servers.
//!
//! For a mount, the kernel decides (option `default_permissions`); network servers use this module.
//! The rules come from POSIX.1-2017 (4.5 File Access Permissions), acl(5) and capabilities(7).
//!
//! Invariants:
//! - the first matching class of users decides: owner, named users, groups, others;
//! - no rule reads or changes anything: all arguments are values.

use weir_format::files::{Acl, AclTag, FileType};

use crate::attributes::{Attributes, SetAttributes};
use crate::error::FsError;
use crate::filesystem::set_id::S_ISGID;

const S_ISVTX: u32 = 0o1000;
const NOT_OWNER: FsError = FsError::NotPermitted("the user does not own the inode");

/// Kinds of access to an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Reads the content, or lists a directory.
    pub read: bool,
    /// Writes the content, or changes the entries of a directory.
    pub write: bool,
    /// Executes a file, or looks up names in a directory.
    pub execute: bool,
}

impl Access {
    /// Reads.
    pub const READ: Self = Self { read: true, write: false, execute: false };
    /// Writes.
    pub const WRITE: Self = Self { read: false, write: true, execute: false };
    /// Executes, or looks up names.
    pub const EXECUTE: Self = Self { read: false, write: false, execute: true };
    /// Changes the entries of a directory.
    pub const CHANGE_ENTRIES: Self = Self { read: false, write: true, execute: true };

    fn bits(self) -> u32 {
        u32::from(self.read) << 2 | u32::from(self.write) << 1 | u32::from(self.execute)
    }
}

/// User on whose behalf a server acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// True for the superuser, with all capabilities.
    pub is_privileged: bool,
}

impl Credentials<'_> {
    /// User 0 with all capabilities.
    pub const SUPERUSER: Credentials<'static> =
        Credentials { uid: 0, gid: 0, groups: &[], is_privileged: true };

    /// True if the user is in a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    fn owns(&self, inode: &Attributes) -> bool {
        self.is_privileged || self.uid == inode.uid
    }

    /// True if changes of data and of owners by this user clear set-id bits.
    pub fn clears_set_id(&self) -> bool {
        !self.is_privileged
    }

    /// True if the user has this access. `acl`: the access ACL of the inode, if it has one.
    pub fn may(&self, inode: &Attributes, acl: Option<&Acl>, access: Access) -> bool {
        if self.is_privileged {
            // The superuser executes only files with an execute permission.
            let is_executable = inode.permissions & 0o111 != 0;
            return !access.execute || inode.file_type == FileType::Directory || is_executable;
        }
        let wanted = access.bits();
        let allows = |bits: u32| bits & wanted == wanted;
        if self.uid == inode.uid {
            return allows(inode.permissions >> 6);
        }
        if let Some(acl) = acl {
            return self.acl_allows(inode, acl, &allows);
        }
        let shift = if self.is_in(inode.gid) { 3 } else { 0 };
        allows(inode.permissions >> shift)
    }

    fn acl_allows(&self, inode: &Attributes, acl: &Acl, allows: &dyn Fn(u32) -> bool) -> bool {
        let mask = acl.permissions_of(AclTag::Mask).map_or(7, u32::from);
        if let Some(bits) = acl.permissions_of(AclTag::User(self.uid)) {
            return allows(u32::from(bits) & mask);
        }
        let of_group = |tag| match tag {
            AclTag::OwningGroup => self.is_in(inode.gid),
            AclTag::Group(gid) => self.is_in(gid),
            _ => false,
        };
        let groups = acl.entries().iter().filter(|entry| of_group(entry.tag));
        let mut bits = groups.map(|entry| u32::from(entry.permissions) & mask).peekable();
        if bits.peek().is_some() {
            // One group must grant all of the wanted access.
            return bits.any(allows);
        }
        allows(acl.permissions_of(AclTag::Other).map_or(0, u32::from))
    }

    /// As [`Self::may`], for the data of an open file of a stateless protocol: the owner may always
    /// read and write, because the permission bits may have changed after the open.
    pub fn may_use_open(&self, inode: &Attributes, acl: Option<&Acl>, access: Access) -> bool {
        let is_data = inode.file_type == FileType::Regular && !access.execute;
        is_data && self.owns(inode) || self.may(inode, acl, access)
    }

    /// Checks the removal or rename of an entry. `entry`: the inode that the entry names. The
    /// caller checks the access to the directory.
    ///
    /// # Errors
    /// `NotPermitted` in a sticky directory, unless the user owns the directory or the inode.
    pub fn may_remove(&self, directory: &Attributes, entry: &Attributes) -> Result<(), FsError> {
        let is_sticky = directory.permissions & S_ISVTX != 0;
        if !is_sticky || self.owns(directory) || self.owns(entry) {
            return Ok(());
        }
        Err(FsError::NotPermitted("the directory is sticky, and the entry belongs to another user"))
    }

    /// Checks a change of an ACL.
    ///
    /// # Errors
    /// `NotPermitted` unless the user owns the inode or is the superuser.
    pub fn may_set_acl(&self, inode: &Attributes) -> Result<(), FsError> {
        if self.owns(inode) { Ok(()) } else { Err(NOT_OWNER) }
    }

    /// Checks a change of attributes, and removes the bits that the user may not set.
    /// `sets_now`: the client asked for the current time, as touch(1) does.
    ///
    /// # Errors
    /// `NotPermitted` if only the owner or the superuser may make the change; `AccessDenied` if the
    /// user may not write.
    pub fn may_set(
        &self,
        inode: &Attributes,
        acl: Option<&Acl>,
        (changes, sets_now): (&SetAttributes, bool),
    ) -> Result<SetAttributes, FsError> {
        let mut allowed = *changes;
        if self.is_privileged {
            return Ok(allowed);
        }
        let changes_uid = changes.uid.is_some_and(|uid| uid != inode.uid);
        let changes_gid = changes.gid.is_some_and(|gid| gid != inode.gid && !self.is_in(gid));
        if changes_uid || changes_gid {
            return Err(FsError::NotPermitted("only the superuser may give an inode away"));
        }
        let needs_owner = changes.permissions.is_some()
            || changes.uid.is_some()
            || changes.gid.is_some()
            || changes.project.is_some()
            || changes.flags.is_some();
        let sets_times = changes.atime.is_some() || changes.mtime.is_some();
        if !self.owns(inode) {
            if needs_owner || sets_times && !sets_now {
                return Err(NOT_OWNER);
            }
            if (sets_times || changes.size.is_some()) && !self.may(inode, acl, Access::WRITE) {
                return Err(FsError::AccessDenied("the user may not write"));
            }
        } else if changes.size.is_some() && !self.may(inode, acl, Access::WRITE) {
            return Err(FsError::AccessDenied("the user may not write"));
        }
        let gid = changes.gid.unwrap_or(inode.gid);
        let keeps_sgid = self.is_in(gid) || inode.file_type == FileType::Directory;
        allowed.permissions =
            changes.permissions.map(|bits| if keeps_sgid { bits } else { bits & !S_ISGID });
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use weir_base::{ObjectId, Txg};
    use weir_format::files::{AclEntry, TimeStamp};

    use super::*;

    const OWNER: Credentials<'static> =
        Credentials { uid: 1, gid: 10, groups: &[], is_privileged: false };
    const MEMBER: Credentials<'static> = Credentials { uid: 2, groups: &[20, 30], ..OWNER };
    const OTHER: Credentials<'static> = Credentials { uid: 3, gid: 40, ..OWNER };
    const ROOT: Credentials<'static> = Credentials { uid: 0, is_privileged: true, ..OTHER };
    const NOTHING: SetAttributes = SetAttributes {
        permissions: None,
        uid: None,
        gid: None,
        project: None,
        flags: None,
        size: None,
        atime: None,
        mtime: None,
    };

    fn inode(permissions: u32) -> Attributes {
        let time = TimeStamp::default();
        Attributes {
            number: ObjectId(20),
            generation: Txg(1),
            file_type: FileType::Regular,
            permissions,
            nlink: 1,
            uid: 1,
            gid: 20,
            project: 0,
            flags: 0,
            size: 0,
            blocks: 0,
            device: 0,
            verifier: None,
            change: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    fn directory(permissions: u32) -> Attributes {
        Attributes { file_type: FileType::Directory, ..inode(permissions) }
    }

    /// Letters of the kinds of access that a user has.
    fn granted(user: &Credentials<'_>, inode: &Attributes, acl: Option<&Acl>) -> String {
        let kinds = [('r', Access::READ), ('w', Access::WRITE), ('x', Access::EXECUTE)];
        let has = |(letter, access)| if user.may(inode, acl, access) { letter } else { '-' };
        kinds.into_iter().map(has).collect()
    }

    #[test]
    fn permission_bits_by_class() {
        for (bits, owner, member, other, root) in [
            (0o754, "rwx", "r-x", "r--", "rwx"),
            (0o640, "rw-", "r--", "---", "rw-"),
            // The first matching class decides, also if another class has more rights.
            (0o077, "---", "rwx", "rwx", "rwx"),
            (0o707, "rwx", "---", "rwx", "rwx"),
            (0o001, "---", "---", "--x", "rwx"),
            (0o000, "---", "---", "---", "rw-"),
        ] {
            for (user, expected) in [(OWNER, owner), (MEMBER, member), (OTHER, other), (ROOT, root)]
            {
                assert_eq!(granted(&user, &inode(bits), None), expected, "{bits:o} {user:?}");
            }
        }
        assert_eq!(granted(&ROOT, &directory(0), None), "rwx");
        assert!(OWNER.may_use_open(&inode(0), None, Access::WRITE));
        assert!(!OWNER.may_use_open(&inode(0), None, Access::EXECUTE));
        assert!(!OTHER.may_use_open(&inode(0o600), None, Access::READ));
        assert!(!OWNER.may_use_open(&directory(0), None, Access::WRITE));
    }

    #[test]
    fn access_lists_by_entry() {
        let entry = |tag, permissions| AclEntry { tag, permissions };
        let acl = |mask, entries: &[AclEntry]| {
            let base = [
                entry(AclTag::Owner, 6),
                entry(AclTag::OwningGroup, 4),
                entry(AclTag::Mask, mask),
                entry(AclTag::Other, 1),
            ];
            Acl::new(base.iter().chain(entries).copied().collect()).unwrap()
        };
        let named = acl(7, &[entry(AclTag::User(3), 6), entry(AclTag::Group(30), 2)]);
        let masked = acl(4, &[entry(AclTag::User(3), 6), entry(AclTag::Group(30), 2)]);
        let of_member = acl(7, &[entry(AclTag::User(2), 0)]);
        let foreign = acl(7, &[entry(AclTag::Group(99), 7)]);
        for (name, acl, owner, member, other) in [
            ("named", &named, "rw-", "rw-", "rw-"),
            ("masked", &masked, "rw-", "r--", "r--"),
            ("a named user without rights", &of_member, "rw-", "---", "--x"),
            ("a foreign group", &foreign, "rw-", "r--", "--x"),
        ] {
            let inode = inode(0o600 | acl.mode() & 0o77);
            for (user, expected) in [(OWNER, owner), (MEMBER, member), (OTHER, other)] {
                assert_eq!(granted(&user, &inode, Some(acl)), expected, "{name} {user:?}");
            }
        }
        // No single group grants both kinds of access.
        let both = Access { read: true, write: true, execute: false };
        assert!(!MEMBER.may(&inode(0o670), Some(&named), both));
    }

    #[test]
    fn sticky_directories_protect_entries_of_others() {
        let of = |uid, permissions| Attributes { uid, ..directory(permissions) };
        for (user, directory, entry, is_allowed) in [
            (OTHER, of(9, 0o777), of(8, 0o644), true),
            (OTHER, of(9, 0o1777), of(8, 0o666), false),
            (OTHER, of(9, 0o1777), of(3, 0o644), true),
            (OTHER, of(3, 0o1777), of(8, 0o644), true),
            (ROOT, of(9, 0o1777), of(8, 0o644), true),
        ] {
            assert_eq!(user.may_remove(&directory, &entry).is_ok(), is_allowed, "{user:?}");
        }
    }

    #[test]
    fn changes_of_attributes_by_user() {
        let time = Some(TimeStamp::default());
        let mode = SetAttributes { permissions: Some(0o2755), ..NOTHING };
        let size = SetAttributes { size: Some(1), ..NOTHING };
        let times = SetAttributes { mtime: time, ..NOTHING };
        let uid = |uid| SetAttributes { uid: Some(uid), ..NOTHING };
        let gid = |gid| SetAttributes { gid: Some(gid), ..NOTHING };
        let (denied, refused, done) = ("denied", "refused", "done");
        for (what, changes, sets_now, bits, owner, other) in [
            ("mode", mode, false, 0o666, done, refused),
            ("size", size, false, 0o602, done, done),
            ("size without write permission", size, false, 0o400, denied, denied),
            ("times", times, false, 0o666, done, refused),
            ("current time", times, true, 0o002, done, done),
            ("current time without write permission", times, true, 0o000, done, denied),
            ("give away", uid(3), false, 0o666, refused, refused),
            ("same owner", uid(1), false, 0o666, done, refused),
            ("own group", gid(10), false, 0o666, done, refused),
            ("foreign group", gid(99), false, 0o666, refused, refused),
        ] {
            for (user, expected) in [(OWNER, owner), (OTHER, other), (ROOT, done)] {
                let allowed = user.may_set(&inode(bits), None, (&changes, sets_now));
                let class = match allowed {
                    Ok(_) => done,
                    Err(FsError::AccessDenied(_)) => denied,
                    Err(_) => refused,
                };
                assert_eq!(class, expected, "{what} {user:?}");
            }
        }
        // The owner is not in the group of the file.
        let bits = |user: Credentials<'_>, inode: &Attributes| {
            user.may_set(inode, None, (&mode, false)).unwrap().permissions
        };
        assert_eq!(bits(OWNER, &inode(0o644)), Some(0o755));
        assert_eq!(bits(Credentials { groups: &[20], ..OWNER }, &inode(0o644)), Some(0o2755));
        assert_eq!(bits(ROOT, &inode(0o644)), Some(0o2755));
        assert_eq!(bits(OWNER, &directory(0o755)), Some(0o2755));
    }
}
