//! Lists of directories.
//!
//! The kernel continues a list at the offset of the last entry that it got. The offset of an entry
//! is its cookie plus [`SPECIAL`]; the entries `.` and `..` have the offsets 1 and 2.
//!
//! Invariant: a list that continues at an offset neither repeats nor loses entries that existed all
//! the time.

use weir_base::ObjectId;
use weir_format::files::FileType;
use weir_fs::{Attributes, FsError};

use crate::operations::served::{Done, Served, done};

/// Number of offsets for the entries `.` and `..`, before all other entries.
const SPECIAL: u64 = 2;

/// One entry of a list.
pub(crate) struct Listed {
    pub(crate) number: ObjectId,
    /// Offset that continues after this entry.
    pub(crate) offset: u64,
    pub(crate) file_type: FileType,
    pub(crate) name: Box<[u8]>,
}

impl Served {
    /// Returns entries after an offset: at least one, unless the list ends.
    pub(crate) async fn list(&self, directory: ObjectId, offset: u64) -> Done<Vec<Listed>> {
        if offset < SPECIAL {
            let name: &[u8] = if offset == 0 { b"." } else { b".." };
            let number = match self.files.lookup(directory, name).await {
                Ok(found) => found.number,
                // The parent of a removed directory may be gone.
                Err(FsError::Stale | FsError::NotFound) => directory,
                Err(error) => return done(Err(error)),
            };
            let file_type = FileType::Directory;
            return Ok(vec![Listed { number, offset: offset + 1, file_type, name: name.into() }]);
        }
        let entries = done(self.files.list(directory, offset - SPECIAL).await)?;
        let listed = entries.into_iter().map(|entry| Listed {
            number: entry.inode,
            offset: entry.key.number() + SPECIAL,
            file_type: entry.file_type,
            name: entry.name,
        });
        Ok(listed.collect())
    }

    /// Returns the attributes of an entry; `None` if the inode was removed meanwhile.
    pub(crate) async fn attributes_of_entry(&self, entry: &Listed) -> Done<Option<Attributes>> {
        match self.files.attributes(entry.number).await {
            Err(FsError::Stale) => Ok(None),
            other => done(other).map(Some),
        }
    }
}
