//! Dedupe: writing blocks, and referring to those whose content is on disk already.
//!
//! Not here: which volumes ask for it (weir-dataset), the index of hints (hints), counting
//! references (references).
//!
//! Invariants:
//! - a block is shared only after its stored bytes were compared: with a copy in the cache, which
//!   is what was written or verified, or with the bytes on disk;
//! - what the txg under way wrote cannot be read from disk yet: it is compared in the cache or not
//!   at all;
//! - whatever goes wrong with a hint, the block is stored.

use futures_util::future::join_all;
use weir_cache::CacheClass;
use weir_codec::checksum;
use weir_device::Block;
use weir_format::{BlockOwner, BlockPtr, Compression, PtrKind, SegmentClass};

use crate::error::PoolError;
use crate::hints::Content;
use crate::pack::CompressHistory;
use crate::pool::Pool;
use crate::read::{Wanted, split_runs};
use crate::references::Sharing;
use crate::write_out::WriteOut;

/// A block as it would be stored.
struct Packed {
    stored: Vec<u8>,
    content: Content,
}

impl Pool {
    fn is_cached_as(&self, ptr: &BlockPtr, block: &Block) -> bool {
        let cached = self.cache.peek(CacheClass::Data, ptr);
        cached.is_some_and(|cached| cached.same_cell(block) || *cached == **block)
    }

    /// Which of these blocks on disk hold what the packed ones of these numbers do; those that
    /// cannot be read do not. Neighbours are read together, all at the same time.
    async fn equal_on_disk(&self, asked: Vec<(usize, BlockPtr)>, packed: &[Packed]) -> Vec<usize> {
        let mut wanted = Vec::with_capacity(asked.len());
        for (index, ptr) in asked {
            if let Ok(place) = self.locate(&ptr).await {
                wanted.push(Wanted { index, ptr, place });
            }
        }
        // A hint may be wrong, so the bytes prove nothing of a disk: no copy is judged by them.
        let reads = split_runs(wanted, |wanted| wanted).into_iter().map(|run| async move {
            let Some((_, buf, start)) = self.read_span(&run[0], &run[run.len() - 1]).await else {
                return Vec::new();
            };
            let first = run[0].place.at;
            let equal = run.iter().filter(|Wanted { index, place, .. }| {
                let (at, stored) = (start + (place.at - first) as usize, &packed[*index].stored);
                buf.get(at..at + stored.len()) == Some(stored)
            });
            equal.map(|wanted| wanted.index).collect()
        });
        join_all(reads).await.into_iter().flatten().collect()
    }
}

impl WriteOut<'_> {
    /// Stores blocks of volumes, but for those whose content is on disk already: these become
    /// references. Pointers in the order of `blocks`, which are few enough to be held twice.
    ///
    /// # Errors
    /// As [`Self::write_block`].
    pub async fn write_deduped(
        &mut self,
        blocks: &[(BlockOwner, Block)],
        compression: Compression,
        history: &mut CompressHistory,
    ) -> Result<Vec<BlockPtr>, PoolError> {
        let mut packed = Vec::with_capacity(blocks.len());
        for (_, block) in blocks {
            let (stored, codec) = self.pack(block, compression, history);
            let checksum = checksum::xxh3_128(&stored);
            let stored_units = (stored.len() / weir_format::layout::PACK_BYTES) as u16;
            packed.push(Packed { stored, content: Content { checksum, stored_units, codec } });
        }
        let equal = self.compare(blocks, &packed).await;
        let mut ptrs = Vec::with_capacity(blocks.len());
        for (index, ((owner, block), Packed { stored, content })) in
            blocks.iter().zip(&packed).enumerate()
        {
            // Asked again: a block before this one may have been of the same content.
            let room = self.pool.has_room_for_tables();
            let hint = if room { self.pool.hints.lock().get(content) } else { None };
            let shared = match hint {
                Some(ptr) => {
                    let right =
                        equal[index] == Some(ptr.address()) || self.pool.is_cached_as(&ptr, block);
                    let shared = right && self.share_hinted(&ptr).await?;
                    // One that nobody could compare is not wrong for that.
                    if shared || self.is_older(&ptr) {
                        self.pool.hints.lock().judge(&ptr, shared);
                    }
                    shared.then_some(ptr)
                }
                None => None,
            };
            ptrs.push(match shared {
                Some(ptr) => ptr.shared_in(self.txg),
                None => {
                    let what = (SegmentClass::Data, Some(*owner), PtrKind::Data);
                    let form = (content.codec, content.checksum);
                    let ptr = self.store(what, block, stored, form).await?;
                    self.pool.hints.lock().insert(&ptr);
                    ptr
                }
            });
        }
        Ok(ptrs)
    }

    /// For each block the address of one on disk that was compared with it and is equal.
    async fn compare(&self, blocks: &[(BlockOwner, Block)], packed: &[Packed]) -> Vec<Option<u64>> {
        let mut asked = Vec::new();
        {
            let hints = self.pool.hints.lock();
            for (index, Packed { content, .. }) in packed.iter().enumerate() {
                let hint = hints.get(content).filter(|ptr| self.is_older(ptr));
                asked.extend(hint.map(|ptr| (index, ptr)));
            }
        }
        asked.retain(|(index, ptr)| !self.pool.is_cached_as(ptr, &blocks[*index].1));
        let mut equal = vec![None; packed.len()];
        let addresses: Vec<_> = asked.iter().map(|(index, ptr)| (*index, ptr.address())).collect();
        let right = self.pool.equal_on_disk(asked, packed).await;
        for (index, address) in addresses {
            equal[index] = right.contains(&index).then_some(address);
        }
        equal
    }

    /// Takes a reference to a block that was compared; false if it cannot be taken.
    async fn share_hinted(&mut self, ptr: &BlockPtr) -> Result<bool, PoolError> {
        let one = Sharing::of([ptr]);
        match self.pool.check_share(&one).await {
            Ok(()) => self.share(&one).await.map(|()| true),
            Err(error) => {
                tracing::debug!(%error, "a block is stored again: it cannot be shared");
                Ok(false)
            }
        }
    }
}
