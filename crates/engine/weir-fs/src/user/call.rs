//! Checks of a call, which an operation makes under the locks of its inodes.
//!
//! Invariants:
//! - an operation makes all checks before it changes anything;
//! - a call of a mount makes no checks: the kernel has made them.

use std::cell::RefCell;

use weir_base::ObjectId;
use weir_format::files::{Acl, FileType, Inode};

use crate::attributes::Attributes;
use crate::draft::xattrs::stored_acl;
use crate::error::FsError;
use crate::rights::{Access, Credentials};
use crate::user::types::{BeforeAfter, InodeRef};

const DENIED: FsError = FsError::AccessDenied("the user has no permission");

/// A call of a client. The operation notes the attributes of the inodes that the client names.
pub(crate) struct Call<'a> {
    checks: Option<Checks<'a>>,
}

struct Checks<'a> {
    user: &'a Credentials<'a>,
    /// Inodes that the client names.
    named: &'a [InodeRef],
    noted: RefCell<Vec<Noted>>,
}

struct Noted {
    before: Attributes,
    after: Option<Attributes>,
}

impl<'a> Call<'a> {
    /// A call without checks, of the kernel or of this crate.
    pub(crate) const TRUSTED: Call<'static> = Call { checks: None };

    pub(crate) const fn new(user: &'a Credentials<'a>, named: &'a [InodeRef]) -> Self {
        Self { checks: Some(Checks { user, named, noted: RefCell::new(Vec::new()) }) }
    }

    /// Checks the rights of the user on an inode and the generation of the inode. Notes its
    /// attributes.
    ///
    /// # Errors
    /// `Stale` if the number belongs to a newer inode; `AccessDenied`.
    pub(crate) fn check(
        &self,
        number: ObjectId,
        inode: &Inode,
        access: Access,
    ) -> Result<(), FsError> {
        self.check_rights(number, inode, |user, attributes, acl| user.may(attributes, acl, access))
    }

    /// As [`Self::check`], for a read or write of data ([`Credentials::may_use_open`]). A user who
    /// may execute a file may read it, because the client must load the program (RFC 1813 4.4).
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn check_data(
        &self,
        number: ObjectId,
        inode: &Inode,
        access: Access,
    ) -> Result<(), FsError> {
        self.check_rights(number, inode, |user, attributes, acl| {
            let may = |access| user.may_use_open(attributes, acl, access);
            may(access) || access == Access::READ && may(Access::EXECUTE)
        })
    }

    /// As [`Self::check`], with other rights: `may` gets the user, the attributes and the ACL.
    fn check_rights(
        &self,
        number: ObjectId,
        inode: &Inode,
        may: impl FnOnce(&Credentials<'a>, &Attributes, Option<&Acl>) -> bool,
    ) -> Result<(), FsError> {
        self.check_as(number, inode, |user, attributes| {
            let acl = stored_acl(number, inode.area.access_acl.as_deref())?;
            if may(user, attributes, acl.as_ref()) { Ok(()) } else { Err(DENIED) }
        })
    }

    /// As [`Self::check`], with other errors: `rights` gets the user and the attributes.
    ///
    /// # Errors
    /// `Stale`, or the error of `rights`.
    pub(crate) fn check_as(
        &self,
        number: ObjectId,
        inode: &Inode,
        rights: impl FnOnce(&Credentials<'a>, &Attributes) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        self.check_generation(number, inode)?;
        let Some(checks) = &self.checks else { return Ok(()) };
        let attributes = Attributes::of(number, inode);
        checks.noted.borrow_mut().push(Noted { before: attributes, after: None });
        rights(checks.user, &attributes)
    }

    /// Checks the generation of an inode. An operation does this before it checks the type, because
    /// another type is no error of a client whose inode is gone.
    ///
    /// # Errors
    /// `Stale` if the number belongs to a newer inode.
    pub(crate) fn check_generation(&self, number: ObjectId, inode: &Inode) -> Result<(), FsError> {
        let Some(checks) = &self.checks else { return Ok(()) };
        let mut named = checks.named.iter().filter(|named| named.number == number);
        if named.all(|named| named.generation == inode.created_txg) {
            Ok(())
        } else {
            Err(FsError::Stale)
        }
    }

    /// Checks the removal of an entry of a directory, after [`Self::check`] of the directory.
    ///
    /// # Errors
    /// `NotPermitted` in a sticky directory.
    pub(crate) fn check_removal(
        &self,
        directory: (ObjectId, &Inode),
        entry: (ObjectId, &Inode),
    ) -> Result<(), FsError> {
        let Some(checks) = &self.checks else { return Ok(()) };
        let of = |(number, inode): (ObjectId, &Inode)| Attributes::of(number, inode);
        checks.user.may_remove(&of(directory), &of(entry))
    }

    /// Checks the move of an inode to another directory: a directory changes its entry `..`.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn check_move(&self, number: ObjectId, inode: &Inode) -> Result<(), FsError> {
        let Some(checks) = &self.checks else { return Ok(()) };
        if inode.file_type != FileType::Directory {
            return Ok(());
        }
        let acl = stored_acl(number, inode.area.access_acl.as_deref())?;
        let attributes = Attributes::of(number, inode);
        let may = checks.user.may(&attributes, acl.as_ref(), Access::WRITE);
        if may { Ok(()) } else { Err(DENIED) }
    }

    /// Notes the attributes of a checked inode after the change.
    pub(crate) fn note_changed(&self, number: ObjectId, inode: &Inode) {
        let Some(checks) = &self.checks else { return };
        let mut noted = checks.noted.borrow_mut();
        if let Some(noted) = noted.iter_mut().find(|noted| noted.before.number == number) {
            noted.after = Some(Attributes::of(number, inode));
        }
    }

    /// Attributes of an inode that the operation checked. The inode is unchanged if the operation
    /// had nothing to do.
    pub(crate) fn changed(&self, number: ObjectId) -> BeforeAfter {
        let checks = self.checks.as_ref().expect("only calls with checks note attributes");
        let noted = checks.noted.borrow();
        let found = noted.iter().find(|noted| noted.before.number == number);
        let Noted { before, after } = *found.expect("the operation checked the inode");
        BeforeAfter { before, after: after.unwrap_or(before) }
    }
}
