//! Dedupe: writes blocks, or refers to existing blocks with the same content on disk.
//!
//! weir-dataset selects the volumes with dedupe; the index is in `state::dedupe_index`, the
//! reference counts in `segments::reference_counts`.
//!
//! Invariants:
//! - dedupe shares a block only after a comparison with its bytes: with its copy in the cache,
//!   which holds written or verified bytes, or with its bytes on disk, unless the current txg wrote
//!   the block;
//! - dedupe shares no block after a read or a scrub found no good copy of it, even if the cache has
//!   the content: dedupe stores the content again;
//! - if an index entry fails for any reason, dedupe stores the block.

use futures_util::future::join_all;
use weir_block::Blocks;
use weir_cache::CacheClass;
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockOwner, BlockPtr, Codec, Compression, PtrKind, SegmentClass};

use crate::error::PoolError;
use crate::read::records::{Wanted, split_runs};
use crate::state::compression::{CompressHistory, StoredForm};
use crate::state::dedupe_index::Content;
use crate::state::pool::Pool;
use crate::txg::sharing::Sharing;
use crate::txg::write_out::WriteOut;

/// A record whose content is probably on disk, according to the dedupe index. The record waits for
/// a comparison with the stored block.
pub struct Candidate {
    owner: BlockOwner,
    record: Blocks,
    /// Stored form; `None` if it is the content of the record.
    packed: Option<Vec<u8>>,
    content: Content,
    dedupe_entry: BlockPtr,
}

impl Candidate {
    fn stored(&self) -> StoredForm<'_> {
        self.packed.as_deref().map_or_else(|| (&self.record).into(), StoredForm::Bytes)
    }
}

/// Outcome of a dedupe lookup.
pub enum Lookup {
    /// Pointer to the record: it was stored, or shares a cached block of the same content.
    Done(BlockPtr),
    /// The index names a candidate on disk, which [`WriteOut::write_candidates`] must compare.
    Candidate(Candidate),
}

impl Pool {
    fn is_cached_as(&self, ptr: &BlockPtr, record: &Blocks) -> bool {
        let cached = self.cache.peek(CacheClass::Data, ptr.address());
        cached.is_some_and(|cached| {
            let mut pairs = cached.iter().zip(&**record);
            let is_equal = pairs.all(|(a, b)| a.same_cell(b) || **a == **b);
            is_equal && cached.len() == record.len()
        })
    }

    /// Returns a block that may have this content, if RAM has room for more changed reference
    /// counts.
    fn dedupe_entry(&self, content: &Content) -> Option<BlockPtr> {
        let dedupe_entry = self.dedupe_index.lock().get(content);
        dedupe_entry.filter(|_| self.has_room_for_tables())
    }

    /// For each record, returns whether the block that the index names has the same content; false
    /// if that block cannot be read. All reads run concurrently, and neighbouring blocks share a
    /// read.
    async fn equal_on_disk(&self, candidates: &[Candidate]) -> Vec<bool> {
        let mut wanted = Vec::with_capacity(candidates.len());
        for (index, Candidate { dedupe_entry: ptr, .. }) in candidates.iter().enumerate() {
            if let Ok(place) = self.locate(ptr).await {
                wanted.push(Wanted { index, ptr: *ptr, place });
            }
        }
        // An index entry may be wrong, so a mismatch proves no disk error: count no bad copy.
        let reads = split_runs(wanted, |wanted| wanted).into_iter().map(|run| async move {
            let Some((_, buf, start)) = self.read_span(&run[0], &run[run.len() - 1]).await else {
                return Vec::new();
            };
            let first = run[0].place.at;
            let equal = run.iter().filter(|Wanted { index, place, .. }| {
                let (at, stored) =
                    (start + (place.at - first) as usize, candidates[*index].stored());
                buf.get(at..at + stored.len()).is_some_and(|bytes| stored.equals(bytes))
            });
            equal.map(|wanted| wanted.index).collect()
        });
        let mut equal = vec![false; candidates.len()];
        for index in join_all(reads).await.into_iter().flatten() {
            equal[index] = true;
        }
        equal
    }
}

impl WriteOut<'_> {
    /// Stores a record of a volume, or refers to an equal block. An equal block in the cache is
    /// shared at once. A block on disk must be compared first.
    ///
    /// # Errors
    /// As [`Self::write_record`].
    pub async fn write_deduped(
        &mut self,
        owner: BlockOwner,
        record: &Blocks,
        compression: Compression,
        history: &mut CompressHistory,
    ) -> Result<Lookup, PoolError> {
        let mut packer = std::mem::take(&mut self.packer).unwrap_or_default();
        let (stored, codec) = packer.pack(record, compression, history);
        let done = self.look(owner, record, stored, codec).await;
        self.packer = Some(packer);
        done
    }

    async fn look(
        &mut self,
        owner: BlockOwner,
        record: &Blocks,
        stored: StoredForm<'_>,
        codec: Codec,
    ) -> Result<Lookup, PoolError> {
        let (stored_units, size) = ((stored.len() / PACK_BYTES) as u16, record.size());
        let content = Content { checksum: stored.checksum(), stored_units, codec, record: size };
        let judged = match self.pool.dedupe_entry(&content) {
            None => None,
            Some(dedupe_entry) if self.pool.is_cached_as(&dedupe_entry, record) => {
                Some((dedupe_entry, true))
            }
            Some(dedupe_entry) if self.is_older(&dedupe_entry) => {
                let packed = (codec != Codec::Raw).then(|| stored.to_vec());
                let record = record.clone();
                let candidate = Candidate { owner, record, packed, content, dedupe_entry };
                return Ok(Lookup::Candidate(candidate));
            }
            Some(dedupe_entry) => Some((dedupe_entry, false)),
        };
        self.share_or_store(owner, record, stored, content, judged).await.map(Lookup::Done)
    }

    /// Compares records with the blocks that the index names, then shares those blocks or stores
    /// the records. Returns pointers in the order of `candidates`. The caller keeps `candidates`
    /// small enough to be in RAM twice, and frees nothing between the lookup and this call.
    ///
    /// # Errors
    /// As [`Self::write_record`].
    pub async fn write_candidates(
        &mut self,
        candidates: &[Candidate],
    ) -> Result<Vec<BlockPtr>, PoolError> {
        let equal = self.pool.equal_on_disk(candidates).await;
        let mut ptrs = Vec::with_capacity(candidates.len());
        for (one, equal) in candidates.iter().zip(equal) {
            let Candidate { owner, content, dedupe_entry, .. } = one;
            // Repeat the lookup: an earlier record of the batch may have had the same content.
            let judged = self.pool.dedupe_entry(content).map(|now| {
                let compared = equal && now.address() == dedupe_entry.address();
                (now, compared || self.pool.is_cached_as(&now, &one.record))
            });
            let (record, stored) = (&one.record, one.stored());
            ptrs.push(self.share_or_store(*owner, record, stored, *content, judged).await?);
        }
        Ok(ptrs)
    }

    /// If the block that the index names was verified as `right`, adds a reference to that block.
    /// Otherwise stores the record.
    async fn share_or_store(
        &mut self,
        owner: BlockOwner,
        record: &Blocks,
        stored: StoredForm<'_>,
        content: Content,
        judged: Option<(BlockPtr, bool)>,
    ) -> Result<BlockPtr, PoolError> {
        if let Some((dedupe_entry, right)) = judged {
            let shared = right && self.share_candidate(&dedupe_entry).await?;
            // An index entry whose block could not be compared is not counted as wrong.
            if shared || self.is_older(&dedupe_entry) {
                self.pool.dedupe_index.lock().judge(&dedupe_entry, shared);
            }
            if shared {
                return Ok(dedupe_entry.shared_in(self.txg));
            }
        }
        let what = (SegmentClass::Data, Some(owner), PtrKind::Data);
        let how = (content.codec, Some(content.checksum));
        let ptr = self.store(what, record, stored, how).await?;
        self.pool.dedupe_index.lock().insert(&ptr);
        Ok(ptr)
    }

    /// Adds a reference to a verified block. Returns false if the block cannot have another
    /// reference.
    async fn share_candidate(&mut self, ptr: &BlockPtr) -> Result<bool, PoolError> {
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
