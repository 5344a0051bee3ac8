//! NFSACL version 3: POSIX ACLs of NFSv3 clients.
//!
//! No RFC describes the protocol; Solaris defined it, and Linux implements it for POSIX ACLs.
//!
//! ```text
//! secattr: u32 mask, u32 count, acl<1024>, u32 count, default acl<1024>
//! entry:   u32 tag (with 0x1000 in the default ACL), u32 user or group id, u32 permissions
//! ```
//!
//! Spec: Linux `fs/nfs_common/nfsacl.c`, `include/uapi/linux/nfsacl.h`, `fs/nfsd/nfs3acl.c`.
//!
//! Invariant: a decoded count equals the length of its list if the list is present.

use weir_oncrpc::{Array, Decoder, Encoder, Xdr, XdrError};

use crate::limits::ACL_ENTRIES_MAX;
use crate::nfs3::{FileHandle, Nfs3Result, PostOpAttr};
use crate::procedure::{messages, procedures};

/// Number of the program (NFS_ACL_PROGRAM).
pub const PROGRAM: u32 = 100_227;

/// Version of the program for NFSv3.
pub const VERSION: u32 = 3;

/// Bits of a mask: parts that a client requests or sets, and that a server returns.
pub mod mask {
    /// NFS_ACL: entries of the access ACL.
    pub const ACL: u32 = 0x1;
    /// NFS_ACLCNT: number of entries of the access ACL.
    pub const ACL_COUNT: u32 = 0x2;
    /// NFS_DFACL: entries of the default ACL of a directory.
    pub const DEFAULT_ACL: u32 = 0x4;
    /// NFS_DFACLCNT: number of entries of the default ACL.
    pub const DEFAULT_ACL_COUNT: u32 = 0x8;
    /// All bits.
    pub const ALL: u32 = 0xf;
}

/// Tags of entries.
pub mod tag {
    /// ACL_USER_OBJ: owner of the file.
    pub const USER_OBJ: u32 = 0x01;
    /// ACL_USER: a named user.
    pub const USER: u32 = 0x02;
    /// ACL_GROUP_OBJ: owning group.
    pub const GROUP_OBJ: u32 = 0x04;
    /// ACL_GROUP: a named group.
    pub const GROUP: u32 = 0x08;
    /// ACL_MASK: maximum for named users and all groups (CLASS_OBJ).
    pub const MASK: u32 = 0x10;
    /// ACL_OTHER: all other users.
    pub const OTHER: u32 = 0x20;
    /// NFS_ACL_DEFAULT: bit of the entries of a default ACL.
    pub const DEFAULT: u32 = 0x1000;
}

weir_oncrpc::xdr_struct! {
    /// Entry of an ACL (aclent).
    #[derive(Copy)]
    pub struct AclEntry {
        /// Tag ([`tag`]).
        pub tag: u32,
        /// Id of a named user or group. Of other tags, clients send the owner, the group or 0.
        pub id: u32,
        /// Permissions: read 4, write 2, execute 1.
        pub permissions: u32,
    }

    /// Arguments of GETACL.
    #[derive(Copy)]
    pub struct GetaclArgs<'a> {
        /// Handle of the object.
        pub object: FileHandle<'a>,
        /// Parts that the client requests ([`mask`]).
        pub mask: u32,
    }

    /// Arguments of SETACL.
    pub struct SetaclArgs<'a> {
        /// Handle of the object.
        pub object: FileHandle<'a>,
        /// ACLs to set.
        pub acls: Secattr,
    }

    /// Result of GETACL.
    pub struct GetaclResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// ACLs of the object.
        pub acls: Secattr,
    }

    /// Result of SETACL.
    #[derive(Copy)]
    pub struct SetaclResok {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
    }
}

/// Entries of one ACL: at most 1,024.
pub type AclEntries = Array<AclEntry, ACL_ENTRIES_MAX>;

/// Access and default ACL of an object (secattr). An ACL without entries does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secattr {
    /// Parts that are present ([`mask`]).
    pub mask: u32,
    /// Number of entries of the access ACL; it may be set without the entries.
    pub acl_count: u32,
    /// Entries of the access ACL.
    pub acl: AclEntries,
    /// Number of entries of the default ACL; it may be set without the entries.
    pub default_acl_count: u32,
    /// Entries of the default ACL.
    pub default_acl: AclEntries,
}

impl Secattr {
    /// Creates the parts of `mask` from both ACLs. `default_acl` is empty for objects that are no
    /// directory.
    pub fn new(mask: u32, acl: AclEntries, default_acl: AclEntries) -> Self {
        let part = |bit, entries: AclEntries| match mask & bit {
            0 => AclEntries::default(),
            _ => entries,
        };
        Self {
            mask,
            acl_count: acl.items().len() as u32,
            acl: part(mask::ACL, acl),
            default_acl_count: default_acl.items().len() as u32,
            default_acl: part(mask::DEFAULT_ACL, default_acl),
        }
    }
}

/// Decodes a count and the entries that it counts. The entries may be absent.
fn decode_entries(input: &mut Decoder<'_>) -> Result<(u32, AclEntries), XdrError> {
    let count = input.length(ACL_ENTRIES_MAX)?;
    let entries = AclEntries::decode(input)?;
    let len = entries.items().len();
    if len != 0 && len != count {
        return Err(XdrError::WrongCount { len, count });
    }
    Ok((count as u32, entries))
}

impl Xdr<'_> for Secattr {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let mask = input.u32()?;
        let (acl_count, acl) = decode_entries(input)?;
        let (default_acl_count, default_acl) = decode_entries(input)?;
        Ok(Self { mask, acl_count, acl, default_acl_count, default_acl })
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.mask);
        out.u32(self.acl_count);
        self.acl.encode(out);
        out.u32(self.default_acl_count);
        self.default_acl.encode(out);
    }
}

procedures! {
    /// Procedures of NFSACL version 3.
    pub enum Procedure {
        /// ACLPROC3_NULL: no operation.
        Null = 0, "null", Reads;
        /// ACLPROC3_GETACL: ACLs of an object.
        Getacl = 1, "getacl", Reads;
        /// ACLPROC3_SETACL: set the ACLs of an object.
        Setacl = 2, "setacl", Changes;
    }
}

messages! {
    /// Arguments of a call.
    pub enum Args<'a> of Procedure {
        Null(()),
        Getacl(GetaclArgs<'a>),
        Setacl(SetaclArgs<'a>),
    }
}

messages! {
    /// Results of a call.
    pub enum Results of Procedure {
        Null(()),
        Getacl(Nfs3Result<GetaclResok, PostOpAttr>),
        Setacl(Nfs3Result<SetaclResok, PostOpAttr>),
    }
}
