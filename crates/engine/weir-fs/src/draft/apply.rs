//! Applies log records to a draft. Operations of clients and replays use the same code, so that a
//! replay makes the same changes.
//!
//! Invariant: a record that does not fit the filesystem is an error, and never a panic: the log may
//! be malicious.

use weir_base::ObjectId;
use weir_format::files::{
    AttributeChanges, DirectoryEntry, EntryKey, Fate, FileRecord, FileType, Inode, InodeState,
    NamedEntry,
};
use weir_pool::PlantedBug;

use crate::directory::Probe;
use crate::draft::entries::Directory;
use crate::draft::node::Draft;
use crate::error::FsError;
use crate::layout::{FIRST, LINKS_MAX, ORPHANS};

/// Name of an inode in the directory of orphans.
fn orphan_name(inode: ObjectId) -> Vec<u8> {
    inode.0.to_string().into_bytes()
}

impl Draft<'_> {
    /// Applies the record of a change of `object`.
    ///
    /// # Errors
    /// The errors of the operation. The caller must then discard the draft.
    pub(crate) async fn apply(
        &mut self,
        object: ObjectId,
        record: &FileRecord<'_>,
    ) -> Result<(), FsError> {
        match record {
            FileRecord::Write { offset, head, blocks, tail, permissions } => {
                let data = [*head, blocks, tail].concat();
                self.apply_write(object, (*offset, &data), *permissions).await
            }
            FileRecord::Zero { offset, bytes, permissions } => {
                let blocks = self.node(object).await?.inode.blocks;
                self.punch(object, *offset, *bytes).await?;
                let is_removed = self.node(object).await?.inode.state == InodeState::Freeing;
                if is_removed && self.reads.bug() == PlantedBug::FreedPartStillCounted {
                    self.node(object).await?.inode.blocks = blocks;
                }
                self.note_new_data(object, *permissions).await
            }
            FileRecord::SetAttributes(changes) => self.set_attributes(object, changes).await,
            FileRecord::SetXattr { name, value, object: new } => {
                self.set_xattr(object, (name, *value), *new).await
            }
            FileRecord::Create { entry, inode, target } => {
                self.apply_create(object, *entry, inode).await?;
                self.set_long_target(object, target).await
            }
            FileRecord::Link { entry } => self.apply_link(object, *entry).await,
            FileRecord::Remove { entry, fate } => {
                self.expect_entry(*entry, object).await?;
                self.remove_entry(*entry).await?;
                self.update_directory(entry.directory).await?;
                self.lose_name(object, entry.directory, *fate).await
            }
            FileRecord::Rename { from, to, replaced } => {
                self.apply_rename(object, (*from, *to), *replaced).await
            }
            FileRecord::Exchange { from, to, other } => {
                self.apply_exchange([object, *other], [*from, *to]).await
            }
            FileRecord::Release => self.free_orphan(object).await,
            FileRecord::BeginFreeing => {
                let inode = self.change(object).await?;
                if inode.state != InodeState::Orphan {
                    return Err(FsError::damaged(object, "it is no orphan"));
                }
                inode.state = InodeState::Freeing;
                Ok(())
            }
            FileRecord::SetLimits { owner, limits } => self.set_limits(*owner, *limits).await,
            FileRecord::Access { atime } => {
                self.change_silently(object).await?.atime = *atime;
                Ok(())
            }
        }
    }

    /// Writes data, and sets the permission bits after the write.
    pub(crate) async fn apply_write(
        &mut self,
        file: ObjectId,
        (offset, data): (u64, &[u8]),
        permissions: u32,
    ) -> Result<(), FsError> {
        self.write(file, offset, data).await?;
        self.note_new_data(file, permissions).await
    }

    /// Sets the times and the permission bits of a file after a change of its data.
    pub(crate) async fn note_new_data(
        &mut self,
        file: ObjectId,
        permissions: u32,
    ) -> Result<(), FsError> {
        let time = self.stamp.time;
        let inode = self.change(file).await?;
        inode.mtime = time;
        if inode.permissions != permissions {
            self.set_permissions(file, permissions).await?;
        }
        Ok(())
    }

    async fn set_attributes(
        &mut self,
        number: ObjectId,
        changes: &AttributeChanges,
    ) -> Result<(), FsError> {
        let time = self.stamp.time;
        if let Some(size) = changes.size {
            self.set_size(number, size).await?;
        }
        let AttributeChanges { permissions, uid, gid, project, flags, size: _, atime, mtime } =
            *changes;
        if let Some(bits) = permissions {
            self.set_permissions(number, bits).await?;
        }
        let inode = self.change(number).await?;
        if changes.size.is_some() {
            inode.mtime = time;
        }
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        inode.project = project.unwrap_or(inode.project);
        inode.flags = flags.unwrap_or(inode.flags);
        if inode.file_type == FileType::Regular {
            inode.flags &= !Inode::HAS_VERIFIER;
            inode.device_or_entries = 0;
        }
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        let (uid, gid, project, object) = (inode.uid, inode.gid, inode.project, inode.attributes);
        let is_moved = changes.uid.is_some() || changes.gid.is_some() || changes.project.is_some();
        if is_moved && object.0 > 0 && self.owns_attributes(number, object).await? {
            let inode = self.change(object).await?;
            (inode.uid, inode.gid, inode.project) = (uid, gid, project);
        }
        Ok(())
    }

    async fn apply_create(
        &mut self,
        number: ObjectId,
        entry: Option<NamedEntry<'_>>,
        inode: &Inode,
    ) -> Result<(), FsError> {
        if number < FIRST || self.is_used(number).await? {
            return Err(FsError::damaged(number, "a new inode has this number"));
        }
        let (state, nlink) = match (entry, inode.file_type) {
            (None, _) => (InodeState::Orphan, 0),
            (Some(_), FileType::Directory) => (InodeState::Named, 2),
            (Some(_), _) => (InodeState::Named, 1),
        };
        let has_content = inode.blocks > 0 || inode.attributes.0 > 0;
        let is_sized = inode.size > 0 && inode.file_type != FileType::SymbolicLink;
        if (inode.state, inode.nlink) != (state, nlink) || has_content || is_sized {
            return Err(FsError::damaged(number, "a new inode has names or content already"));
        }
        self.create(number, inode.clone());
        self.set_number(number, true).await?;
        let Some(entry) = entry else { return self.add_orphan(number, state).await };
        self.insert_entry(entry, number, inode.file_type).await?;
        self.update_directory(entry.directory).await?;
        if inode.file_type == FileType::Directory {
            self.count_subdirectory(entry.directory, 1).await?;
        }
        Ok(())
    }

    async fn apply_link(&mut self, number: ObjectId, entry: NamedEntry<'_>) -> Result<(), FsError> {
        let inode = self.change(number).await?;
        if inode.file_type == FileType::Directory {
            return Err(FsError::NotPermitted("a directory has one name"));
        }
        if inode.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        if inode.state == InodeState::Freeing {
            return Err(FsError::Stale);
        }
        let (file_type, was_orphan) = (inode.file_type, inode.state == InodeState::Orphan);
        (inode.nlink, inode.state) = (inode.nlink + 1, InodeState::Named);
        inode.parent = entry.directory;
        if was_orphan {
            self.remove_orphan(number).await?;
        }
        self.insert_entry(entry, number, file_type).await?;
        self.update_directory(entry.directory).await
    }

    async fn apply_rename(
        &mut self,
        number: ObjectId,
        (from, to): (NamedEntry<'_>, NamedEntry<'_>),
        replaced: Option<(ObjectId, Fate)>,
    ) -> Result<(), FsError> {
        self.expect_entry(from, number).await?;
        let file_type = self.node(number).await?.inode.file_type;
        match replaced {
            // Another spelling of the name: the entry keeps its key.
            None if (from.directory, from.key) == (to.directory, to.key) => {
                self.replace_entry(to, number, file_type).await?;
                self.move_inode(number, from.directory, to.directory).await?;
                return self.update_directory(to.directory).await;
            }
            Some((old, fate)) => {
                self.expect_entry(to, old).await?;
                self.replace_entry(to, number, file_type).await?;
                self.lose_name(old, to.directory, fate).await?;
            }
            None => self.insert_entry(to, number, file_type).await?,
        }
        self.remove_entry(from).await?;
        self.move_inode(number, from.directory, to.directory).await?;
        self.update_directories(from.directory, to.directory).await
    }

    async fn apply_exchange(
        &mut self,
        [one, other]: [ObjectId; 2],
        [from, to]: [NamedEntry<'_>; 2],
    ) -> Result<(), FsError> {
        self.expect_entry(from, one).await?;
        self.expect_entry(to, other).await?;
        let types =
            (self.node(one).await?.inode.file_type, self.node(other).await?.inode.file_type);
        self.replace_entry(to, one, types.0).await?;
        self.replace_entry(from, other, types.1).await?;
        self.move_inode(one, from.directory, to.directory).await?;
        self.move_inode(other, to.directory, from.directory).await?;
        self.update_directories(from.directory, to.directory).await
    }

    /// Updates an inode that moved from one directory to another.
    async fn move_inode(
        &mut self,
        number: ObjectId,
        from: ObjectId,
        to: ObjectId,
    ) -> Result<(), FsError> {
        let inode = self.change(number).await?;
        inode.parent = to;
        if inode.file_type == FileType::Directory && from != to {
            self.count_subdirectory(from, -1).await?;
            self.count_subdirectory(to, 1).await?;
        }
        Ok(())
    }

    /// Subtracts one name from the link count of an inode. `fate`: state of the inode afterwards.
    async fn lose_name(
        &mut self,
        number: ObjectId,
        directory: ObjectId,
        fate: Fate,
    ) -> Result<(), FsError> {
        let inode = self.change(number).await?;
        let is_directory = inode.file_type == FileType::Directory;
        inode.nlink = if is_directory { 0 } else { inode.nlink.saturating_sub(1) };
        let (is_last, is_empty) = (inode.nlink == 0, inode.device_or_entries == 0);
        if is_last != (fate != Fate::Named) || is_directory && !is_empty {
            return Err(FsError::damaged(number, "its number of names"));
        }
        if is_directory {
            self.count_subdirectory(directory, -1).await?;
        }
        match fate {
            Fate::Named => Ok(()),
            Fate::Orphan => self.add_orphan(number, InodeState::Orphan).await,
            Fate::Freeing if self.reads.bug() == PlantedBug::RemovedFileForgotten => {
                self.change(number).await?.state = InodeState::Freeing;
                Ok(())
            }
            Fate::Freeing => self.add_orphan(number, InodeState::Freeing).await,
            Fate::Freed => self.free(number).await,
        }
    }

    /// Adds an inode without a name to the directory of orphans.
    async fn add_orphan(&mut self, number: ObjectId, state: InodeState) -> Result<(), FsError> {
        let inode = self.change(number).await?;
        inode.state = state;
        let file_type = inode.file_type;
        let name = orphan_name(number);
        let Probe::Free(key) = self.find(ORPHANS, &name).await? else {
            return Err(FsError::damaged(number, "it is an orphan already"));
        };
        let entry = NamedEntry { directory: ORPHANS, key, name: &name };
        self.insert_entry(entry, number, file_type).await?;
        self.change(ORPHANS).await.map(drop)
    }

    async fn remove_orphan(&mut self, number: ObjectId) -> Result<(), FsError> {
        let name = orphan_name(number);
        let Probe::Found(found) = self.find(ORPHANS, &name).await? else {
            return Err(FsError::damaged(number, "it is no orphan"));
        };
        let entry = NamedEntry { directory: ORPHANS, key: found.key, name: &name };
        self.remove_entry(entry).await?;
        self.change(ORPHANS).await.map(drop)
    }

    /// Frees an orphan and all its records.
    async fn free_orphan(&mut self, number: ObjectId) -> Result<(), FsError> {
        self.remove_orphan(number).await?;
        self.free(number).await
    }

    /// Finds the entry with a name, or the key of a new entry with this name.
    pub(crate) async fn find(
        &mut self,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<Probe, FsError> {
        let (reads, hash) = (self.reads, self.hash);
        let mut blocks = self.directories.remove(&directory).unwrap_or_default();
        let inode = &self.node(directory).await?.inode;
        let searched = Directory { reads, hash, number: directory };
        let found = searched.probe_in(inode, name, &mut blocks).await;
        self.directories.insert(directory, blocks);
        found
    }

    /// Checks that an entry has this key and names this inode.
    async fn expect_entry(
        &mut self,
        entry: NamedEntry<'_>,
        inode: ObjectId,
    ) -> Result<(), FsError> {
        let NamedEntry { directory, key, name } = entry;
        match self.find(directory, name).await? {
            Probe::Found(found) if found.key == key && found.inode == inode => Ok(()),
            _ => Err(FsError::damaged(directory, "an entry does not name the expected inode")),
        }
    }

    /// Sets the times and the change number of a directory whose entries changed.
    async fn update_directory(&mut self, directory: ObjectId) -> Result<(), FsError> {
        let time = self.stamp.time;
        self.change(directory).await?.mtime = time;
        Ok(())
    }

    /// As [`Self::update_directory`], for the one or two directories of a rename.
    async fn update_directories(&mut self, one: ObjectId, two: ObjectId) -> Result<(), FsError> {
        self.update_directory(one).await?;
        if one == two { Ok(()) } else { self.update_directory(two).await }
    }

    async fn count_subdirectory(&mut self, directory: ObjectId, added: i32) -> Result<(), FsError> {
        let inode = &mut self.node(directory).await?.inode;
        let links = inode.nlink.checked_add_signed(added).filter(|links| *links <= LINKS_MAX);
        inode.nlink = links.ok_or(FsError::TooManyLinks)?;
        Ok(())
    }
}

/// The entry of a directory, in the form in which log records name it.
pub(crate) fn named(directory: ObjectId, key: EntryKey, name: &[u8]) -> NamedEntry<'_> {
    debug_assert!(DirectoryEntry::is_name(name), "the caller checked the name");
    NamedEntry { directory, key, name }
}
