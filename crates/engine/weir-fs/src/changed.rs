//! Description of a change, for caches outside of this crate.
//!
//! The caller of an operation makes the description. The cache of the Linux kernel, above a mount,
//! drops the described names, attributes and data.
//!
//! Invariant: a description names at least everything that changed.

use std::ops::Range;

use weir_base::ObjectId;

/// Names and inodes that an operation changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Names in directories: names that appeared, disappeared, or belong to another inode now.
    pub names: Vec<(ObjectId, Box<[u8]>)>,
    /// Inodes.
    pub inodes: Vec<ChangedInode>,
}

/// A changed inode. Its attributes or its ACLs changed, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedInode {
    /// Inode number.
    pub number: ObjectId,
    /// Bytes of the file that changed. The end is `u64::MAX` for everything after the start.
    pub data: Option<Range<u64>>,
}

impl Changed {
    /// True if nothing changed.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.inodes.is_empty()
    }

    /// Adds a name in a directory, and the attributes of the directory.
    #[must_use]
    pub fn name(mut self, directory: ObjectId, name: &[u8]) -> Self {
        self.names.push((directory, name.into()));
        self.inode(directory)
    }

    /// Adds the attributes of an inode, unless they are already there.
    #[must_use]
    pub fn inode(mut self, number: ObjectId) -> Self {
        if self.inodes.iter().all(|inode| inode.number != number) {
            self.inodes.push(ChangedInode { number, data: None });
        }
        self
    }

    /// Adds data of a file, and the attributes of the file.
    #[must_use]
    pub fn data(mut self, number: ObjectId, data: Range<u64>) -> Self {
        self.inodes.push(ChangedInode { number, data: Some(data) });
        self
    }
}
