//! Looks up names and lists directories.
//!
//! Invariant: a cookie refers to the same place in the list whatever happens to other entries.

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{FileType, Inode};

use crate::attributes::Attributes;
use crate::directory::{Entry, Probe};
use crate::draft::entries::Directory;
use crate::error::FsError;
use crate::filesystem::state::Filesystem;

/// Entry of a directory.
pub type ListedEntry = Entry;

impl Filesystem {
    /// Finds the inode with a name in a directory. `.` and `..` name the directory and its parent.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Stale`.
    #[boxed(?Send)]
    pub async fn lookup(&self, directory: ObjectId, name: &[u8]) -> Result<Attributes, FsError> {
        let number = match name {
            b"." => directory,
            b".." => self.parent(directory).await?,
            name if name.len() > usize::from(u8::MAX) => return Err(FsError::NameTooLong),
            name => {
                let slot = self.read_lock(directory).await?;
                match self.entries(directory).probe(slot.used()?.1, name).await? {
                    Probe::Found(entry) => entry.inode,
                    Probe::Free(_) => return Err(FsError::NotFound),
                }
            }
        };
        match self.attributes(number).await {
            // The inode was removed after the lookup of its name.
            Err(FsError::Stale) if number != directory => Err(FsError::NotFound),
            found => found,
        }
    }

    async fn parent(&self, directory: ObjectId) -> Result<ObjectId, FsError> {
        let of = |inode: &Inode| match inode.file_type {
            FileType::Directory => Ok(inode.parent),
            _ => Err(FsError::NotDirectory),
        };
        self.with_inode(directory, of).await?
    }

    /// Entries of a directory after a cookie, in ascending order of their keys: all entries or the
    /// first part. The key of an entry is its cookie. Empty at the end. The first cookie is 0; `.`
    /// and `..` are not in the list.
    ///
    /// An entry that exists during the whole listing is in the list once, whatever happens to other
    /// entries meanwhile.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`.
    #[boxed(?Send)]
    pub async fn list(
        &self,
        directory: ObjectId,
        cookie: u64,
    ) -> Result<Vec<ListedEntry>, FsError> {
        let cached = self.inode(directory)?;
        let slot = self.read_lock_of(&cached).await?;
        let listed = self.entries(directory).after(slot.used()?.1, cookie).await?;
        self.note_read(&cached, &slot);
        Ok(listed)
    }

    pub(crate) fn entries(&self, number: ObjectId) -> Directory<'_> {
        Directory { reads: self.reads(), hash: &self.hash, number }
    }
}
