//! The directories `.weir` and `.weir/snapshot`, and the snapshots below them.
//!
//! Invariant: no request changes anything in a snapshot or in these directories.

use fuser::Errno;
use weir_base::{DatasetId, ObjectId};
use weir_format::files::FileType;
use weir_fs::{Attributes, ROOT, SNAPSHOTS_NAME, VirtualDirectory, WEIR_NAME};

use crate::operations::directories::Listed;
use crate::operations::places::{
    FilesAt, InFiles, Place, SnapshotsBelow, UNKNOWN, VIRTUAL_INDEX, is_own, joined, parts,
};
use crate::operations::served::{Done, Served, done};

/// Maximum number of snapshots in one part of a list.
const LISTED_MAX: usize = 256;

impl Served {
    /// Finds the place of an inode. Opens the snapshot of the inode.
    pub(crate) fn place(&self, number: ObjectId) -> Done<Place<'_>> {
        let (index, own) = parts(number);
        if index == 0 {
            let files = FilesAt::Own(&self.files);
            return Ok(Place::Files(InFiles { files, number: own, index }));
        }
        let below = self.snapshots.as_ref().ok_or(Errno::ESTALE)?;
        if index == VIRTUAL_INDEX {
            let all = [VirtualDirectory::Weir, VirtualDirectory::Snapshots];
            let found = all.into_iter().find(|directory| directory.number() == number);
            return found.map(|found| Place::Virtual(found, below)).ok_or(Errno::ESTALE);
        }
        let dataset = below.dataset(index).ok_or(Errno::ESTALE)?;
        let files = FilesAt::Snapshot(done(below.snapshots.open(dataset))?);
        Ok(Place::Files(InFiles { files, number: own, index }))
    }

    /// As [`Self::place`], for an operation on files. A directory of snapshots is EISDIR.
    pub(crate) fn in_files(&self, number: ObjectId) -> Done<InFiles<'_>> {
        match self.place(number)? {
            Place::Files(found) => Ok(found),
            Place::Virtual(..) => Err(Errno::EISDIR),
        }
    }

    /// Finds `.weir` in the root, where no entry has this name.
    pub(crate) fn weir(&self, directory: ObjectId, name: &[u8]) -> Option<Attributes> {
        let below = self.snapshots.as_ref()?;
        let is_weir = is_own(directory) && self.files.is_weir(directory, name);
        is_weir.then(|| VirtualDirectory::Weir.attributes(&*below.snapshots))
    }

    /// Finds a name in a directory of snapshots. Opens the snapshot with the name.
    pub(crate) async fn lookup_snapshot(
        &self,
        (directory, below): (VirtualDirectory, &SnapshotsBelow),
        name: &[u8],
    ) -> Done<Attributes> {
        use VirtualDirectory as V;
        let found = match (directory, name) {
            (V::Weir, b"..") => return done(self.files.attributes(ROOT).await),
            (_, b".") => directory,
            (V::Weir, name) if name == SNAPSHOTS_NAME => V::Snapshots,
            (V::Snapshots, b"..") => V::Weir,
            (V::Weir, _) => return Err(Errno::ENOENT),
            (V::Snapshots, name) => {
                let entry = below.snapshots.find(name).ok_or(Errno::ENOENT)?;
                let files = done(below.snapshots.open(entry.dataset))?;
                let index = below.index(entry.dataset).ok_or(Errno::ENFILE)?;
                let found = done(files.attributes(ROOT).await)?;
                return Ok(Attributes { number: joined(index, ROOT), ..found });
            }
        };
        Ok(found.attributes(&*below.snapshots))
    }

    /// Attributes of a directory of snapshots.
    pub(crate) fn virtual_attributes(
        (directory, below): (VirtualDirectory, &SnapshotsBelow),
    ) -> Attributes {
        directory.attributes(&*below.snapshots)
    }

    /// Attributes of `.weir/snapshot`, the parent of the roots of snapshots.
    pub(crate) fn snapshots_attributes(&self) -> Done<Attributes> {
        let below = self.snapshots.as_ref().ok_or(Errno::ESTALE)?;
        Ok(Self::virtual_attributes((VirtualDirectory::Snapshots, below)))
    }

    /// Returns the entry `.weir`, without its offset, if it belongs to the list of a directory.
    pub(crate) async fn lists_weir(&self, directory: ObjectId) -> Done<Option<Listed>> {
        let visible = self.snapshots.as_ref().filter(|below| below.snapshots.is_visible());
        if directory != ROOT || visible.is_none() {
            return Ok(None);
        }
        match self.files.lookup(ROOT, WEIR_NAME).await {
            // An entry of an older version has the name.
            Ok(_) => return Ok(None),
            Err(weir_fs::FsError::NotFound) => {}
            Err(error) => return done(Err(error)),
        }
        let (number, file_type) = (VirtualDirectory::Weir.number(), FileType::Directory);
        Ok(Some(Listed { number, offset: 0, file_type, name: WEIR_NAME.into() }))
    }

    /// Lists a directory of snapshots after a cookie. The offset of each entry is its cookie.
    pub(crate) fn list_snapshots(
        (directory, below): (VirtualDirectory, &SnapshotsBelow),
        cookie: u64,
    ) -> Vec<Listed> {
        let file_type = FileType::Directory;
        match directory {
            VirtualDirectory::Weir if cookie == 0 => {
                let (number, name) = (VirtualDirectory::Snapshots.number(), SNAPSHOTS_NAME.into());
                vec![Listed { number, offset: 1, file_type, name }]
            }
            VirtualDirectory::Weir => Vec::new(),
            VirtualDirectory::Snapshots => {
                let listed = below.snapshots.list(DatasetId(cookie));
                let entry = |found: weir_fs::SnapshotEntry| {
                    let index = below.index(found.dataset);
                    let number = index.map_or(UNKNOWN, |index| joined(index, ROOT));
                    Listed { number, offset: found.dataset.0, file_type, name: found.name }
                };
                listed.into_iter().take(LISTED_MAX).map(entry).collect()
            }
        }
    }
}
