//! Dedupe: writes blocks, or refers to existing blocks with the same content on disk.
//!
//! Not here: the volumes with dedupe enabled (weir-dataset), the hint index (hints), reference
//! counts (references).
//!
//! Invariants:
//! - dedupe shares a block only after it compared the stored bytes: with a copy in the cache, which
//!   holds written or verified bytes, or with the bytes on disk;
//! - dedupe shares no block after a read or a scrub found no good copy of it, even if the cache has
//!   the content: it stores the content again;
//! - blocks of the current txg cannot be read from disk yet: dedupe compares them in the cache or
//!   not at all;
//! - dedupe stores the block if a hint fails for any reason.

use futures_util::future::join_all;
use weir_block::Block;
use weir_cache::CacheClass;
use weir_codec::checksum;
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockOwner, BlockPtr, Codec, Compression, PtrKind, SegmentClass};

use crate::error::PoolError;
use crate::read::records::{Wanted, split_runs};
use crate::state::compression::{CompressHistory, RawRecord};
use crate::state::dedupe_index::Content;
use crate::state::pool::Pool;
use crate::txg::sharing::Sharing;
use crate::txg::write_out::WriteOut;

/// A record whose content a hint says is on disk: it waits to be compared, many at a time.
pub struct Hinted {
    owner: BlockOwner,
    blocks: Vec<Block>,
    /// Its bytes and its stored form, each unless it is the block itself.
    bytes: Option<Vec<u8>>,
    packed: Option<Vec<u8>>,
    content: Content,
    hint: BlockPtr,
}

impl Hinted {
    fn raw(&self) -> RawRecord<'_> {
        let bytes = self.bytes.as_deref().unwrap_or_else(|| &self.blocks[0][..]);
        RawRecord::new(self.content.record, &self.blocks, bytes)
    }

    fn stored(&self) -> &[u8] {
        self.packed.as_deref().unwrap_or_else(|| self.raw().bytes())
    }
}

/// What became of a record that was looked for.
pub enum Looked {
    /// Its pointer: the record was stored, or shared with one in the cache.
    Done(BlockPtr),
    /// For [`WriteOut::write_hinted`].
    Hinted(Hinted),
}

impl Pool {
    fn is_cached_as(&self, ptr: &BlockPtr, raw: RawRecord<'_>) -> bool {
        raw.blocks().iter().enumerate().all(|(part, block)| {
            let cached = self.cache.peek(CacheClass::Data, ptr, part);
            cached.is_some_and(|cached| cached.same_cell(block) || *cached == **block)
        })
    }

    /// Where a record of this content may be, as long as references can be counted.
    fn hint(&self, content: &Content) -> Option<BlockPtr> {
        let hint = self.hints.lock().get(content);
        hint.filter(|_| self.has_room_for_tables())
    }

    /// For each of these whether the block on disk that its hint names has its content; one that
    /// cannot be read has not. Neighbours are read together, all at the same time.
    async fn equal_on_disk(&self, hinted: &[Hinted]) -> Vec<bool> {
        let mut wanted = Vec::with_capacity(hinted.len());
        for (index, Hinted { hint: ptr, .. }) in hinted.iter().enumerate() {
            if let Ok(place) = self.locate(ptr).await {
                wanted.push(Wanted { index, ptr: *ptr, place });
            }
        }
        // A hint may be wrong, so the bytes prove nothing of a disk: no copy is judged by them.
        let reads = split_runs(wanted, |wanted| wanted).into_iter().map(|run| async move {
            let Some((_, buf, start)) = self.read_span(&run[0], &run[run.len() - 1]).await else {
                return Vec::new();
            };
            let first = run[0].place.at;
            let equal = run.iter().filter(|Wanted { index, place, .. }| {
                let (at, stored) = (start + (place.at - first) as usize, hinted[*index].stored());
                buf.get(at..at + stored.len()) == Some(stored)
            });
            equal.map(|wanted| wanted.index).collect()
        });
        let mut equal = vec![false; hinted.len()];
        for index in join_all(reads).await.into_iter().flatten() {
            equal[index] = true;
        }
        equal
    }
}

impl WriteOut<'_> {
    /// Stores a record of a volume, unless its content is there already: then it becomes a
    /// reference, at once if that is in the cache, else once it was compared.
    ///
    /// # Errors
    /// As [`Self::write_record`].
    pub async fn write_deduped(
        &mut self,
        owner: BlockOwner,
        raw: RawRecord<'_>,
        compression: Compression,
        history: &mut CompressHistory,
    ) -> Result<Looked, PoolError> {
        let mut packer = std::mem::take(&mut self.packer).unwrap_or_default();
        let (stored, codec) = packer.pack(raw.bytes(), compression, history);
        let done = self.look(owner, raw, stored, codec).await;
        self.packer = Some(packer);
        done
    }

    async fn look(
        &mut self,
        owner: BlockOwner,
        raw: RawRecord<'_>,
        stored: &[u8],
        codec: Codec,
    ) -> Result<Looked, PoolError> {
        let (stored_units, record) = ((stored.len() / PACK_BYTES) as u16, raw.size());
        let content = Content { checksum: checksum::xxh3_128(stored), stored_units, codec, record };
        let judged = match self.pool.hint(&content) {
            None => None,
            Some(hint) if self.pool.is_cached_as(&hint, raw) => Some((hint, true)),
            Some(hint) if self.is_older(&hint) => {
                let bytes = (!record.is_block()).then(|| raw.bytes().to_vec());
                let packed = (codec != Codec::Raw).then(|| stored.to_vec());
                let blocks = raw.blocks().to_vec();
                return Ok(Looked::Hinted(Hinted { owner, blocks, bytes, packed, content, hint }));
            }
            Some(hint) => Some((hint, false)),
        };
        self.share_or_store(owner, raw, stored, content, judged).await.map(Looked::Done)
    }

    /// Compares records with what their hints name, and shares it or stores them. Pointers in the
    /// order of `hinted`, which are few enough to be held twice; nothing was freed since they were
    /// looked for.
    ///
    /// # Errors
    /// As [`Self::write_record`].
    pub async fn write_hinted(&mut self, hinted: &[Hinted]) -> Result<Vec<BlockPtr>, PoolError> {
        let equal = self.pool.equal_on_disk(hinted).await;
        let mut ptrs = Vec::with_capacity(hinted.len());
        for (one, equal) in hinted.iter().zip(equal) {
            let Hinted { owner, content, hint, .. } = one;
            // Asked again: a block before this one may have been of the same content.
            let judged = self.pool.hint(content).map(|now| {
                let compared = equal && now.address() == hint.address();
                (now, compared || self.pool.is_cached_as(&now, one.raw()))
            });
            let (raw, stored) = (one.raw(), one.stored());
            ptrs.push(self.share_or_store(*owner, raw, stored, *content, judged).await?);
        }
        Ok(ptrs)
    }

    /// Refers to the block that a hint names, if it was found to be `right`; else stores this one.
    async fn share_or_store(
        &mut self,
        owner: BlockOwner,
        raw: RawRecord<'_>,
        stored: &[u8],
        content: Content,
        judged: Option<(BlockPtr, bool)>,
    ) -> Result<BlockPtr, PoolError> {
        if let Some((hint, right)) = judged {
            let shared = right && self.share_hinted(&hint).await?;
            // One that nobody could compare is not wrong for that.
            if shared || self.is_older(&hint) {
                self.pool.hints.lock().judge(&hint, shared);
            }
            if shared {
                return Ok(hint.shared_in(self.txg));
            }
        }
        let what = (SegmentClass::Data, Some(owner), PtrKind::Data);
        let ptr = self.store(what, raw, stored, (content.codec, content.checksum)).await?;
        self.pool.hints.lock().insert(&ptr);
        Ok(ptr)
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
