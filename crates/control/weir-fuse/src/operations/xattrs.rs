//! Extended attributes.
//!
//! Invariant: an attribute that the kernel would have to obey, such as an access control list, is
//! refused instead of stored without effect.

use fuser::Errno;
use weir_base::ObjectId;
use weir_fs::FsError;

use crate::operations::served::{Done, Served, done};

/// Flags of setxattr(2).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// Prefixes of the names that programs may use (xattr(7)). The kernel checks the rights of the
/// program.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Capabilities of a program file. A write must remove them, which weir-fs does not do.
const CAPABILITY: &[u8] = b"security.capability";

fn check(name: &[u8]) -> Done<()> {
    let is_known = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_known && name != CAPABILITY { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

impl Served {
    pub(crate) async fn xattr(&self, number: ObjectId, name: &[u8]) -> Done<Vec<u8>> {
        if name == CAPABILITY {
            return Err(Errno::ENODATA);
        }
        check(name)?;
        done(self.files.xattr(number, name).await)
    }

    /// Returns the names of all attributes, each followed by NUL (listxattr(2)).
    pub(crate) async fn xattr_names(&self, number: ObjectId) -> Done<Vec<u8>> {
        let names = done(self.files.xattr_names(number).await)?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(crate) async fn set_xattr(
        &self,
        number: ObjectId,
        (name, value): (&[u8], &[u8]),
        flags: i32,
    ) -> Done<()> {
        check(name)?;
        if flags & (XATTR_CREATE | XATTR_REPLACE) != 0 {
            let exists = match self.files.xattr(number, name).await {
                Ok(_) => true,
                Err(FsError::NoAttribute) => false,
                Err(error) => return done(Err(error)),
            };
            if exists && flags & XATTR_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            if !exists && flags & XATTR_REPLACE != 0 {
                return Err(Errno::ENODATA);
            }
        }
        done(self.files.set_xattr(number, name, Some(value)).await)
    }

    pub(crate) async fn remove_xattr(&self, number: ObjectId, name: &[u8]) -> Done<()> {
        check(name)?;
        done(self.files.set_xattr(number, name, None).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_without_effect_are_stored() {
        for name in [&b"user.mime"[..], b"trusted.x", b"security.selinux"] {
            assert!(check(name).is_ok());
        }
        for name in [
            &b"system.posix_acl_access"[..],
            b"system.posix_acl_default",
            b"security.capability",
            b"mime",
            b"",
        ] {
            assert_eq!(check(name).map_err(Errno::code), Err(Errno::EOPNOTSUPP.code()));
        }
    }
}
