//! Digests of a snapshot's content, for comparison with a copy elsewhere.
//!
//! The caller compares them.
//!
//! Invariants:
//! - equal content has equal digests, independent of its compression and location;
//! - every block is read from disk and verified, except raw blocks in the cache.

use async_recursion::async_recursion as boxed;
use weir_base::BLOCK_BYTES;
use weir_codec::checksum::xxh3_128;
use weir_codec::compress::is_zero;
use weir_format::BlockPtr;
use weir_pool::Tree;

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::SnapshotId;

/// Bytes of a volume that one digest covers.
pub const DIGEST_BYTES: u64 = 1 << 20;

const DIGEST_BLOCKS: u64 = DIGEST_BYTES / BLOCK_BYTES as u64;

/// Digests of consecutive ranges of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// One digest for each [`DIGEST_BYTES`] of the volume, up to its end.
    pub digests: Vec<u128>,
}

impl Engine {
    /// Returns digests of up to `count` ranges of [`DIGEST_BYTES`], beginning with range `first`.
    /// Each is the XXH3-128 of all non-zero blocks in ascending order, each preceded by its number.
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
        let (root, size) = {
            let state = view.state.lock();
            (state.record.root, state.size())
        };
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

    async fn digest_of(&self, found: &[(u64, BlockPtr)]) -> Result<u128, DatasetError> {
        let pool = &self.core.pool;
        let ptrs: Vec<BlockPtr> = found.iter().map(|(_, ptr)| *ptr).collect();
        let stored = pool.read_stored_blocks(&ptrs).await;
        let mut content = Vec::with_capacity(found.len() * (BLOCK_BYTES + 8));
        for ((first, ptr), stored) in found.iter().zip(stored) {
            // The checksum matched, so a block that cannot be unpacked was never written by correct
            // code.
            let blocks = pool.unpack_stored(ptr.record, ptr.codec, &stored?);
            let blocks = blocks.ok_or_else(|| DatasetError::Broken {
                name: pool.name().to_owned(),
                why: format!("has a block that cannot be decompressed, number {first}"),
            })?;
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
