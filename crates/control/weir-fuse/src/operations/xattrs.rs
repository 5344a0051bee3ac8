//! Extended attributes and access control lists.
//!
//! Invariant: the capabilities of a program file are refused. A write to the file must remove them,
//! which weir-fs does not do.

use fuser::Errno;
use weir_base::ObjectId;
use weir_fs::{ACCESS_ACL, S_ISGID, SetAttributes, XattrMode};

use crate::operations::places::{Place, changeable};
use crate::operations::served::{Done, Served, done};

/// Flags of setxattr(2).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// Capabilities of a program file. A write must remove them, which weir-fs does not do.
const CAPABILITY: &[u8] = b"security.capability";

/// True for the attribute with the capabilities of a program file, which no file has.
pub(crate) fn is_capability(name: &[u8]) -> bool {
    name == CAPABILITY
}

/// Returns the mode of setxattr(2) with these flags.
fn xattr_mode(flags: i32) -> Done<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Any),
        XATTR_CREATE => Ok(XattrMode::Create),
        XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

impl Served {
    /// Returns the value of an attribute. The caller has checked that the name is not
    /// [`is_capability`].
    pub(crate) async fn xattr(&self, number: ObjectId, name: &[u8]) -> Done<Vec<u8>> {
        match self.place(number)? {
            Place::Files(at) => done(at.files.xattr(at.number, name).await),
            Place::Virtual(..) => Err(Errno::ENODATA),
        }
    }

    /// Returns the names of all attributes, each followed by NUL (listxattr(2)).
    pub(crate) async fn xattr_names(&self, number: ObjectId) -> Done<Vec<u8>> {
        let names = match self.place(number)? {
            Place::Files(at) => done(at.files.xattr_names(at.number).await)?,
            Place::Virtual(..) => return Ok(Vec::new()),
        };
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(crate) async fn set_xattr(
        &self,
        number: ObjectId,
        (name, value): (&[u8], &[u8]),
        flags: i32,
        (uid, gid): (u32, u32),
    ) -> Done<()> {
        let number = changeable(number)?;
        if is_capability(name) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mode = xattr_mode(flags)?;
        if name == ACCESS_ACL && uid != 0 {
            self.clear_set_group_id(number, gid).await?;
        }
        done(self.files.set_xattr_as(number, name, Some(value), mode).await)
    }

    /// Clears the set-group-id bit before a user who does not belong to the group changes the ACL,
    /// as Linux does (posix_acl_update_mode). The request has only the first group of the user.
    async fn clear_set_group_id(&self, number: ObjectId, gid: u32) -> Done<()> {
        let attributes = self.attributes(number).await?;
        if attributes.gid == gid || attributes.permissions & S_ISGID == 0 {
            return Ok(());
        }
        let permissions = Some(attributes.permissions & !S_ISGID);
        let change = SetAttributes { permissions, ..SetAttributes::default() };
        done(self.files.set_attributes(number, &change, false).await).map(drop)
    }

    pub(crate) async fn remove_xattr(&self, number: ObjectId, name: &[u8]) -> Done<()> {
        done(self.files.set_xattr(changeable(number)?, name, None).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_flags_are_refused() {
        assert_eq!(xattr_mode(0).ok(), Some(XattrMode::Any));
        assert_eq!(xattr_mode(1).ok(), Some(XattrMode::Create));
        assert_eq!(xattr_mode(2).ok(), Some(XattrMode::Replace));
        for flags in [3, 4, -1] {
            assert_eq!(xattr_mode(flags).map_err(Errno::code), Err(Errno::EINVAL.code()));
        }
    }
}
