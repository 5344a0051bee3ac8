//! Digests of a snapshot's content, for comparison with a copy elsewhere.
//!
//! The caller compares the digests.
//!
//! Invariants:
//! - equal content has equal digests, independent of its compression and location;
//! - every block is read from disk and verified, except raw blocks in the cache.

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ObjectId};
use weir_block::Blocks;
use weir_codec::checksum::{xxh3_128, xxh3_128_of};
use weir_codec::compress::is_zero;
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, ObjectSlot, TreeRoot};
use weir_pool::{Objects, Tree};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::{SnapshotId, objects_of};
use crate::state::volume::Volume;

/// Bytes of a volume that one digest covers.
pub const DIGEST_BYTES: u64 = 1 << 20;

const DIGEST_BLOCKS: u64 = DIGEST_BYTES / BLOCK_BYTES as u64;

/// Objects that one digest covers in a dataset with many objects.
pub const DIGEST_OBJECTS: u64 = 256;

const DIGEST_SLOT_BLOCKS: u64 = DIGEST_OBJECTS / OBJECT_SLOTS_PER_BLOCK as u64;

/// Blocks of an object that are read together.
const BLOCKS_AT_ONCE: usize = 256;

/// Digest of a sequence of bytes of any length. Its memory is bounded.
#[derive(Default)]
struct LongDigest {
    /// Digest of the bytes before `content`.
    before: u128,
    content: Vec<u8>,
}

impl LongDigest {
    fn add(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.content.extend_from_slice(part));
        if self.content.len() >= DIGEST_BYTES as usize {
            self.before = self.digest();
            self.content.clear();
        }
    }

    fn digest(&self) -> u128 {
        xxh3_128_of(&[&self.before.to_le_bytes(), &self.content])
    }
}

/// Digests of consecutive ranges of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Size of the volume at the snapshot. For a dataset with many objects, [`DIGEST_BYTES`] for
    /// each group of [`DIGEST_OBJECTS`] objects, up to the group of the last object.
    pub size_bytes: u64,
    /// One digest for each [`DIGEST_BYTES`] of `size_bytes`.
    pub digests: Vec<u128>,
}

impl Engine {
    /// Returns digests of up to `count` ranges of [`DIGEST_BYTES`], beginning with range `first`. A
    /// digest is the XXH3-128 of the non-zero blocks of its range in ascending order, each preceded
    /// by its number. In a dataset with many objects a range has [`DIGEST_OBJECTS`] objects. Its
    /// digest covers the number, record size and slot bytes of each object in use, and the non-zero
    /// blocks.
    ///
    /// # Errors
    /// `NoSnapshot`; `Damaged` for an unreadable block.
    #[boxed(?Send)]
    pub async fn digest(
        &self,
        snapshot: &SnapshotId,
        first: u64,
        count: u64,
    ) -> Result<Digests, DatasetError> {
        let view = self.open_snapshot(snapshot)?;
        let (root, size, objects) = {
            let state = view.state.lock();
            (state.record.root, state.size(), objects_of(&state.record))
        };
        if objects == Objects::Many {
            return self.digest_objects(&view, root, (first, count)).await;
        }
        let size_bytes = size.bytes;
        let end = size_bytes.div_ceil(DIGEST_BYTES).min(first.saturating_add(count));
        let tree = Tree::new(&self.core.pool, root);
        let mut digests = Vec::new();
        for range in first..end {
            let start = range * DIGEST_BLOCKS;
            let records = size.record.touched(&(start..start + DIGEST_BLOCKS));
            let mut found: Vec<(u64, BlockPtr)> = Vec::new();
            let blocks = start..start + DIGEST_BLOCKS;
            let scanned = tree
                .scan(records, &mut |record, ptr| {
                    found.push((size.record.first_block(record), ptr));
                    true
                })
                .await;
            view.noted(blocks.clone(), scanned.map_err(DatasetError::from)).await?;
            digests.push(view.noted(blocks, self.digest_of(&found).await).await?);
        }
        Ok(Digests { size_bytes, digests })
    }

    async fn digest_objects(
        &self,
        view: &Volume,
        root: TreeRoot,
        (first, count): (u64, u64),
    ) -> Result<Digests, DatasetError> {
        let table = Tree::new(&self.core.pool, root);
        let last = table.last_block().await?;
        let ranges = last.map_or(0, |last| last / DIGEST_SLOT_BLOCKS + 1);
        let end = ranges.min(first.saturating_add(count));
        let mut digests = Vec::new();
        for range in first..end {
            let mut digest = LongDigest::default();
            let blocks = range * DIGEST_SLOT_BLOCKS..(range + 1) * DIGEST_SLOT_BLOCKS;
            let mut found: Vec<u64> = Vec::new();
            let mut visit = |index, _| {
                found.push(index);
                true
            };
            let scanned = table.scan(blocks.clone(), &mut visit).await;
            view.noted_object(ObjectId::TABLE, blocks, scanned.map_err(DatasetError::from)).await?;
            for index in found {
                let block = self.core.pool.slot_block(root, index).await;
                let block = block.map_err(DatasetError::from);
                let block = view.noted_object(ObjectId::TABLE, index..index + 1, block).await?;
                for (object, slot) in ObjectSlot::used_in(index, &block) {
                    self.digest_object(view, object, &slot, &mut digest).await?;
                }
            }
            digests.push(digest.digest());
        }
        Ok(Digests { size_bytes: ranges * DIGEST_BYTES, digests })
    }

    /// Adds an object to a digest.
    async fn digest_object(
        &self,
        view: &Volume,
        object: ObjectId,
        slot: &ObjectSlot,
        digest: &mut LongDigest,
    ) -> Result<(), DatasetError> {
        let (pool, size) = (&self.core.pool, slot.record_size);
        digest.add(&[&object.0.to_le_bytes(), &[size.shift()], &slot.body]);
        let most = (BLOCKS_AT_ONCE / size.blocks() as usize).max(1);
        let (mut at, end) = (0, slot.root.blocks());
        while at < end {
            let mut found: Vec<(u64, BlockPtr)> = Vec::new();
            let mut visit = |record, ptr| {
                found.push((record, ptr));
                found.len() < most
            };
            let scanned = Tree::new(pool, slot.root).scan(at..end, &mut visit).await;
            view.noted_object(object, at..end, scanned.map_err(DatasetError::from)).await?;
            at = match found.last() {
                Some((last, _)) if found.len() == most => last + 1,
                _ => end,
            };
            let ptrs: Vec<BlockPtr> = found.iter().map(|(_, ptr)| *ptr).collect();
            let stored = pool.read_stored_blocks(&ptrs).await;
            for ((record, ptr), stored) in found.iter().zip(stored) {
                let blocks = stored.map_err(DatasetError::from).and_then(|stored| {
                    pool.check_record(ptr, size)?;
                    self.unpacked(ptr, *record, &stored)
                });
                let blocks = view.noted_object(object, *record..record + 1, blocks).await?;
                for (block, bytes) in (size.first_block(*record)..).zip(blocks.iter()) {
                    if !is_zero(&bytes[..]) {
                        digest.add(&[&block.to_le_bytes(), &bytes[..]]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Unpacks a record. The checksum matched, so a block that cannot be unpacked was never written
    /// by correct code.
    fn unpacked(&self, ptr: &BlockPtr, number: u64, stored: &[u8]) -> Result<Blocks, DatasetError> {
        let pool = &self.core.pool;
        let blocks = pool.unpack_stored(ptr.record, ptr.codec, stored);
        blocks.ok_or_else(|| DatasetError::Broken {
            name: pool.name().to_owned(),
            why: format!("has a block that cannot be decompressed, number {number}"),
        })
    }

    async fn digest_of(&self, found: &[(u64, BlockPtr)]) -> Result<u128, DatasetError> {
        let pool = &self.core.pool;
        let ptrs: Vec<BlockPtr> = found.iter().map(|(_, ptr)| *ptr).collect();
        let stored = pool.read_stored_blocks(&ptrs).await;
        let mut content = Vec::with_capacity(found.len() * (BLOCK_BYTES + 8));
        for ((first, ptr), stored) in found.iter().zip(stored) {
            let blocks = self.unpacked(ptr, *first, &stored?)?;
            for (block, bytes) in (*first..).zip(blocks.iter()) {
                if !is_zero(&bytes[..]) {
                    content.extend_from_slice(&block.to_le_bytes());
                    content.extend_from_slice(&bytes[..]);
                }
            }
        }
        Ok(xxh3_128(&content))
    }
}
