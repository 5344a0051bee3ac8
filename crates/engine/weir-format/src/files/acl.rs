//! POSIX access control lists (acl(5)).
//!
//! The encoding is the value of the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default` of Linux (include/uapi/linux/posix_acl_xattr.h).
//!
//! Invariants: a list has its entries in one order, each tag and ID once, and a mask if it names
//! users or groups.

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

const WHAT: &str = "POSIX ACL";
/// Version of the encoding.
const VERSION: u32 = 2;
/// ID of the entries that name no user or group.
const NO_ID: u32 = u32::MAX;
/// Permissions to read, to write and to execute.
const PERMISSIONS: u8 = 7;

/// Users to which an entry applies, in the order of the entries of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclTag {
    /// The owner.
    Owner,
    /// This user.
    User(u32),
    /// The group of the file.
    OwningGroup,
    /// This group.
    Group(u32),
    /// Limits the permissions of `User`, `OwningGroup` and `Group`.
    Mask,
    /// All other users.
    Other,
}

/// Entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Users to which the entry applies.
    pub tag: AclTag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub permissions: u8,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl AclTag {
    fn code(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::OwningGroup => (0x04, NO_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Other => (0x20, NO_ID),
        }
    }

    fn of_code(code: u16, id: u32) -> Option<Self> {
        match code {
            0x01 => Some(Self::Owner),
            0x02 => (id != NO_ID).then_some(Self::User(id)),
            0x04 => Some(Self::OwningGroup),
            0x08 => (id != NO_ID).then_some(Self::Group(id)),
            0x10 => Some(Self::Mask),
            0x20 => Some(Self::Other),
            _ => None,
        }
    }

    /// Number of bits by which the permissions of a mode are shifted for this entry.
    fn shift(self, has_mask: bool) -> Option<u32> {
        match self {
            Self::Owner => Some(6),
            Self::Mask => Some(3),
            Self::OwningGroup => (!has_mask).then_some(3),
            Self::Other => Some(0),
            Self::User(_) | Self::Group(_) => None,
        }
    }
}

impl Acl {
    /// Maximum number of entries: an access ACL and a default ACL fit into an inode.
    pub const ENTRIES_MAX: usize = 48;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(4, "version", "2"),
        field(
            0,
            "entries",
            "each with its tag (u16): 1 owner, 2 user, 4 owning group, 8 group, 16 mask, 32 other; \
             permissions (u16): 4 read, 2 write, 1 execute; and ID (u32; without an ID: all ones). \
             In the order of tags and IDs",
        ),
    ];

    /// Creates a list from entries in any order.
    ///
    /// # Errors
    /// A required entry is missing, or an entry appears twice.
    pub fn new(mut entries: Vec<AclEntry>) -> Result<Self, FormatError> {
        let bad = |field, value| Err(Reader::new(WHAT, &[]).bad(field, value));
        entries.sort_by_key(|entry| entry.tag);
        let tags = || entries.iter().map(|entry| entry.tag);
        let has = |wanted| u64::from(tags().any(|tag| tag == wanted));
        if tags().zip(tags().skip(1)).any(|(one, next)| one == next) {
            return bad("entry twice", entries.len() as u64);
        }
        let required = has(AclTag::Owner) + has(AclTag::OwningGroup) + has(AclTag::Other);
        let is_named = tags().any(|tag| matches!(tag, AclTag::User(_) | AclTag::Group(_)));
        if required < 3 || is_named && has(AclTag::Mask) == 0 {
            return bad("entries", entries.len() as u64);
        }
        Ok(Self { entries })
    }

    /// Decodes a list. `None` for a list without entries, which means "no list".
    ///
    /// # Errors
    /// An entry is invalid, or the list lacks an entry.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        let version = r.u32()?;
        if version != VERSION {
            return Err(r.bad("version", version));
        }
        let mut entries = Vec::new();
        while r.left() > 0 {
            let (code, permissions, id) = (r.u16()?, r.u16()?, r.u32()?);
            let tag = AclTag::of_code(code, id).ok_or_else(|| r.bad("tag", code))?;
            let bits = u8::try_from(permissions).ok().filter(|bits| *bits <= PERMISSIONS);
            let permissions = bits.ok_or_else(|| r.bad("permissions", permissions))?;
            if entries.len() >= usize::from(u16::MAX) {
                return Err(r.bad("number of entries", entries.len() as u64));
            }
            entries.push(AclEntry { tag, permissions });
        }
        if entries.is_empty() { Ok(None) } else { Self::new(entries).map(Some) }
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(VERSION);
        for AclEntry { tag, permissions } in &self.entries {
            let (code, id) = tag.code();
            w.u16(code);
            w.u16(u16::from(*permissions));
            w.u32(id);
        }
        w.0
    }

    /// The entries, in the order of their tags.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Permissions of an entry.
    pub fn permissions_of(&self, tag: AclTag) -> Option<u8> {
        let found = self.entries.iter().find(|entry| entry.tag == tag);
        found.map(|entry| entry.permissions)
    }

    /// True if the permission bits of a mode express the whole list.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Permission bits of a mode with this list, from its entries for owner, mask and others.
    pub fn mode(&self) -> u32 {
        let has_mask = !self.is_minimal() && self.permissions_of(AclTag::Mask).is_some();
        let bits = self.entries.iter().filter_map(|entry| {
            entry.tag.shift(has_mask).map(|shift| u32::from(entry.permissions) << shift)
        });
        bits.sum()
    }

    /// Sets the permissions of the owner, the mask and others from a mode (chmod(2)).
    pub fn set_mode(&mut self, mode: u32) {
        let has_mask = self.permissions_of(AclTag::Mask).is_some();
        for entry in &mut self.entries {
            if let Some(shift) = entry.tag.shift(has_mask) {
                entry.permissions = (mode >> shift) as u8 & PERMISSIONS;
            }
        }
    }

    /// The access ACL of a new file in a directory with this default ACL. `mode`: the permission
    /// bits that the client asked for, which limit the list.
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Self {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }
}
