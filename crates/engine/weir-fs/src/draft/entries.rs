//! Entries of directories.
//!
//! A small directory has its entries in the inode. A larger directory has a tree of blocks
//! (`directory::tree`), and the size in its inode is the size of that tree.
//!
//! Invariant: the inode's number of entries is the number of entries in the list or tree.

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_format::TreeRoot;
use weir_format::files::{
    Area, DirectoryEntry, EntryKey, EntryList, FileType, Inode, NAME_BYTES_MAX, NamedEntry,
};

use crate::directory::{
    Blocks, DirectoryError, DirectoryTree, Entry, NameHash, Probe, TreeChanges, probe_list,
};
use crate::draft::node::Draft;
use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::layout::INLINE_ENTRIES_BYTES_MAX;

/// Checks a name that a client sent.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if DirectoryEntry::is_name(name) {
        Ok(())
    } else {
        Err(FsError::Invalid("the name is empty, `.`, `..`, or contains `/` or NUL"))
    }
}

/// Entries of a directory whose inode the caller has read.
pub(crate) struct Directory<'a> {
    pub(crate) reads: Reads<'a>,
    pub(crate) hash: &'a NameHash,
    pub(crate) number: ObjectId,
}

impl Directory<'_> {
    /// Finds the entry with a name, or the key of a new entry with this name.
    pub(crate) async fn probe(&self, inode: &Inode, name: &[u8]) -> Result<Probe, FsError> {
        self.probe_in(inode, name, &mut Blocks::new()).await
    }

    /// As [`Self::probe`], and adds the blocks that it reads to `blocks`.
    pub(crate) async fn probe_in(
        &self,
        inode: &Inode,
        name: &[u8],
        blocks: &mut Blocks,
    ) -> Result<Probe, FsError> {
        let list = self.inline(inode)?;
        let name = self.hash.search(name).ok_or(FsError::NotUnicode)?;
        match list {
            Some(list) => {
                probe_list(&list, &name).map_err(|error| FsError::of_directory(self.number, error))
            }
            None => {
                let found = self.on_tree(blocks, |tree| tree.probe(&name)).await;
                found.map(|(found, _)| found)
            }
        }
    }

    /// Entries after a cookie, ascending: all entries, or one block of entries. Empty at the end.
    pub(crate) async fn after(&self, inode: &Inode, cookie: u64) -> Result<Vec<Entry>, FsError> {
        match self.inline(inode)? {
            Some(list) => {
                let all = list.from(0).map(Entry::from);
                Ok(all.filter(|entry| entry.key.number() > cookie).collect())
            }
            None => {
                let mut blocks = Blocks::new();
                self.on_tree(&mut blocks, |tree| tree.after(cookie)).await.map(|(found, _)| found)
            }
        }
    }

    /// Entries in the inode; `None` if the directory has a tree.
    fn inline<'i>(&self, inode: &'i Inode) -> Result<Option<EntryList<'i>>, FsError> {
        if inode.file_type != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        if inode.size > 0 {
            return Ok(None);
        }
        let bytes = inode.area.entries.as_deref().unwrap_or_default();
        let list =
            EntryList::parse(bytes).map_err(|error| FsError::of_inode(self.number, &error))?;
        Ok(Some(list))
    }

    /// Runs an operation on the tree. Reads the blocks that it needs, and adds them to `blocks`.
    async fn on_tree<T>(
        &self,
        blocks: &mut Blocks,
        mut operation: impl FnMut(&mut DirectoryTree<'_, Blocks>) -> Result<T, DirectoryError>,
    ) -> Result<(T, TreeChanges), FsError> {
        loop {
            let tried = DirectoryTree::open(blocks).and_then(|mut tree| {
                let done = operation(&mut tree)?;
                Ok((done, tree.into_changes()))
            });
            let missing = match tried {
                Ok(done) => return Ok(done),
                Err(DirectoryError::Missing(missing)) => missing,
                Err(error) => return Err(FsError::of_directory(self.number, error)),
            };
            let read =
                self.reads.record(self.number, RecordSize::BLOCK, u64::from(missing)).await?;
            let Some([block]) = read.as_deref() else {
                let what = format!("block {missing} of the directory is missing");
                return Err(FsError::damaged(self.number, what));
            };
            if blocks.insert(missing, block.clone()).is_some() {
                return Err(FsError::damaged(self.number, "a block is missing twice"));
            }
        }
    }
}

/// Change of the entries of a directory.
#[derive(Clone, Copy)]
enum EntryChange<'a> {
    Insert(DirectoryEntry<'a>),
    /// Sets the inode and the spelling of the entry with this key.
    Replace(DirectoryEntry<'a>),
    Remove(EntryKey),
}

impl EntryChange<'_> {
    fn on_list(&self, hash: &NameHash, list: &EntryList<'_>) -> Option<Vec<u8>> {
        match self {
            Self::Insert(entry) => {
                // The record of a malicious log may have any key.
                let first = hash.search(entry.name)?.first_key();
                let is_free = list.find(entry.key).is_none();
                (is_free && entry.key.has_hash_of(first)).then(|| list.with(entry))
            }
            Self::Replace(entry) => {
                let name = hash.search(entry.name)?;
                let old = list.find(entry.key).filter(|old| name.is_equal(old.name))?;
                let bytes = list.without(old.key);
                EntryList::parse(&bytes).ok().map(|list| list.with(entry))
            }
            Self::Remove(key) => list.find(*key).map(|_| list.without(*key)),
        }
    }

    fn on_tree(
        &self,
        hash: &NameHash,
        tree: &mut DirectoryTree<'_, Blocks>,
    ) -> Result<bool, DirectoryError> {
        match *self {
            Self::Insert(DirectoryEntry { key, inode, file_type, name }) => {
                let Some(search) = hash.search(name) else { return Ok(false) };
                Ok(tree.insert(&search, (inode, file_type, name))? == key)
            }
            Self::Replace(entry) => match hash.search(entry.name) {
                Some(search) => tree.replace(&search, &entry),
                None => Ok(false),
            },
            Self::Remove(key) => tree.remove(key),
        }
    }
}

impl Draft<'_> {
    /// Adds an entry.
    ///
    /// # Errors
    /// `Exists`, or `Damaged` if an entry with this name would get another key.
    pub(crate) async fn insert_entry(
        &mut self,
        to: NamedEntry<'_>,
        inode: ObjectId,
        file_type: FileType,
    ) -> Result<(), FsError> {
        let NamedEntry { directory, key, name } = to;
        let entry = DirectoryEntry { key, inode, file_type, name };
        self.change_entries(directory, EntryChange::Insert(entry), 1).await
    }

    /// Sets the inode and the spelling of an entry.
    pub(crate) async fn replace_entry(
        &mut self,
        of: NamedEntry<'_>,
        inode: ObjectId,
        file_type: FileType,
    ) -> Result<(), FsError> {
        let NamedEntry { directory, key, name } = of;
        let entry = DirectoryEntry { key, inode, file_type, name };
        self.change_entries(directory, EntryChange::Replace(entry), 0).await
    }

    /// Removes an entry.
    pub(crate) async fn remove_entry(&mut self, entry: NamedEntry<'_>) -> Result<(), FsError> {
        self.change_entries(entry.directory, EntryChange::Remove(entry.key), -1).await
    }

    async fn change_entries(
        &mut self,
        directory: ObjectId,
        change: EntryChange<'_>,
        added: i64,
    ) -> Result<(), FsError> {
        let wrong = || FsError::damaged(directory, "an entry does not have the expected key");
        let (reads, hash) = (self.reads, self.hash);
        let on_disk = Directory { reads, hash, number: directory };
        let inode = &self.node(directory).await?.inode;
        let mut blocks = Blocks::new();
        let changes = match on_disk.inline(inode)? {
            Some(list) => {
                let bytes = change.on_list(hash, &list).ok_or_else(wrong)?;
                let used = inode.area.entries.as_ref().map_or(0, |entries| entries.len() + 3);
                let free = Area::BYTES + used - inode.area.encoded_bytes();
                if bytes.len() <= INLINE_ENTRIES_BYTES_MAX && bytes.len() + 3 <= free {
                    self.set_inline_entries(directory, bytes).await?;
                    return self.count_entries(directory, added).await;
                }
                let list = EntryList::parse(&bytes).expect("valid entries");
                DirectoryTree::create(&blocks, &list).into_changes()
            }
            None => {
                // Start with the blocks that a search read and the blocks that this draft changed.
                blocks = self.directories.remove(&directory).unwrap_or_default();
                blocks.extend(self.changed_directory(directory).await?);
                let change = |tree: &mut DirectoryTree<'_, Blocks>| change.on_tree(hash, tree);
                let (is_done, changes) = on_disk.on_tree(&mut blocks, change).await?;
                if !is_done {
                    return Err(wrong());
                }
                changes
            }
        };
        self.count_entries(directory, added).await?;
        self.write_tree(directory, changes).await
    }

    /// Writes the changed blocks of a directory's tree.
    pub(crate) async fn write_tree(
        &mut self,
        directory: ObjectId,
        changes: TreeChanges,
    ) -> Result<(), FsError> {
        let TreeChanges { blocks, is_one_block, count } = changes;
        for (number, block) in blocks {
            self.set_record(directory, u64::from(number), vec![block]).await?;
        }
        if is_one_block {
            self.punch_records(directory, 1..TreeRoot::BLOCKS_MAX).await?;
        }
        self.set_tree_size(directory, count).await
    }

    /// Blocks of a directory's tree that this draft changed.
    async fn changed_directory(&mut self, directory: ObjectId) -> Result<Blocks, FsError> {
        let changed = self.node(directory).await?.changed_contents();
        let numbered = changed.filter_map(|(number, content)| {
            let (number, block) = (u32::try_from(number).ok()?, content.first()?);
            Some((number, block.clone()))
        });
        Ok(numbered.collect())
    }

    async fn set_inline_entries(
        &mut self,
        directory: ObjectId,
        bytes: Vec<u8>,
    ) -> Result<(), FsError> {
        let area = &mut self.node(directory).await?.inode.area;
        area.entries = (!bytes.is_empty()).then(|| bytes.into());
        Ok(())
    }

    /// Sets the size of a directory with a tree of `count` blocks. A directory without entries
    /// needs no tree.
    async fn set_tree_size(&mut self, directory: ObjectId, count: u32) -> Result<(), FsError> {
        let inode = &mut self.node(directory).await?.inode;
        inode.area.entries = None;
        if inode.device_or_entries == 0 {
            (inode.size, inode.blocks) = (0, 0);
            return self.empty(directory, RecordSize::BLOCK).await;
        }
        let count = u64::from(count);
        (inode.size, inode.blocks) = (count * BLOCK_BYTES as u64, count);
        Ok(())
    }

    async fn count_entries(&mut self, directory: ObjectId, added: i64) -> Result<(), FsError> {
        let entries = &mut self.node(directory).await?.inode.device_or_entries;
        let counted = entries.checked_add_signed(added);
        *entries = counted.ok_or_else(|| FsError::damaged(directory, "its number of entries"))?;
        Ok(())
    }
}
