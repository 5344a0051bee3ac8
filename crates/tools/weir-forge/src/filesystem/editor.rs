//! Changes slots and records of a filesystem without the checks of weir-fs.
//!
//! Invariant: the engine writes the changes, so all checksums and space counters are valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{ObjectChange, Volume};
use weir_format::ObjectSlot;
use weir_format::files::{DirectoryEntry, EntryKey, EntryList, FileType, Inode};
use weir_fs::directory::NameHash;
use weir_fs::{FsError, Layout};

type Body = [u8; ObjectSlot::BODY_BYTES];

/// Pending changes of a filesystem.
pub struct Editor {
    volume: Arc<Volume>,
    hash: NameHash,
    slots: BTreeMap<ObjectId, (RecordSize, Box<Body>)>,
    blocks: BTreeMap<(ObjectId, u64), Box<[u8; BLOCK_BYTES]>>,
    removed: Vec<ObjectId>,
}

impl Editor {
    pub(crate) fn new(volume: Arc<Volume>, layout: Layout) -> Self {
        let hash = NameHash::new(layout.hash_key, layout.case);
        let (slots, blocks, removed) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { volume, hash, slots, blocks, removed }
    }

    /// Writes the changes to the dataset.
    pub(crate) async fn write(self) -> Result<(), FsError> {
        let Self { volume, slots, blocks, removed, .. } = self;
        let sizes: BTreeMap<_, _> = slots.iter().map(|(of, (size, _))| (*of, *size)).collect();
        let slots = slots.into_iter();
        let mut changes: Vec<_> = slots
            .map(|(object, (size, body))| ObjectChange::SetSlot { object, size, body })
            .collect();
        for ((object, record), block) in blocks {
            let size = sizes.get(&object).copied().unwrap_or(RecordSize::BLOCK);
            let blocks = vec![Block::copy_of(&block)];
            changes.push(ObjectChange::Write { object, size, record, blocks });
        }
        changes.extend(removed.into_iter().map(|object| ObjectChange::Remove { object }));
        Ok(volume.change_objects(changes).await?)
    }

    /// Frees the slot of an object.
    pub(crate) fn remove(&mut self, object: ObjectId) {
        self.slots.remove(&object);
        self.removed.push(object);
    }

    /// Changes the bytes of a slot.
    pub(crate) async fn slot(
        &mut self,
        object: ObjectId,
        change: impl FnOnce(&mut Body),
    ) -> Result<(), FsError> {
        if !self.slots.contains_key(&object) {
            let slot = self.volume.object_slot(object).await?.ok_or(FsError::Stale)?;
            self.slots.insert(object, (slot.0, Box::new(*slot.1)));
        }
        change(&mut self.slots.get_mut(&object).expect("just added").1);
        Ok(())
    }

    /// Changes an inode. The new inode need not be valid.
    pub(crate) async fn inode(
        &mut self,
        object: ObjectId,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), FsError> {
        self.slot(object, |body| {
            let mut inode = Inode::decode(body).expect("the sample is sound").expect("an inode");
            change(&mut inode);
            *body = *inode.encode();
        })
        .await
    }

    /// Changes a block of an object whose records have one block.
    pub(crate) async fn block(
        &mut self,
        object: ObjectId,
        record: u64,
        change: impl FnOnce(&mut [u8; BLOCK_BYTES]),
    ) -> Result<(), FsError> {
        if !self.blocks.contains_key(&(object, record)) {
            let read = self.volume.read_object(object, RecordSize::BLOCK, record).await?;
            let old = read.as_ref().and_then(|blocks| blocks.first());
            let block = old.map_or([0; BLOCK_BYTES], |block| **block);
            self.blocks.insert((object, record), Box::new(block));
        }
        change(self.blocks.get_mut(&(object, record)).expect("just added"));
        Ok(())
    }

    /// Replaces the entries of a directory that has them in its inode.
    pub(crate) async fn entries(
        &mut self,
        directory: ObjectId,
        change: impl FnOnce(Vec<OwnedEntry>) -> Vec<OwnedEntry>,
    ) -> Result<(), FsError> {
        self.inode(directory, |inode| {
            assert_eq!(inode.size, 0, "the entries are in the inode");
            let bytes = inode.area.entries.take().unwrap_or_default();
            let list = EntryList::parse(&bytes).expect("the sample is sound");
            let old = list
                .from(0)
                .map(|entry| (entry.key, entry.inode, entry.file_type, entry.name.to_vec()));
            let new = change(old.collect());
            inode.device_or_entries = new.len() as u64;
            inode.area.entries = (!new.is_empty()).then(|| encode(new).into());
        })
        .await
    }

    /// Adds an entry to a directory that has its entries in its inode.
    pub(crate) async fn add(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        (inode, file_type): (ObjectId, FileType),
    ) -> Result<(), FsError> {
        let entry = (self.key_of(name), inode, file_type, name.to_vec());
        self.entries(directory, |mut entries| {
            entries.push(entry);
            entries
        })
        .await
    }

    /// Removes an entry from a directory that has its entries in its inode.
    pub(crate) async fn take(&mut self, directory: ObjectId, name: &[u8]) -> Result<(), FsError> {
        self.entries(directory, |mut entries| {
            entries.retain(|(.., own)| own != name);
            entries
        })
        .await
    }

    /// Key of the first name with this hash.
    pub(crate) fn key_of(&self, name: &[u8]) -> EntryKey {
        self.hash.search(name).expect("the sample is case-sensitive").first_key()
    }
}

/// Entry of a directory: key, inode, type and name.
type OwnedEntry = (EntryKey, ObjectId, FileType, Vec<u8>);

/// Encodes entries in the order of their keys.
fn encode(mut entries: Vec<OwnedEntry>) -> Vec<u8> {
    entries.sort_by_key(|(key, ..)| *key);
    let encoded = entries.iter().flat_map(|(key, inode, file_type, name)| {
        let (key, inode, file_type) = (*key, *inode, *file_type);
        DirectoryEntry { key, inode, file_type, name }.encode()
    });
    encoded.collect()
}
