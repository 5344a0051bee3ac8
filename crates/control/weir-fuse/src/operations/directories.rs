//! Lists of directories.
//!
//! The kernel continues a list at the offset of the last entry that it got. The offset of an entry
//! is its cookie plus [`SPECIAL`]; the entries `.` and `..` have the offsets 1 and 2. The entry
//! `.weir` of the root has the cookie 1, which no entry of weir-fs has.
//!
//! Invariant: a list that continues at an offset neither repeats nor loses entries that existed all
//! the time.

use std::time::Duration;

use fuser::Errno;
use weir_base::ObjectId;
use weir_format::files::FileType;
use weir_fs::{Attributes, ROOT};

use crate::operations::places::{Place, is_snapshot_root};
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
            let gone = [Errno::ESTALE.code(), Errno::ENOENT.code()];
            let number = match self.lookup(directory, name).await {
                Ok(found) => found.number,
                // The parent of a removed directory may be gone.
                Err(error) if gone.contains(&error.code()) => directory,
                Err(error) => return Err(error),
            };
            let file_type = FileType::Directory;
            return Ok(vec![Listed { number, offset: offset + 1, file_type, name: name.into() }]);
        }
        let cookie = offset - SPECIAL;
        let at = match self.place(directory)? {
            Place::Files(at) => at,
            Place::Virtual(kind, below) => {
                let mut listed = Self::list_snapshots((kind, below), cookie);
                listed.iter_mut().for_each(|entry| entry.offset += SPECIAL);
                return Ok(listed);
            }
        };
        if cookie == 0
            && let Some(weir) = self.lists_weir(directory).await?
        {
            return Ok(vec![Listed { offset: SPECIAL + 1, ..weir }]);
        }
        let entries = done(at.files.list(at.number, cookie).await)?;
        let listed = entries.into_iter().map(|entry| Listed {
            number: at.joined(entry.inode),
            offset: entry.key.number() + SPECIAL,
            file_type: entry.file_type,
            name: entry.name,
        });
        Ok(listed.collect())
    }

    /// Returns the attributes of an entry, and the time for which the kernel may use them; `None`
    /// if the inode was removed meanwhile.
    ///
    /// A list of snapshots opens none of them: it has invented attributes, which expire at once.
    pub(crate) async fn attributes_of_entry(
        &self,
        entry: &Listed,
    ) -> Done<Option<(Attributes, Duration)>> {
        if is_snapshot_root(entry.number) {
            let root = done(self.files.attributes(ROOT).await)?;
            return Ok(Some((Attributes { number: entry.number, ..root }, Duration::ZERO)));
        }
        match self.attributes(entry.number).await {
            Ok(found) => {
                let time = self.entry_time(&found).min(self.answer_time(&found));
                Ok(Some((found, time)))
            }
            Err(error) if error.code() == Errno::ESTALE.code() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
