//! Arguments and results of the operations of users.
//!
//! Invariant: attributes in a result were read under the locks of the operation.

use weir_base::{ObjectId, Txg};

use crate::attributes::Attributes;
use crate::directory::Entry;

/// An inode as a client names it with a file handle. A number that became unused and was used again
/// has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InodeRef {
    /// Inode number.
    pub number: ObjectId,
    /// Txg of the creation.
    pub generation: Txg,
}

impl From<&Attributes> for InodeRef {
    fn from(attributes: &Attributes) -> Self {
        Self { number: attributes.number, generation: attributes.generation }
    }
}

/// Attributes of a changed inode. No other change happened between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeAfter {
    /// Attributes before the change.
    pub before: Attributes,
    /// Attributes after the change.
    pub after: Attributes,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Attributes of the found inode.
    pub found: Attributes,
    /// Attributes of the directory.
    pub directory: Attributes,
}

/// Result of the creation of an inode or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// Attributes of the inode with the new name.
    pub inode: Attributes,
    /// The directory.
    pub directory: BeforeAfter,
}

/// Result of the removal of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that lost the name.
    pub inode: ObjectId,
    /// The directory.
    pub directory: BeforeAfter,
}

/// Result of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The renamed inode, and the inode that lost the new name. `None` if both names were names of
    /// one inode, because the rename then changes nothing.
    pub inodes: Option<(ObjectId, Option<ObjectId>)>,
    /// The directory of the old name.
    pub from: BeforeAfter,
    /// The directory of the new name; the same as `from` for a rename within a directory.
    pub to: BeforeAfter,
}

/// Part of the list of a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Attributes of the directory.
    pub directory: Attributes,
    /// Entries in ascending order of their cookies.
    pub entries: Vec<Entry>,
}

/// Rights of a user on an inode: the bits of ACCESS (RFC 1813 section 3.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each right is independent of the others")]
pub struct Allowed {
    /// Reads the file, or lists the directory.
    pub reads: bool,
    /// Looks up names in the directory; false for other inodes.
    pub looks_up: bool,
    /// Changes data of the file, or entries of the directory.
    pub modifies: bool,
    /// Extends the file, or adds entries to the directory.
    pub extends: bool,
    /// Removes entries of the directory; false for other inodes. A sticky directory allows it only
    /// for some entries.
    pub deletes: bool,
    /// Executes the file; false for directories.
    pub executes: bool,
}
